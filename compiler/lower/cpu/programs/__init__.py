"""Partitions with branches, loops and sizes known only at run time: straight parts, and the code that joins them.

`split.py` and `repeats.py` divide a partition into parts of straight code, which grow in `program_builder.py`,
`build.py` lowers each like any partition, and `bytecode.py` writes the instructions that call them (decision 28).
`containers.py` adds calls of functions of the CPU plug-in for sequences and optional values (decision 49). What a size
of the run must not exceed is checked by `limits.py` and `checks.py` (decision 61).
"""
