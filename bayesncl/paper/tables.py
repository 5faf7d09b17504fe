"""The paper's tables: which runs each needs, and published numbers next to ours.

paper.json holds the published numbers, our two tables without published ones, the figures and the
claims. A row of a table names a method, a dataset and the values of the table's axes; `rows` turns
it into a recipe, and `fill` puts the measures of its runs in the ledger beside the published ones.
"""

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean as mean
from typing import Any, NamedTuple

from bayesncl.errors import InputError
from bayesncl.measure.result import look_up
from bayesncl.paper import ledger
from bayesncl.paper.cost import multiply_adds
from bayesncl.recipes import Recipe, change, did_you_mean, named, replace_fields

PAPER: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text("utf-8"))
METHODS: dict[str, str] = PAPER["methods"]  # titles
TABLES: dict[str, Any] = PAPER["tables"]
AXES: dict[str, Any] = PAPER["axes"]  # name, if it has another; field of a recipe; smoke values
COLUMNS: dict[str, Any] = PAPER["columns"]  # symbol, decimals, and where an entry has its values

SCALES = ("paper", "smoke")
MAIN = "cifar100"  # dataset of the claims and the figures
DATASET_ORDER = ("cifar100", "cifar10", "imagenet100", "waterbirds", "scenes")
ACCURACIES = ("acc1", "acc5")  # columns that need the published probe
PROBE = "measures/probe/paper"  # where an entry has it
PAIR = ("ncl", "bayesncl")

# A smoke run takes seconds on a CPU, with the small backbone. Of each axis it keeps the first and
# the last value, replaced by smoke values where the published ones are too large.
SMOKE = (
    "data.size=16", "views.size=16", "data.train_images=128", "data.test_images=100",
    "model.hidden=32", "model.dim=32",
    "run.batch=64", "run.epochs=2", "run.log_every=1", "run.checkpoint_every=1",
)  # fmt: skip
TIME = "running_time_min"
NOT_RUN = "not run"
FAST_PROBE = "†"  # marks accuracies of the logistic regression

Entries = dict[str, list[ledger.Entry]]  # by setting


class Experiment(NamedTuple):
    """One table or figure."""

    name: str  # as on the command line
    title: str
    tables: Sequence[str]  # tables of paper.json whose rows it shows
    columns: Sequence[str]  # measures it shows
    seeds: Sequence[int] = (0,)  # of every row
    methods: Sequence[str] = ()  # rows to keep; empty: all
    changes: Sequence[str] = ()  # of every recipe at paper scale, as on the command line
    overrides: Sequence[str] = ()  # the user's changes, at any scale
    smoke: bool = False  # at smoke scale: tiny runs on scenes, see `SMOKE`

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure-")

    @property
    def background(self) -> str | None:
        """Key of the background probe it shows, or None."""
        branch, _, rest = (self.branches[0] or "").partition("/")
        return rest.partition("/")[0] if branch == "extra" else None

    @property
    def branches(self) -> list[str | None]:
        """By column the branch of an entry that it is taken from; None for counted operations."""
        paths = (COLUMNS[column].get("ours") for column in self.columns)
        return [path and re.split(r"/\{|/[^/]*$", path)[0] for path in paths]


def _experiment(name: str, about: dict[str, Any]) -> Experiment:
    tables = about.get("tables", [name])
    options = {key: about[key] for key in ("seeds", "methods", "changes") if key in about}
    return Experiment(name, about["title"], tables, TABLES[tables[0]]["columns"], **options)


EXPERIMENTS = {name: _experiment(name, a) for name, a in (TABLES | PAPER["figures"]).items()}


class Row(NamedTuple):
    """A row of a table and the runs behind it."""

    method: str
    dataset: str
    axes: dict[str, float]
    recipe: Recipe  # with seed 0
    published: dict[str, float | None]  # by column
    runs: Sequence[ledger.Entry] = ()  # by seed

    def values(self, column: str, source: str) -> tuple[float, ...]:
        """Its numbers as `published` (one or none), `ours` or `sound` (one per run)."""
        if source == "published":
            return _known([self.published.get(column)])
        if column == "flops":  # counted over both views of an image; per batch where that varies
            count = _macs(replace_fields(self.recipe, run={"batch": 2}))
            return (float(count) * self.axes.get("batch_size", 1),) if source == "ours" else ()
        path = COLUMNS[column].get(source)
        found = () if path is None else self.measured(path.format(**self.axes))
        if column == TIME and found:
            return (min(found) / 60,)  # the others may have shared their GPU
        return found

    def measured(self, path: str) -> tuple[float, ...]:
        """The values at a path such as ``measures/paper/consistency``, of the runs that have it."""
        return _known(measured(entry, path) for entry in self.runs)

    def text(self, column: str, source: str) -> str:
        """A cell of the printed table."""
        decimals, found = COLUMNS[column]["decimals"], self.values(column, source)
        shown, accuracy = summary(found, decimals), column in ACCURACIES
        if source == "published":
            return shown or "–"
        if source == "sound":
            return shown + FAST_PROBE * bool(accuracy and shown)
        published = self.values(column, "published")
        if not shown:
            return NOT_RUN if published else ""
        if accuracy and len(found) < len(self.runs):
            shown += f" ({len(found)} of {len(self.runs)} runs)"
        if published and len(found) > 1 and column != TIME:
            # is the gap more than twice the spread, beyond the rounding of the published value?
            unit = 1e-3 * published[0] if decimals is None else 10.0**-decimals
            gap = mean(found) - published[0]
            if abs(gap) > 2 * spread(found) + unit / 2:
                shown += " ▲" if gap > 0 else " ▼"
        return shown


