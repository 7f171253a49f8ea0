"""Schedules for GPUs, whatever the API."""
