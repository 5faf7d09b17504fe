"""A CPU shared with others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.3  # of all processors


def rest_when_busy() -> None:
    """Have torch's threads sleep, not spin, while they wait for each other, if others need the processors too.

    Spinning is faster on an idle machine and many times slower on a busy one; results are the same.
    Only before torch is imported, and never against what the environment says.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ and busy_share() > BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def busy_share(seconds: float = 0.05) -> float:
    """Share of the processors' time that others take, 0 to 1, while this process sleeps; 0 where nothing says so."""
    try:
        idle, total = _times()
        time.sleep(seconds)
        idle_then, total_then = _times()
    except (OSError, ValueError, IndexError):
        return 0.0
    return 1 - (idle_then - idle) / (total_then - total) if total_then > total else 0.0


def _times() -> tuple[int, int]:
    """Idle and total time of all processors since they started, in ticks."""
    ticks = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)  # idle, and waiting for a disk
