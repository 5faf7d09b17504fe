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
    """One table or figure.

    Attributes
    ----------
    name : as on the command line.
    title : what it shows.
    tables : tables of paper.json whose rows it shows.
    columns : measures it shows.
    seeds : seeds of every row.
    methods : rows to keep; empty: all.
    changes : changes to every recipe at paper scale, as on the command line.
    overrides : the user's changes, at any scale.
    """

    name: str
    title: str
    tables: Sequence[str]
    columns: Sequence[str]
    seeds: Sequence[int] = (0,)
    methods: Sequence[str] = ()
    changes: Sequence[str] = ()
    overrides: Sequence[str] = ()

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
    """A row of a table: method, dataset, axes, recipe with seed 0, published numbers."""

    method: str
    dataset: str
    axes: dict[str, float]
    recipe: Recipe
    published: dict[str, float | None]


def choose(name: str | None, seeds: Sequence[int], changes: Sequence[str]) -> list[Experiment]:
    """The experiments of a name (None or `all`: every one), with other seeds and recipe changes."""
    if name not in (None, "all", *EXPERIMENTS):
        raise InputError(f"no table or figure {name!r}{did_you_mean(str(name), EXPERIMENTS)}")
    return [
        dataclasses.replace(e, seeds=tuple(seeds) or e.seeds, overrides=tuple(changes))
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
    out = []
    for table in (TABLES[name] for name in experiment.tables):
        for row in table["rows"]:
            if experiment.methods and row["method"] not in experiment.methods:
                continue
            axes = {axis: row[axis] for axis in table["axes"]}
            if scale == "paper":
                out.append(_paper_row(experiment, table, row, axes))
            elif (small := _smoke_axes(table["rows"], row, axes)) is not None:
                out.append(_smoke_row(experiment, row["method"], small))
    return out


def _paper_row(
    experiment: Experiment, table: dict[str, Any], row: dict[str, Any], axes: dict[str, float]
) -> Row:
    dataset, method = table.get("pretrained_on", row["dataset"]), row["method"]
    default = PAPER["settings"][dataset]
    changed = {a: v for a, v in axes.items() if a in AXIS_FIELDS and v != default[a]}
    # the main runs also record the gradient dynamics, which changes no weight
    main = dataset == MAIN and method in PAIR and not changed
    more = [*experiment.changes, *["run.dynamics_every=10"] * main, *experiment.overrides]
    published = {column: row.get(column) for column in table["columns"]}
    return Row(method, row["dataset"], axes, _recipe(dataset, method, changed, more), published)


def _smoke_row(experiment: Experiment, method: str, axes: dict[str, float]) -> Row:
    more = ["model.top_k=26"] * (method == "ncl-topk") + ["run.dynamics_every=1"] * (method in PAIR)
    recipe = _recipe("scenes", method, axes, [*more, *experiment.overrides], SMOKE)
    return Row(method, "scenes", axes, recipe, {})


def _smoke_axes(
    every: list[dict[str, Any]], row: dict[str, Any], axes: dict[str, float]
) -> dict[str, float] | None:
    """Values of the axes for a row of the first dataset at the ends of its axes, else None."""
    dataset = every[0]["dataset"]
    grids = {a: [r[a] for r in every if r["dataset"] == dataset] for a in axes}
    ends = {a: (min(grid), max(grid)) for a, grid in grids.items()}
    if row["dataset"] != dataset or any(value not in ends[a] for a, value in axes.items()):
        return None
    return {a: SMOKE_VALUES.get(a, ends[a])[ends[a].index(v)] for a, v in axes.items()}


def _recipe(
    dataset: str, method: str, axes: dict[str, float], changes: Sequence[str],
    base: Sequence[str] = (),
) -> Recipe:  # fmt: skip
    """The recipe of a table's method with the values of its axes."""
    method, *own = VARIANTS.get(method, (method,))
    fields = [f"{AXIS_FIELDS[a]}={value}" for a, value in axes.items() if a in AXIS_FIELDS]
    return change(named(f"{dataset}-{method}"), [*base, *own, *fields, *changes])
