"""Measures of features: functions of arrays, each in the published definition (`paper`) and in a sound one.

`dimensions` is the table of per-dimension statistics, `measures` the registry of what is reported, `result` what
measuring gives. Numpy arrays or torch tensors in, plain numbers out.
"""

import math
from statistics import NormalDist


def wilson(right: float, asked: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share of `right` among `asked`."""
    z, p = NormalDist().inv_cdf(0.975), right / asked
    middle = (p + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(p * (1 - p) / asked + z * z / (4 * asked * asked))
    return max(0.0, middle - half), min(1.0, middle + half)