Table = dict[str, list[Row]]  # by dataset


def choose(
    name: str | None, seeds: str = "", changes: Sequence[str] = (), smoke: bool = False
) -> list[Experiment]:
    """The experiments of a name (None or `all`: every one), with seeds such as 0,1 and changes."""
    if name not in (None, "all", *EXPERIMENTS):
        raise InputError(f"no table or figure {name!r}{did_you_mean(str(name), EXPERIMENTS)}")
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed)
    except ValueError:
        raise InputError(f"seeds must be whole numbers such as 0,1,2, got {seeds!r}") from None
    return [
        e._replace(seeds=numbers or e.seeds, overrides=tuple(changes), smoke=smoke)
        for e in EXPERIMENTS.values()
        if name in (None, "all", e.name)
    ]


def runs(experiment: Experiment) -> list[Recipe]:
    """The runs of an experiment in the order to do them: by dataset, first seeds first."""
    seeds = experiment.seeds[:1] if experiment.smoke else experiment.seeds
    recipes = [row.recipe for row in rows(experiment)]
    todo = [replace_fields(recipe, run={"seed": seed}) for seed in seeds for recipe in recipes]
    todo.sort(key=lambda recipe: DATASET_ORDER.index(recipe.data.name))
    return list({recipe.to_json(): recipe for recipe in todo}.values())


def rows(experiment: Experiment) -> list[Row]:
    """Every row of an experiment, in the paper's order."""
    found = []
    for table in (TABLES[name] for name in experiment.tables):
        for row in _smoke_rows(table) if experiment.smoke else table["rows"]:
            if not experiment.methods or row["method"] in experiment.methods:
                axes = {axis: row[axis] for axis in table["axes"]}
                published = {column: row.get(column) for column in table["columns"]}
                dataset = None if experiment.smoke else table.get("pretrained_on")
                recipe = _recipe(experiment, dataset or row["dataset"], row["method"], axes)
                found.append(Row(row["method"], row["dataset"], axes, recipe, published))
    return found


def _smoke_rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the first dataset at the ends of the axes, as rows of scenes."""
    first = [row for row in table["rows"] if row["dataset"] == table["rows"][0]["dataset"]]
    values = {}  # of smoke runs by axis and published value
    for axis in table["axes"]:
        low, high = (end(row[axis] for row in first) for end in (min, max))
        small, large = AXES[axis].get("smoke", (low, high))
        values[axis] = {high: large} | {low: small}
    return [
        {"method": row["method"], "dataset": "scenes"} | {a: values[a][row[a]] for a in values}
        for row in first
        if all(row[axis] in known for axis, known in values.items())
    ]


def _recipe(experiment: Experiment, dataset: str, method: str, axes: dict[str, float]) -> Recipe:
    """The recipe of a row, with the values of its axes."""
    base, *changes = PAPER["variants"].get(method, (method,))
    recipe, smoke = named(f"{dataset}-{base}"), experiment.smoke
    fields = [f"{AXES[a]['field']}={value}" for a, value in axes.items() if "field" in AXES[a]]
    if smoke:
        changes = [*SMOKE, *changes, *fields, *["model.top_k=26"] * (method == "ncl-topk")]
    else:
        changes += [*fields, *experiment.changes]
    # the main runs also record the gradient dynamics, which changes no weight
    if method in PAIR and (smoke or (dataset == MAIN and change(recipe, fields) == recipe)):
        changes.append(f"run.dynamics_every={1 if smoke else 10}")
    return change(recipe, [*changes, *experiment.overrides])


def fill(experiment: Experiment, entries: Entries) -> Table:
    """The table by dataset: those with runs first, then that of the claims.

    Measures that the paper never gives for a dataset are left out.
    """
    table: Table = {}
    every = rows(experiment)
    for dataset in sorted({row.dataset for row in every}, key=DATASET_ORDER.index):
        mine = [row for row in every if row.dataset == dataset]
        given = [c for c in experiment.columns if any(r.published[c] is not None for r in mine)]
        table[dataset] = [
            row._replace(
                runs=_measured_runs(row, experiment, entries),
                published={column: row.published[column] for column in given or experiment.columns},
            )
            for row in mine
        ]
    return dict(sorted(table.items(), key=lambda item: not has_runs(item[1])))


def _measured_runs(row: Row, experiment: Experiment, entries: Entries) -> list[ledger.Entry]:
    """The runs of a row that have something to show: gradient dynamics are of some runs only."""
    return [
        entry
        for entry in entries.get(ledger.setting(row.recipe), [])
        if any(path is None or measured(entry, path) for path in experiment.branches)
    ]


def has_runs(lines: list[Row]) -> bool:
    """Whether a row has a run."""
    return any(row.runs for row in lines)


@cache
def _macs(recipe: Recipe) -> int:
    return sum(multiply_adds(recipe).values())


def measured(entry: ledger.Entry, path: str) -> Any:
    """The value at a path in an entry, with records by their epoch and theory by statement."""
    measures = entry["measures"]
    theory = {row["statement"]: row for row in measures.get("theory", [])}
    dynamics = {str(record["epoch"]): record for record in entry["dynamics"]}
    tree = {**entry, "measures": {**measures, "theory": theory}, "dynamics": dynamics}
    return look_up(tree, path.split("/"))


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def count_filled(entries: Entries) -> tuple[int, int]:
    """How many published numbers have a run of ours beside them, and how many there are."""
    tables = [lines for name in TABLES for lines in fill(EXPERIMENTS[name], entries).values()]
    filled = [
        bool(row.runs and row.values(column, "ours"))
        for row in chain.from_iterable(tables)
        for column, published in row.published.items()
        if published is not None
    ]
    return sum(filled), len(filled)


def text(lines: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text: `paper`, `ours` and `sound` for each row of one dataset."""
    columns = list(lines[0].published)
    in_paper = any(row.values(c, "published") for row in lines for c in columns)
    body = []
    for row in lines:
        has = {s: any(row.values(c, s) for c in columns) for s in ("ours", "sound")}
        sources = ["published"] if in_paper else []
        if row.runs or not in_paper or has["ours"]:
            sources.append("ours")
        count = {sources[-1]: str(len(row.runs) or NOT_RUN)}
        if has["sound"]:
            sources.append("sound")
        for source in sources:
            head = label(row) if source == sources[0] else ""
            shown = [row.text(column, source) for column in columns]
            body.append([head, source.replace("published", "paper"), *shown, count.get(source, "")])
    return ["method", "", *(COLUMNS[c]["symbol"] for c in columns), "runs"], body


