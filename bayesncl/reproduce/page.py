"""docs/results.md, generated from the ledger: every table and figure, theirs next to ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..data import DATASETS
from ..files import write_atomic
from ..measure import measures
from ..measure.counts import MIN_SUPPORT
from ..measure.interpretability import MATCHED, at_l0
from ..progress import plural
from ..report.tables import write as write_table
from . import figures, ledger
from .experiments import EXPERIMENTS, PAIR, Experiment, paper, title
from .tables import FAST, NOT_RUN, Cell, Entries, Line, lines_of, mean, sections, spread, summary, text

INTRO = """# Results

What we found when we ran the paper's experiments ourselves. The ledger holds {runs}.
Tables and figures are generated from [results/](../results) by `bayesncl reproduce all --dry-run --pages docs`; the
sentences beside them are written by hand.

## What was found

{findings}
"""

READING = f"""## How to read the tables

Each row of a table of the paper has up to three lines:

- **paper**: the published value.
- **ours**: our runs by the paper's own definition of the measure, mean ± standard deviation over seeds, and the number
  of runs. ▲ or ▼: above or below the published value by more than twice that deviation (marked from two runs on).
  {FAST}: the published 50-epoch probe was not run; the accuracy is that of a logistic regression on the same features.
- **sound**: the same runs measured soundly: model in eval mode, the data set's own pixel statistics, dimensions count
  if they fire on at least {MIN_SUPPORT} test images, the query itself left out of retrieval by identity, a probe with a
  penalty chosen on held-out images. [measures.md](measures.md) has the definitions.

A row without a run says so ({NOT_RUN}).
"""

# What `sound` says beyond the paper's measures, and with how many decimals; shares are shown as percent.
SOUND = {
    measures.named(key): decimals
    for key, decimals in (
        ("consistency", 2), ("consistency_mass", 2), *((at_l0(n), 2) for n in MATCHED), ("l0", 1),
        ("near_dead_share", 1), ("dead_share", 1), ("detector_ap", 3), ("classes_owned", 1),
    )
}  # fmt: skip

Measures = dict[str, Any]  # of a run, as the ledger has them
Side = tuple[str, dict[str, float]]  # a method, and the value of what the table varies
markdown = partial(write_table, kind="markdown", left=1)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a difference of two rows: first minus second has `sign`, or 0: is within a point."""

    sentence: str
    table: str
    column: str
    first: Side
    second: Side
    sign: int


OURS: Side = ("bayesncl", {})
NCL: Side = ("ncl", {})
TIE = "Gates weaken the tie of frequency and gradient variance (epoch 100)"
PRIOR = "A prior of 0.8 is more consistent than one of 0.1"
CLAIMS = (
    Claim("BayesNCL's dimensions are more consistent than NCL's", "interpretability", "consistency", OURS, NCL, 1),
    Claim("... and than those of NCL+TopK", "interpretability", "consistency", OURS, ("ncl-topk", {}), 1),
    Claim("BayesNCL's dimensions have the lower class entropy H_f", "interpretability", "entropy_freq", OURS, NCL, -1),
    Claim("Probe accuracy is kept (within a point)", "downstream", "acc1", OURS, NCL, 0),
    Claim("Retrieval with 128 dimensions is better (P@5)", "downstream", "p@5", OURS, NCL, 1),
    Claim(TIE, "gradients", "af_gv", ("bayesncl", {"epoch": 100}), ("ncl", {"epoch": 100}), -1),
    Claim("Hard gates are more consistent than soft ones", "gating", "consistency", OURS, ("bayesncl-soft", {}), 1),
    Claim(PRIOR, "prior", "consistency", ("bayesncl", {"rho": 0.8}), ("bayesncl", {"rho": 0.1}), 1),
)


def write(folder: Path, entries: list[ledger.Entry]) -> Path:
    """Write results.md and figures/ into a folder.

    Sheets of test images are not among the figures: the images are not ours to publish.
    """
    found = ledger.by_setting(entries)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    files = {name: folder / "figures" / figures.file_name(name) for name in figures.FIGURES}
    drawn = {name: path.name for name, path in files.items() if figures.draw(name, found, path)}
    path = folder / "results.md"
    write_atomic(path, render(entries, found, drawn))
    return path


