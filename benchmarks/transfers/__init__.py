"""What benchmarks/transfer.py measures: copies, also without heterocc, and runs that overlap."""
