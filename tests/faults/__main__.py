"""Run the faults and print the table: kind, tries, survived, lost."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "BAYESNCL_REVISION": "faults"}  # the latter spares asking git in every child

from tests.faults import damage, fits, fuzz, hostile, kills, numerics, together
from tests.faults.harness import Outcome

Fault = Callable[[int, Path, random.Random], Outcome]

# tries of the quick and of the long version; 0: the fault has a fixed list of cases
FAULTS: dict[str, tuple[Fault, int, int]] = {
    "training": (kills.training, 4, 80),
    "checkpointing": (kills.checkpointing, 4, 60),
    "caching": (kills.caching, 3, 30),
    "reporting": (kills.reporting, 3, 30),
    "fitting": (kills.fitting, 4, 40),
    "fit_writing": (fits.writing, 4, 80),
    "fit_full_disk": (fits.full_disk, 4, 20),
    "fit_same_folder": (fits.same_folder, 1, 5),
    "cut_files": (fits.cut_files, 0, 0),
    "checkpoints": (damage.checkpoints, 20, 100),
    "full_disk": (damage.full_disk, 4, 20),
    "read_only": (damage.read_only, 0, 0),
    "vanishing_data": (damage.vanishing_data, 2, 10),
    "out_of_memory": (damage.out_of_memory, 0, 0),
    "weights": (hostile.weights, 0, 0),
    "archives": (hostile.archives, 0, 0),
    "pictures": (hostile.pictures, 300, 10_000),
    "recipes": (hostile.recipes, 0, 0),
    "names": (hostile.names, 0, 0),
    "numbers": (numerics.numbers, 0, 0),
    "caches": (together.caches, 3, 20),
    "same_runs": (together.same_runs, 1, 5),
}
for grammar in fuzz.GRAMMARS:
    FAULTS[f"fuzz_{grammar}"] = (fuzz.fault(grammar), 60, 2000)


def main() -> int:
    if sys.argv[1:2] == ["fuzz"]:
        return fuzz.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="all tries; minutes")
    parser.add_argument("--tries", type=int, help="so many of each, where there is no fixed list")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    args = parser.parse_args()
    rows = {}
    print(f"{'kind':52} {'tries':>6} {'survived':>8} {'lost':>5} {'seconds':>8}")
    for name in args.only:
        fault, quick, long = FAULTS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bayesncl-faults-") as top:
            Path(top).chmod(0o755)
            folder = Path(top) / name
            folder.mkdir()
            tries = args.tries or (long if args.long else quick)
            outcome = fault(tries, folder, random.Random(args.seed))
        lost, seconds = len(outcome.lost), time.monotonic() - began
        print(f"{outcome.kind:52} {outcome.tries:6} {outcome.tries - lost:8} {lost:5} {seconds:8.1f}", flush=True)
        for text in outcome.lost[:10]:
            print(f"    {text}", flush=True)
        rows[name] = {
            "kind": outcome.kind,
            "tries": outcome.tries,
            "survived": outcome.tries - lost,
            "lost": outcome.lost,
            "seconds": round(seconds, 1),
        }
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(row["lost"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
