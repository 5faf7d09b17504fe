"""Do the dimensions of readable codes come back: from another seed, another start, another encoder?

    python benchmarks/again.py CODES --other CODES2          # folders that bayesncl fit RUN wrote, of two encoders
    python benchmarks/again.py train.npz test.npz            # arrays z [N, F] and y [N] in each

Columns of two codes are matched on the rows that were held out. Prints the mean cosine, and the share of dimensions
whose partner has .7 or more, beside two untrained heads; for whole codes, and with the five strongest kept of each row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from readable import K, find, fit, load_rows

from bayesncl.measure import topk as kept
from bayesncl.measure.columns import stability
from bayesncl.method.heads import HEADS, Prototypes, random_unit_rows


class Elsewhere(Prototypes):
    """Prototypes that begin in other directions."""

    @torch.no_grad()
    def start(self, h: torch.Tensor) -> None:
        super().start(h)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            self.prototypes.copy_(random_unit_rows(*self.prototypes.shape))


HEADS["elsewhere"] = Elsewhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="a folder of codes, or rows to fit on and to judge by")
    parser.add_argument("--other", type=Path, nargs="+", help="the same images by another encoder")
    parser.add_argument("--dim", type=int, default=1024)
    options = parser.parse_args()

    def codes(paths: list[Path], seed: int, method: str = "prototypes") -> list[np.ndarray]:
        """Codes of the rows to judge by: trained, untrained."""
        (train, _), (test, _) = load_rows(paths[0], paths[1] if len(paths) > 1 else None)
        near = find(train, 100)
        changes = {"method": method}
        fits = [fit(changes | more, options.dim, seed, train, near)[0] for more in ({}, {"max_iter": 0})]
        return [each.transform(test) for each in fits]

    first = codes(options.rows, 0)
    pairs: dict[str, tuple[Any, ...]] = {
        "another seed, the same start": (options.rows, 1),
        "another seed and start": (options.rows, 1, "elsewhere"),
    }
    if options.other:
        pairs["another encoder"] = (options.other, 0)
    for name, arguments in pairs.items():
        second = codes(*arguments)
        for label, cut in (("all", lambda z: z), (f"{K} kept", lambda z: kept.keep(z, K).toarray())):
            (z, untrained), (other, beside) = (map(cut, each) for each in (first, second))
            both = stability(z, other), stability(untrained, beside)
            texts = [f"{found['mean_cosine']:.2f} ({found['share_same']:.0%})" for found in both]
            print(f"{name:30} {label:7} {texts[0]:12} untrained {texts[1]}", flush=True)


if __name__ == "__main__":
    main()
