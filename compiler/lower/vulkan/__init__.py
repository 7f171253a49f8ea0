"""The Vulkan back end: a code generator from TIR kernels to SPIR-V that needs no shader compiler."""