def render(entries: list[ledger.Entry], found: Entries, drawn: dict[str, str]) -> str:
    """The page as Markdown."""
    findings = "\n".join(f"- {finding}" for finding in notes()["findings"] if entries)
    parts = [INTRO.format(runs=ledger_summary(entries), findings=findings).rstrip() + "\n", at_a_glance(found)]
    parts += [where_the_gain_comes_from(found, drawn), where_retrieval_gains(found), READING]
    parts += [table_part(e, found) for e in EXPERIMENTS.values() if not e.is_figure]
    parts += [figure_part(e, found, drawn) for e in EXPERIMENTS.values() if e.is_figure and e.name != "figure-support"]
    return "\n".join(parts).rstrip() + "\n"


def ledger_summary(entries: list[ledger.Entry]) -> str:
    """Number of runs by data set and device."""
    if not entries:
        return "no runs yet"
    sets = Counter(entry["recipe"]["data"]["name"] for entry in entries)
    devices = sorted({entry["environment"]["device"] for entry in entries})
    counted = ", ".join(f"{n} on {DATASETS[name].title}" for name, n in sorted(sets.items()))
    return f"{plural(len(entries), 'run')} ({counted}; trained on {', '.join(devices)})"


def at_a_glance(found: Entries) -> str:
    """What the paper claims of CIFAR-100, and whether our runs agree."""
    rows = [claim_row(claim, found) for claim in CLAIMS]
    head = ["the paper's claim, CIFAR-100", "paper", "ours", "sound", "holds in ours", "holds in sound"]
    return (
        "## The paper's claims\n\nEach claim is a difference between two rows of a table. It holds if our difference "
        "has its sign and exceeds twice its standard error over seeds; with one run on either side only the sign is "
        "compared. A claim that something is kept holds if the difference is within a point.\n\n"
        + markdown(head, rows)
    )


def claim_row(claim: Claim, found: Entries) -> list[str]:
    """A claim, the published difference, ours by both definitions, and whether it holds by each."""
    lines = lines_of(claim.table, found)

    def side(method: str, axes: dict[str, float]) -> Cell:
        of_method = (line for line in lines if line.row.method == method)
        return next(line.cells[claim.column] for line in of_method if axes.items() <= line.row.axes.items())

    a, b = side(*claim.first), side(*claim.second)
    theirs = f"{a.published - b.published:+.2f}" if a.published is not None and b.published is not None else ""
    ours, sound = difference(a.ours, b.ours), difference(a.sound, b.sound)
    marked = ours.text + (FAST if FAST in (a.mark, b.mark) and ours.value is not None else "")
    return [claim.sentence, theirs, marked, sound.text, *(d.verdict(claim.sign) for d in (ours, sound))]


@dataclass(frozen=True)
class Difference:
    """Of two means over runs, with its standard error; None where a side has no run."""

    value: float | None
    error: float | None

    @property
    def text(self) -> str:
        """With its sign and its error."""
        if self.value is None:
            return NOT_RUN
        return f"{self.value:+.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")

    def verdict(self, sign: int) -> str:
        """Yes, no or open; of a sign of 0, whether the difference is within a point."""
        if self.value is None:
            return ""
        if sign == 0:
            return ("yes" if abs(self.value) <= 1 else "no") + (" (one run)" if self.error is None else "")
        if self.error is None:
            return "sign only" if self.value * sign > 0 else "no (one run)"
        if abs(self.value) <= 2 * self.error:
            return "no difference seen"
        return "yes" if self.value * sign > 0 else "no, the reverse"


def difference(a: tuple[float, ...], b: tuple[float, ...]) -> Difference:
    """Of the means of two sets of runs; with an error if each has two or more."""
    if not a or not b:
        return Difference(None, None)
    both = len(a) > 1 and len(b) > 1
    error = (spread(a) ** 2 / len(a) + spread(b) ** 2 / len(b)) ** 0.5 if both else None
    return Difference(mean(a) - mean(b), error)


