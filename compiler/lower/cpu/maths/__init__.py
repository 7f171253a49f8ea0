"""Functions of real numbers as arithmetic on vectors, in place of one call of the C library per element.

Results are within 2 units in the last place of float32; float64 uses the C library. Functions that need no more than
float32 are those of all devices (`lower/kernels/functions`); here are those that compute in float64, and those of
activations. The C library computes, lane by lane, what few networks have. `rules.py` has two passes: one before TVM's
vectorizer, which marks the calls, and one after it, which replaces them. `pipeline.py` adds them to TVM's passes, for
CPU code only.
"""
