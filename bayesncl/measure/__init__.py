"""Measures of features: functions of arrays, each in the published definition and in a sound one.

`registry` lists every reported number, `dimensions` has the table of per-dimension statistics, and
`result` the object that measuring returns. NumPy arrays or torch tensors in, plain numbers out.
"""

import math
from statistics import NormalDist


def wilson(hits: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share of `hits` among `trials`."""
    z, p = NormalDist().inv_cdf(0.975), hits / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    half = z / (1 + z * z / trials) * spread
    return max(0.0, middle - half), min(1.0, middle + half)