def where_the_gain_comes_from(found: Entries, drawn: dict[str, str]) -> str:
    """Consistency by minimum support, and the sound measures of the main methods."""
    opening = (
        "## Where the consistency gain comes from\n\nBy the paper's definition a dimension that fires on one image "
        "is perfectly consistent. The figure asks for more: consistency over the dimensions that fire on at least *s* "
        "test images, for *s* from 1 to 100 (CIFAR-100, eval mode, one line per seed).\n"
    )
    lines = lines_of("interpretability", found)
    drawing = drawn.get("figure-support")
    figure = f"![Consistency by minimum support](figures/{drawing})\n" if drawing else ""
    legend = (
        "The sound measures of the main methods. *At L0 k*: all features cut at one threshold that leaves *k* active "
        "dimensions per image; *AP*: average precision of a dimension as a detector of its best class.\n"
    )
    parts = [opening, figure, support_table(lines), shuffled_table(lines)]
    parts += [folded("every sound measure of the main methods", f"{legend}\n{sound_table(lines)}")]
    parts += [gate_use(lines), *notes_on("figure-support")]
    return "\n".join(part for part in parts if part)


def by_method(
    lines: list[Line], cells: Callable[[list[Measures]], list[str]], methods: Sequence[str] = ()
) -> list[list[str]]:
    """Rows of a table: method, what `cells` makes of the measures of its runs, number of runs."""
    rows = []
    for line in lines:
        if not methods or line.row.method in methods:
            runs = [entry["measures"] for entry in line.runs]
            rows.append([paper()["methods"][line.row.method], *cells(runs), str(len(runs) or NOT_RUN)])
    return rows


def support_table(lines: list[Line]) -> str:
    """Consistency by minimum support, mean over seeds."""
    shown = ("1", "2", "5", "10", "20", "50", "100")

    def cells(runs: list[Measures]) -> list[str]:
        curves = [run["curves"]["consistency_by_support"] for run in runs]
        return [summary([c[s] for c in curves if c.get(s) is not None], 2) for s in shown]

    return markdown(["support at least", *shown, "runs"], by_method(lines, cells, PAIR))


def shuffled_table(lines: list[Line]) -> str:
    """Consistency by the paper's definition beside what it gives for labels that mean nothing."""

    def cells(runs: list[Measures]) -> list[str]:
        both = [(run["paper"]["consistency"], run["chance"]["paper"]["consistency"]) for run in runs]
        rows = [(a, b, a - b) for a, b in both if a is not None and b is not None]
        return [summary([row[i] for row in rows], 2) for i in range(3)]

    opening = (
        "A dimension that fires on one image is as consistent if the labels mean nothing. The paper's definition, with "
        "the labels and with them shuffled among the test images:\n"
    )
    head = ["method", "Cons.", "labels shuffled", "difference", "runs"]
    return opening + "\n" + markdown(head, by_method(lines, cells))


def sound_table(lines: list[Line]) -> str:
    """Every sound measure of the main methods, with the level shuffled labels give."""
    mixed = by_method(lines, lambda runs: _sound_cells([run["chance"]["sound"] for run in runs]), PAIR)
    beside = {row[0]: [f"{row[0]}, labels shuffled", *row[1:-1], ""] for row in mixed if row[-1] != NOT_RUN}
    rows = []
    for row in by_method(lines, lambda runs: _sound_cells([run["sound"] for run in runs])):
        rows += [row, beside[row[0]]] if row[0] in beside else [row]
    return markdown(["method", *(measure.short for measure in SOUND), "runs"], rows)


def gate_use(lines: list[Line]) -> str:
    """How much of what would fire the gates of the trained BayesNCL close."""
    (line,) = (line for line in lines if line.row.method == "bayesncl")
    gates = [entry["measures"]["gates"] for entry in line.runs]
    closed = [100 * (1 - g["open_where_active"]) for g in gates if g["open_where_active"] is not None]
    if not closed:
        return ""
    share = summary(closed, 1)
    return f"The gates of the trained BayesNCL close {share} % of the features that would fire on the test images.\n"


