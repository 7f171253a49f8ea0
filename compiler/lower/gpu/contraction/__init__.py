"""Schedules of convolutions and matrix products for GPUs."""
