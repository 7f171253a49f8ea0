"""Mathematical functions in float32 with known error bounds, which Vulkan does not guarantee."""
