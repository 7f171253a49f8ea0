"""What all back ends know of kernels: nothing here is of one device.

`expressions.py` reads expressions (what they load, use and call), `choices.py` has the choices between alternatives of
a kernel, the best according to a model first. `transposed.py` packs weights from where the model has them, also
transposed ones, and `quotients.py` removes tests of signs from indices. `functions/` has mathematical functions as
formulas of an abstract number, with the coefficients of `approximations.py`.
"""
