"""The result of measuring features of any model, or a whole run, and its JSON form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from bayesncl.errors import InputError
from bayesncl.measure import registry
from bayesncl.measure.interpretability import Value, at_threshold

Tree = dict[str, Any]
ALWAYS_ONE_OF = ("paper", "sound", "verdict")
NOT_MEASURES = ("chance", "control", "parameters", "verdict")


class Figure(NamedTuple):
    """A number, the same by chance (labels shuffled) and of an untrained head; None if unknown."""

    value: Any
    chance: Any
    control: Any

    def beside(self, form: Callable[[float], str] = "{:,.0f}".format) -> str:
        """The other two as text."""
        both = (("untrained", self.control), ("chance", self.chance))
        return ", ".join(f"{name} {form(each)}" for name, each in both if each is not None)


def figure_at(path: Sequence[str], values: Tree, chance: Tree, control: Tree) -> Figure:
    """The figure at a path such as ("kept", "5", "p5") of three trees of the same form."""
    return Figure(*(registry.value(tree, path) for tree in (values, chance, control)))


@dataclass
class Result:
    """Every measure; None for those not taken, which the JSON leaves out."""

    paper: dict[str, Value] | None = None  # measures by key, see `interpretability`
    sound: dict[str, Value] | None = None
    retrieval: Tree = field(default_factory=dict)  # percent by definition, kept dimensions and k
    chance: Tree = field(default_factory=dict)  # the same measures with shuffled labels
    parameters: Tree = field(default_factory=dict)
    dimensions: dict[str, list[float | None]] | None = None  # by column, a value per dimension
    curves: Tree | None = None  # consistency by minimum support, retrieval by kept dimensions
    # of a run; most are the paper's, see `paper.measures`
    conflicting: Tree | None = None
    probe: Tree | None = None
    knn: dict[str, float] | None = None
    theory: list[Tree] | None = None
    gates: dict[str, Value] | None = None
    heat: dict[str, Value] | None = None
    background: Tree | None = None
    balanced: Tree | None = None
    worst_group: Tree | None = None
    conflict: Tree | None = None
    ipw: Tree | None = None
    gate_effect: Tree | None = None
    stability: Tree | None = None
    seconds: float | None = None
    verdict: Tree | None = None  # and the figures behind it, see `figures.figures`
    readable: Tree | None = None
    kept: Tree | None = None
    detectors: Tree | None = None
    coverage: Tree | None = None
    independence: Tree | None = None
    factors: Tree | None = None
    labelfree: Tree | None = None
    whole: Tree | None = None
    seeds: Tree | None = None
    control: Tree | None = None

    def to_dict(self) -> Tree:
        """Plain data in the order of the fields, without measures that were not taken."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, tree: Any, source: str = "results") -> Result:
        """The result of `to_dict`; unknown branches are ignored."""
        one_of = ALWAYS_ONE_OF if isinstance(tree, Mapping) else ()
        if not any(isinstance(tree.get(name), Mapping) for name in one_of):
            raise InputError(f"{source}: not the results of an evaluation")
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in tree.items() if name in names})

    def to_json(self) -> str:
        """The text of `evaluation.json`."""
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str, source: str = "results") -> Result:
        """The result of `to_json`."""
        try:
            return cls.from_dict(json.loads(text), source)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source}: not the results of an evaluation: {error}") from None

    def figures(self) -> dict[tuple[str, ...], Figure]:
        """Every measure by its path."""
        values = {k: v for k, v in self.to_dict().items() if k not in NOT_MEASURES}
        return {
            path: figure_at(path, values, self.chance, self.control or {})
            for path, _ in leaves(values)
        }

    def by_threshold(self) -> tuple[np.ndarray, np.ndarray]:
        """L0 and consistency over the activation thresholds, starting with the plain definition."""
        sound, thresholds = self.sound or {}, self.parameters["thresholds"][1:]
        l0, consistency = (
            as_array([sound[name], *(sound[at_threshold(name, t)] for t in thresholds)])
            for name in ("l0", "consistency")
        )
        return l0, consistency

    def by_dims(self, k: int, definition: str = "sound") -> dict[int, float]:
        """Precision at k by the number of kept dimensions."""
        curve = (self.curves or {})[f"retrieval_{definition}"]
        return {int(dims): by_k[str(k)] for dims, by_k in curve.items()}


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
