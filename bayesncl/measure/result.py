"""The result of measuring features of any model, or a whole run, and its JSON form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from bayesncl.errors import InputError, as_input_error

Tree = dict[str, Any]
ALWAYS_ONE_OF = ("paper", "sound", "verdict")
NOT_MEASURES = ("chance", "control", "parameters", "verdict")


class Figure(NamedTuple):
    """A number, the same by chance (labels shuffled) and of an untrained head; None if unknown."""

    value: Any
    chance: Any = None
    control: Any = None

    def beside(self, form: Callable[[float], str] = "{:,.0f}".format) -> str:
        """The other two as text."""
        both = (("untrained", self.control), ("chance", self.chance))
        return ", ".join(f"{name} {form(each)}" for name, each in both if each is not None)


def branch() -> Any:
    """A field of Result that is empty, and left out of the JSON, if it was not measured."""
    return field(default_factory=dict)


@dataclass
class Result:
    """Every measure, in the order of the JSON; `result["kept/5/p5"]` is one beside its controls."""

    paper: Tree = branch()  # by key, see `interpretability`
    sound: Tree = branch()
    retrieval: Tree = branch()  # percent by definition, kept dimensions and k
    chance: Tree = branch()  # the same measures with shuffled labels
    parameters: Tree = branch()
    dimensions: Tree = branch()  # by column, a value per dimension
    curves: Tree = branch()  # consistency by minimum support, retrieval by kept dimensions
    # of a run; most are the paper's, see `paper.measures`
    conflicting: Tree = branch()
    probe: Tree = branch()
    knn: Tree = branch()
    theory: list[Tree] = field(default_factory=list)
    gates: Tree = branch()
    heat: Tree = branch()
    background: Tree = branch()
    balanced: Tree = branch()
    worst_group: Tree = branch()
    conflict: Tree = branch()
    ipw: Tree = branch()
    gate_effect: Tree = branch()
    stability: Tree = branch()
    seconds: float | None = None
    verdict: Tree = branch()  # and the measures behind it, see `figures`
    readable: Tree = branch()
    kept: Tree = branch()
    detectors: Tree = branch()
    coverage: Tree = branch()
    independence: Tree = branch()
    factors: Tree = branch()
    labelfree: Tree = branch()
    whole: Tree = branch()
    seeds: Tree = branch()
    control: Tree = branch()  # the measures of an untrained head

    def to_dict(self) -> Tree:
        """Plain data, without what was not measured."""
        return {name: value for name, value in vars(self).items() if value not in ({}, [], None)}

    def to_json(self) -> str:
        """The text of `evaluation.json`."""
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str, source: str = "results") -> Result:
        """The result of `to_json`; unknown branches are ignored."""
        what = f"{source}: not the results of an evaluation"
        with as_input_error(what, ValueError, RecursionError):
            tree = json.loads(text)
        if not any(isinstance(look_up(tree, [name]), dict) for name in ALWAYS_ONE_OF):
            raise InputError(what)
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in tree.items() if name in names})

    def __getitem__(self, key: str) -> Figure:
        """A measure by its keys, joined by slashes."""
        return self._figure(key.split("/"))

    def _figure(self, path: Sequence[str]) -> Figure:
        trees = vars(self), self.chance, self.control
        return Figure(*(look_up(tree, path) for tree in trees))

    def figures(self) -> dict[tuple[str, ...], Figure]:
        """Every measure by its path."""
        values = {k: v for k, v in self.to_dict().items() if k not in NOT_MEASURES}
        return {path: self._figure(path) for path, _ in leaves(values)}


def look_up(tree: Any, path: Iterable[str]) -> Any:
    """The value at a path in nested results; None without one."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def leaves(
    tree: Mapping[Any, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every number of a tree, or None, after its path."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, str(key)))
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield (*path, str(key)), value


def to_json(tree: Any) -> str:
    """Standard JSON: no NaN, no infinity."""
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def as_array(values: Any) -> np.ndarray:
    """Numbers and None as floats and NaN."""
    return np.array([np.nan if v is None else v for v in values], float)


def rounded(tree: Any, digits: int | None = None) -> Any:
    """The tree as JSON holds it: text keys, lists, None for NaN, floats to `digits` digits."""
    if isinstance(tree, Mapping):
        return {str(key): rounded(value, digits) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        tree = tree.tolist()
    if isinstance(tree, list | tuple):
        return [rounded(value, digits) for value in tree]
    if isinstance(tree, float):
        if not math.isfinite(tree):
            return None
        return tree if digits is None else float(f"{tree:.{digits}g}")
    return tree
