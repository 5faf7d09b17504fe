"""The learning rate of a step."""

from __future__ import annotations

import math


def warmup_cosine(
    step: int, base: float, warmup_steps: int, total_steps: int, start: float = 3e-5
) -> float:
    """Linear warm-up from `start` to `base`, then cosine decay to 0.

    Parameters
    ----------
    step : t, counted from 0.
    base : rate at t = warmup_steps.
    warmup_steps : W; t < W gives start + t (base - start) / (W - 1).
    total_steps : T; t > W gives base (1 + cos(pi (t - W) / (T - W))) / 2.
    start : rate at t = 0.
    """
    if step < warmup_steps:
        return start + step * (base - start) / max(warmup_steps - 1, 1)
    if total_steps <= warmup_steps:
        return base
    angle = math.pi * (step - warmup_steps) / (total_steps - warmup_steps)
    return base * (1 + math.cos(angle)) / 2
