"""What benchmarks/runtime/transfer.py measures: copies, also without heterocc, and runs that overlap."""
