"""The parts of benchmarks/networks/dynamic.py: the models, their inputs, and processes that compile and time them."""