def label(row: Row) -> str:
    """Method and values of the table's axes."""
    axes = [f"{AXES[a].get('name', a)} {value:g}" for a, value in row.axes.items() if a != "layers"]
    return ", ".join([METHODS[row.method], *axes])


def number(value: float, decimals: int | None) -> str:
    """A measure with so many decimals; None: operations, in G or T."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value / 1e12:.3f} T" if value >= 1e12 else f"{value / 1e9:.3f} G"


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds (n - 1); 0 for one run."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def summary(values: Sequence[float], decimals: int | None) -> str:
    """Mean ± spread over seeds; the mean alone for one run, empty for none."""
    if not values:
        return ""
    center = number(mean(values), decimals)
    return f"{center} ± {number(spread(values), decimals)}" if len(values) > 1 else center


def claim_row(claim: dict[str, Any], every: dict[str, Table], dataset: str) -> list[str]:
    """A claim of the paper: sentence, published difference, ours and sound, whether each holds.

    Empty where the paper has no numbers of a dataset.
    """
    column, lines = claim["column"], every[claim["table"]].get(dataset, [])
    pair = [
        row for side in ("first", "second") for row in lines
        if claim[side].items() <= ({"method": row.method} | row.axes).items()
        and row.published.get(column) is not None
    ]  # fmt: skip
    if len(pair) < 2:
        return []
    published, ours, sound = (
        [row.values(column, source) for row in pair] for source in ("published", "ours", "sound")
    )
    (gap, holds), (sound_gap, sound_holds) = (
        compare(first, second, claim["sign"]) for first, second in (ours, sound)
    )
    if column in ACCURACIES and sound_gap != NOT_RUN:
        sound_gap += FAST_PROBE
    return [
        claim["sentence"], f"{published[0][0] - published[1][0]:+.2f}", gap, sound_gap, holds,
        sound_holds,
    ]  # fmt: skip


def compare(a: Sequence[float], b: Sequence[float], sign: int) -> tuple[str, str]:
    """Difference of the means over runs, and whether it has the sign; 0: is within a point.

    The standard error, where each side has two or more runs, is that of the difference.
    """
    if not a or not b:
        return NOT_RUN, ""
    gap = mean(a) - mean(b)
    several = len(a) > 1 and len(b) > 1
    error = (spread(a) ** 2 / len(a) + spread(b) ** 2 / len(b)) ** 0.5
    text = f"{gap:+.2f} ± {error:.2f}" if several else f"{gap:+.2f}"
    if sign == 0:
        return text, ("yes" if abs(gap) <= 1 else "no") + ("" if several else " (one run)")
    if not several:
        return text, "sign only" if gap * sign > 0 else "no (one run)"
    if abs(gap) <= 2 * error:
        return text, "no difference seen"
    return text, "yes" if gap * sign > 0 else "no, the reverse"
