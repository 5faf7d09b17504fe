"""The paper's claims as differences between two rows of a table, and whether our runs agree."""

from __future__ import annotations

from dataclasses import dataclass

from bayesncl.paper.cells import FAST_PROBE, NOT_RUN, Cell, Entries, lines_of, mean, spread
from bayesncl.paper.experiments import ACCURACIES

Side = tuple[str, dict[str, float]]  # a method and values of the table's axes


@dataclass(frozen=True)
class Claim:
    """First minus second has the sign `sign`; sign 0: they differ by at most one point."""

    sentence: str
    table: str
    column: str
    first: Side
    second: Side
    sign: int


OURS: Side = ("bayesncl", {})
NCL: Side = ("ncl", {})
PRIORS = {rho: ("bayesncl", {"rho": rho}) for rho in (0.1, 0.4, 0.5, 0.8)}
LATE = {method: (method, {"epoch": 100.0}) for method in ("ncl", "bayesncl")}
CONSISTENCY = ("interpretability", "consistency", OURS)
CLAIMS = (
    Claim("BayesNCL's dimensions are more consistent than NCL's", *CONSISTENCY, NCL, 1),
    Claim("... and than those of NCL+TopK", *CONSISTENCY, ("ncl-topk", {}), 1),
    Claim("... and than those of Gumbel-Sigmoid gates", *CONSISTENCY, ("bayesncl-gs", {}), 1),
    Claim(
        "BayesNCL's dimensions have the lower class entropy H_f",
        "interpretability", "entropy_freq", OURS, NCL, -1,
    ),
    Claim("Probe accuracy is kept (within a point)", "downstream", "acc1", OURS, NCL, 0),
    Claim("Retrieval with 128 dimensions is better (P@5)", "downstream", "p@5", OURS, NCL, 1),
    Claim(
        "Gates weaken the tie of frequency and gradient variance (epoch 100)",
        "gradients", "af_gv", LATE["bayesncl"], LATE["ncl"], -1,
    ),
    Claim(
        "Hard gates are more consistent than soft ones",
        "gating", "consistency", OURS, ("bayesncl-soft", {}), 1,
    ),
    Claim(
        "A prior of 0.8 is more consistent than one of 0.1",
        "prior", "consistency", PRIORS[0.8], PRIORS[0.1], 1,
    ),
    Claim(
        "A prior of 0.5 is more consistent than one of 0.4",
        "prior", "consistency", PRIORS[0.5], PRIORS[0.4], 1,
    ),
)  # fmt: skip


def claim_row(claim: Claim, entries: Entries) -> list[str]:
    """Sentence, published difference, ours by both definitions, and whether it holds by each."""
    lines = lines_of(claim.table, entries)

    def cell(method: str, axes: dict[str, float]) -> Cell:
        return next(
            line.cells[claim.column]
            for line in lines
            if line.row.method == method and axes.items() <= line.row.axes.items()
        )

    a, b = cell(*claim.first), cell(*claim.second)
    known = a.published is not None and b.published is not None
    published = f"{a.published - b.published:+.2f}" if known else ""  # type: ignore[operator]
    ours, sound = difference(a.ours, b.ours), difference(a.sound, b.sound)
    probe = FAST_PROBE if claim.column in ACCURACIES and sound.value is not None else ""
    verdicts = [d.verdict(claim.sign) for d in (ours, sound)]
    return [claim.sentence, published, ours.text, sound.text + probe, *verdicts]


@dataclass(frozen=True)
class Difference:
    """Difference of two means over runs and its standard error; None where a side has no run."""

    value: float | None
    error: float | None

    @property
    def text(self) -> str:
        """With its sign and its error."""
        if self.value is None:
            return NOT_RUN
        return f"{self.value:+.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")

    def verdict(self, sign: int) -> str:
        """Whether the difference has the sign; for sign 0, whether it is within a point."""
        if self.value is None:
            return ""
        if sign == 0:
            holds = "yes" if abs(self.value) <= 1 else "no"
            return holds + (" (one run)" if self.error is None else "")
        if self.error is None:
            return "sign only" if self.value * sign > 0 else "no (one run)"
        if abs(self.value) <= 2 * self.error:
            return "no difference seen"
        return "yes" if self.value * sign > 0 else "no, the reverse"


def difference(a: tuple[float, ...], b: tuple[float, ...]) -> Difference:
    """Difference of the means of two sets of runs; with an error if each has two or more."""
    if not a or not b:
        return Difference(None, None)
    both = len(a) > 1 and len(b) > 1
    error = (spread(a) ** 2 / len(a) + spread(b) ** 2 / len(b)) ** 0.5 if both else None
    return Difference(mean(a) - mean(b), error)
