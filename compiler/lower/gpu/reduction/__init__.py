"""Schedules of reductions and normalisations for GPUs."""
