"""The peers that benchmarks run beside heterocc."""
