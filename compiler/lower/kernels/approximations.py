"""Coefficients of polynomials for functions of real numbers that the CPU back end computes itself.

Fitted for the smallest largest error by Lawson's method: least squares on 1500 Chebyshev nodes, each weighted again and
again by its error. Those for float32 were rounded to it one by one, the lowest power first, and the others fitted again
after each. A number of bits is a table's largest error: 28 stands for 2^-28, relative to the function. The lowest power
comes first.
"""

from __future__ import annotations

import math

LN2_HIGH = 0.693145751953125
"""ln 2 to 15 bits: its product with an exponent is exact. `LN2_LOW` is the rest."""
LN2_LOW = math.log(2) - LN2_HIGH

ERF_SPLIT, ERF_ONE = 0.9, 4.0
"""The point at which the error function changes its polynomial, and that from which it is 1 in float32."""

EXP = (0.49999994, 0.166665211, 0.0416682623, 0.00836867094, 0.00138210424)
"""(e^r - 1 - r) / r² for |r| up to ln(2)/2, for the relative error of e^r. 28 bits."""

LOG = (0.333333313, -0.250008196, 0.200012431, -0.166234106, 0.142015398, -0.131595507, 0.127624854, -0.0763694048)
"""(ln(1 + f) - f + f²/2) / f³ for 1 + f from √½ to √2, for the relative error of ln(1 + f). 27 bits."""

SINH = (0.166666672, 0.00833331048, 0.000198428956, 2.78221319e-06)
"""(sinh(x)/x - 1) / x² in x², for x up to 1. 32 bits."""

ERF_NEAR = (0.128379151, -0.376125038, 0.112819083, -0.0267695524, 0.00499699824, -0.000600823143)
"""erf(x)/x - 1 in x², for x up to `ERF_SPLIT`. 26 bits."""

ERF_LOG_REST = (-0.0026289504, -1.6163925, -0.93840635, -0.13175103, 0.02258191, -0.0018197966)
"""log2(1 - erf(x)) for x from `ERF_SPLIT` to `ERF_ONE`, for the relative error of erf(x). 25 bits."""

EXP2_SHORT = (1.0000001, 0.69314694, 0.2402212, 0.05550713, 0.009675542, 0.0013276472)
"""2^r for |r| up to 1/2. 23.7 bits."""

SIN = (-0.1666666664078, 0.008333329302374, -0.0001983931147433, 2.718114030605e-06)
"""(sin(x)/x - 1) / x² in x², for x up to π/4; in float64. 37 bits."""

COS = (-0.4999999969422, 0.04166662032823, -0.001388668073735, 2.438348173955e-05)
"""(cos(x) - 1) / x² in x², for x up to π/4; in float64. 34 bits."""

ATAN = (-0.3333333249906, 0.1999990390275, -0.142820076201, 0.1104469004441, -0.08476261104303, 0.04744032888704)
"""(atan(x)/x - 1) / x² in x², for x up to √2 - 1; in float64. 35 bits."""

ASIN = (0.16666752, 0.074952975, 0.045470376, 0.024179507, 0.042166322)
"""(asin(x)/x - 1) / x² in x², for x up to 1/2. 27 bits."""

LOG_RATIO = (0.3333333282411, 0.2000016732025, 0.1426866988836, 0.1179080842006)
"""(artanh(s)/s - 1) / s² in s², for s up to (√2 - 1)/(√2 + 1); in float64. 38 bits."""

EXP2 = (0.6931472028586, 0.2402264791317, 0.0555033246354, 0.00961843739124, 0.001339887744575, 0.0001535335855296)
"""(2^r - 1) / r for |r| up to 1/2; in float64. 29 bits."""
