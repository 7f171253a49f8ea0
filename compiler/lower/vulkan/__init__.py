"""Vulkan code: from lowered kernels to SPIR-V, without any shader compiler."""
