"""exp and log with the same bits on every machine.

A C library's exp and log differ from one version to the next in the last bit, and one bit can turn
a draw. These use float64 `+ − * /`, rounding to an integer and scaling by powers of two, all of
which IEEE 754 defines exactly; Python and NumPy never fuse them. Error: at most 2 ulp. (A row's
log-sum-exp is the engine's own: draws agree between machines as far as that does.)
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; k * _LN2_HIGH is exact for |k| < 2^20.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_EXP_MIN = -745.2
_EXP_MAX = 709.78
# 1/n! for n = 13 … 0; |r| <= ln 2 / 2 leaves a remainder below 2^-57.
_EXP_TERMS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
# 1/(2n+1) for n = 10 … 1; |f| <= 0.172 leaves a remainder below 2^-59.
_LOG_TERMS = tuple(1.0 / (2 * n + 1) for n in range(10, 0, -1))
_SQRT_HALF = 0.7071067811865476


def exp(x: float) -> float:
    """e^x; 0 below −745.2 and for NaN, infinity above 709.78."""
    if not x >= _EXP_MIN:
        return 0.0
    if x > _EXP_MAX:
        return math.inf
    k = round(x * _LOG2_E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = _EXP_TERMS[0]
    for term in _EXP_TERMS[1:]:
        p = p * r + term
    return math.ldexp(p, k)


def exp_array(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`exp` of each element, bit for bit, as a new array."""
    # The comparison is false for NaN, which so becomes 0 as well.
    inside = x >= _EXP_MIN
    r = np.where(inside, np.minimum(x, _EXP_MAX), 0.0)
    k = np.rint(r * _LOG2_E)
    r -= k * _LN2_HIGH
    r -= k * _LN2_LOW
    p = np.full_like(r, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        p *= r
        p += term
    scaled = np.ldexp(p, k.astype(np.int32))
    scaled[~inside] = 0.0
    scaled[x > _EXP_MAX] = np.inf
    return scaled


def log(x: float) -> float:
    """Natural logarithm; −infinity at 0, NaN below, infinity and NaN as they are."""
    if not 0.0 < x < math.inf:
        return -math.inf if x == 0.0 else x if x > 0.0 else math.nan
    m, k = math.frexp(x)
    if m < _SQRT_HALF:
        m *= 2.0
        k -= 1
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    p = _LOG_TERMS[0]
    for term in _LOG_TERMS[1:]:
        p = p * s + term
    # 2 atanh(f) = 2f + 2f·s·p, the large part added last.
    twice = f + f
    return k * _LN2_HIGH + (twice + (twice * s * p + k * _LN2_LOW))
