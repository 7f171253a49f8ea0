"""Functions of real numbers as arithmetic on vectors, in place of one call of the C library per element."""