def _sound_cells(runs: list[dict[str, Any]]) -> list[str]:
    cells = []
    for measure, decimals in SOUND.items():
        factor = 100 if measure.unit == "share" else 1
        cells.append(summary([factor * run[measure.key] for run in runs if run.get(measure.key) is not None], decimals))
    return cells


def where_retrieval_gains(found: Entries) -> str:
    """Retrieval by the number of kept dimensions, beside the number a model has in use."""
    opening = (
        "## Where the retrieval gain comes from\n\nA fixed number of kept dimensions is a larger share of a model that "
        "has fewer in use. Precision at 5 with the strongest dimensions, measured soundly (CIFAR-100), beside the "
        f"number of dimensions that fire on at least {MIN_SUPPORT} test images:\n"
    )
    shown = ("32", "64", "96", "128", "192", "256")

    def cells(runs: list[Measures]) -> list[str]:
        used = [float(run["curves"]["dimensions_by_support"][str(MIN_SUPPORT)]) for run in runs]
        kept = [run["curves"]["retrieval_sound"] for run in runs]
        return [summary(used, 0), *(summary([by[k]["5"] for by in kept if k in by], 2) for k in shown)]

    rows = by_method(lines_of("interpretability", found), cells)
    return opening + "\n" + markdown(["method", "in use", *(f"K {k}" for k in shown), "runs"], rows)


def table_part(experiment: Experiment, found: Entries) -> str:
    """A table of the paper: what is to be said of it, then the numbers, folded; data sets without a run come last."""
    parts = [f"## {experiment.name}\n", f"{title(experiment)}.\n", *notes_on(experiment.name)]
    for section in sorted(sections(experiment, found), key=lambda section: not section.runs):
        header, rows = text(section)
        done, all_of_them = sum(bool(line.runs) for line in section.lines), len(section.lines)
        state = NOT_RUN if not done else "all rows run" if done == all_of_them else f"{done} of {all_of_them} rows run"
        parts.append(folded(f"{DATASETS[section.dataset].title}: {state}", markdown(header, rows, left=2)))
    return "\n".join(parts)


def folded(summary: str, body: str) -> str:
    """What a reader opens who wants it."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def figure_part(experiment: Experiment, found: Entries, drawn: dict[str, str]) -> str:
    """A figure, or that it was not run; in place of a sheet of images, the classes of its images."""
    parts = [f"## {experiment.name}\n", f"{title(experiment)}, CIFAR-100.\n", *notes_on(experiment.name)]
    if experiment.name in drawn:
        parts.append(f"![{title(experiment)}](figures/{drawn[experiment.name]})\n")
    elif experiment.name in figures.SHEETS and (entry := figures.sheet_entry(experiment.name, found)) is not None:
        draw = f"`bayesncl reproduce {experiment.name} --data DIR` draws them"
        parts.append(f"{draw}; the images are not ours to publish.\n")
        table = exemplar_table(figures.SHEETS[experiment.name], entry)
        parts.append(folded("the dimensions and the classes of their images", table))
    else:
        parts.append(f"{NOT_RUN.capitalize()}.\n")
    return "\n".join(parts)


def exemplar_table(kind: str, entry: ledger.Entry) -> str:
    """The dimensions of a sheet and the classes of their strongest images."""
    value = "class entropy of its mass (nats)" if kind == "high_entropy" else "closed where it would fire"
    chosen = entry["exemplars"][kind]
    rows = [[str(d["dim"]), f"{d['value']:.2f}", str(d["support"]), ", ".join(d["classes"])] for d in chosen]
    return markdown(["dimension", value, "fires on", "classes of its strongest test images"], rows)


def notes() -> dict[str, list[str]]:
    """Sentences on what differs and what was checked, by table; under `findings` what was found in all."""
    return json.loads((Path(__file__).parent / "notes.json").read_text())


def notes_on(name: str) -> list[str]:
    """Those of one table, a paragraph each."""
    return [f"{note}\n" for note in notes().get(name, [])]
