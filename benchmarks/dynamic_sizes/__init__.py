"""The parts of benchmarks/dynamic.py: the models, their inputs, and processes that compile and time them."""
