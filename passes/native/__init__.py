"""The solver of placements in C++: minimum cuts, lower bounds, sequences of turns, and branch and bound.

Its functions take arrays and count their work; `solver.h` describes them.
"""
