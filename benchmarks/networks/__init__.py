"""Whole models on a device: times of runs beside peers; `cpu.py` also runs the cases of `operators/cases`."""
