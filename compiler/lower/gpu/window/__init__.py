"""Schedules of depthwise convolution and pooling for GPUs."""
