"""The experiments as data: which runs each table and figure of the paper needs.

paper.json holds the published numbers, our two tables without published ones, the figures and the
claims. A row of a table names a method, a dataset and the values of the table's axes; `rows` turns
it into a recipe.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesncl.errors import InputError
from bayesncl.recipes import Recipe, change, did_you_mean, named, replace_fields

PAPER: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text("utf-8"))
METHODS: dict[str, str] = PAPER["methods"]  # titles
TABLES: dict[str, Any] = PAPER["tables"]

SCALES = ("paper", "smoke")
MAIN = "cifar100"  # dataset of the claims and the figures
DATASET_ORDER = ("cifar100", "cifar10", "imagenet100", "waterbirds", "scenes")
AXIS_FIELDS = {
    "dim": "model.dim",
    "rho": "gate.prior",
    "lambda": "gate.weight",
    "gate_lr": "gate.lr",
    "batch_size": "run.batch",
}
VARIANTS = {  # methods of tables that are another method with a change
    "bayesncl-1layer": ("bayesncl", "gate.depth=1"),
    "bayesncl-3layer": ("bayesncl", "gate.depth=3"),
    "bayesncl-on-z": ("bayesncl", "gate.input=z"),
    "bayesncl-prevalence": ("bayesncl", "gate.prior_kind=prevalence"),
}
DYNAMICS = ("af_gv", "af_sc", "gv_sc")  # columns that need gradient dynamics
ACCURACIES = ("acc1", "acc5")  # columns that need the published probe
PAIR = ("ncl", "bayesncl")

# A smoke run takes seconds on a CPU, with the small backbone. Of each axis it keeps the first and
# the last value, replaced by SMOKE_VALUES where the published ones are too large.
SMOKE = (
    "data.size=16", "views.size=16", "data.train_images=128", "data.test_images=100",
    "model.hidden=32", "model.dim=32",
    "run.batch=64", "run.epochs=2", "run.log_every=1", "run.checkpoint_every=1",
)  # fmt: skip
SMOKE_VALUES = {"dim": (16, 32), "batch_size": (32, 64), "K": (16, 32), "epoch": (1, 2)}


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str  # as on the command line
    title: str
    tables: Sequence[str]  # tables of paper.json whose rows it shows
    columns: Sequence[str]  # measures it shows
    seeds: Sequence[int] = (0,)  # of every row
    methods: Sequence[str] = ()  # rows to keep; empty: all
    changes: Sequence[str] = ()  # of every recipe at paper scale, as on the command line
    overrides: Sequence[str] = ()  # the user's changes, at any scale

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure-")

    @property
    def background(self) -> str | None:
        """Key of the background probe it shows, or None."""
        keys = {"background_acc": "waterbirds", "background_h": "waterbirds_like"}
        return keys.get(self.columns[0])


def _experiment(name: str, about: dict[str, Any]) -> Experiment:
    tables = about.get("tables", [name])
    names = {field.name for field in dataclasses.fields(Experiment)} - {"tables", "columns"}
    options = {key: value for key, value in about.items() if key in names}
    return Experiment(name, tables=tables, columns=TABLES[tables[0]]["columns"], **options)


EXPERIMENTS = {name: _experiment(name, a) for name, a in (TABLES | PAPER["figures"]).items()}


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    method: str
    dataset: str
    axes: dict[str, float]
    recipe: Recipe  # with seed 0
    published: dict[str, float | None]


def choose(name: str | None, seeds: str = "", changes: Sequence[str] = ()) -> list[Experiment]:
    """The experiments of a name (None or `all`: every one), with seeds such as 0,1 and changes."""
    if name not in (None, "all", *EXPERIMENTS):
        raise InputError(f"no table or figure {name!r}{did_you_mean(str(name), EXPERIMENTS)}")
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed)
    except ValueError:
        raise InputError(f"seeds must be whole numbers such as 0,1,2, got {seeds!r}") from None
    return [
        dataclasses.replace(e, seeds=numbers or e.seeds, overrides=tuple(changes))
        for e in EXPERIMENTS.values()
        if name in (None, "all", e.name)
    ]


def runs(experiment: Experiment, scale: str = "paper") -> list[Recipe]:
    """The runs of an experiment in the order to do them: by dataset, first seeds first."""
    seeds = experiment.seeds if scale == "paper" else experiment.seeds[:1]
    recipes = [row.recipe for row in rows(experiment, scale)]
    todo = [replace_fields(recipe, run={"seed": seed}) for seed in seeds for recipe in recipes]
    todo.sort(key=lambda recipe: DATASET_ORDER.index(recipe.data.name))
    return list({recipe.to_json(): recipe for recipe in todo}.values())


def rows(experiment: Experiment, scale: str = "paper") -> list[Row]:
    """Every row of an experiment, in the paper's order; at smoke scale on scenes, see `SMOKE`."""
    found = []
    for table in (TABLES[name] for name in experiment.tables):
        for row in table["rows"] if scale == "paper" else _smoke_rows(table):
            if not experiment.methods or row["method"] in experiment.methods:
                axes = {axis: row[axis] for axis in table["axes"]}
                published = {column: row.get(column) for column in table["columns"]}
                dataset = row["dataset"] if scale == "smoke" else table.get("pretrained_on")
                recipe = _recipe(experiment, dataset or row["dataset"], row["method"], axes)
                found.append(Row(row["method"], row["dataset"], axes, recipe, published))
    return found


def _smoke_rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the first dataset at the ends of the axes, as rows of scenes."""
    first = [row for row in table["rows"] if row["dataset"] == table["rows"][0]["dataset"]]
    values = {}  # of smoke runs by axis and published value
    for axis in table["axes"]:
        low, high = (end(row[axis] for row in first) for end in (min, max))
        small, large = SMOKE_VALUES.get(axis, (low, high))
        values[axis] = {high: large} | {low: small}
    return [
        {"method": row["method"], "dataset": "scenes"} | {a: values[a][row[a]] for a in values}
        for row in first
        if all(row[axis] in known for axis, known in values.items())
    ]


def _recipe(experiment: Experiment, dataset: str, method: str, axes: dict[str, float]) -> Recipe:
    """The recipe of a row, with the values of its axes; on scenes that of a smoke run."""
    smoke, settings = dataset == "scenes", PAPER["settings"].get(dataset, {})
    base, *changes = VARIANTS.get(method, (method,))
    fields = [
        f"{AXIS_FIELDS[axis]}={value}"
        for axis, value in axes.items()
        if axis in AXIS_FIELDS and value != settings.get(axis)
    ]
    if smoke:
        changes = [*SMOKE, *changes, *fields, *["model.top_k=26"] * (method == "ncl-topk")]
    else:
        changes += [*fields, *experiment.changes]
    # the main runs also record the gradient dynamics, which changes no weight
    if method in PAIR and (smoke or (dataset == MAIN and not fields)):
        changes.append(f"run.dynamics_every={1 if smoke else 10}")
    return change(named(f"{dataset}-{base}"), [*changes, *experiment.overrides])
