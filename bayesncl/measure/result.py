"""What measuring gives: one typed result, for features of any model and for whole runs, and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..errors import InputError
from .interpretability import Value, at

Tree = dict[str, Any]
KINDS = ("paper", "sound", "verdict")  # one of them is in every result


@dataclass
class Result:
    """Every measure that was taken; None for what was not, which the JSON then lacks.

    Attributes
    ----------
    paper, sound : measures by key in each definition; see `interpretability`.
    retrieval : precision (percent) by definition, kept dimensions and k, as text.
    chance : the same measures with shuffled labels.
    parameters : every setting.
    dimensions : a list per column, an entry per dimension: support, consistency, entropy_freq, mass.
    curves : consistency by least support, retrieval by kept dimensions.
    conflicting, probe, knn, theory, gates, heat : of a run; see docs/measures.md.
    background, balanced, worst_group, conflict, ipw, gate_effect, stability : of images with a second label.
    seconds : of measuring.
    verdict : what can be said in a few lines; see `verdict.to_dict`.
    readable, kept, detectors, coverage, labelfree, whole, seeds : the figures behind it; see `readable.figures`.
    control : the same figures of an untrained head.
    """

    paper: dict[str, Value] | None = None
    sound: dict[str, Value] | None = None
    retrieval: Tree = field(default_factory=dict)
    chance: Tree = field(default_factory=dict)
    parameters: Tree = field(default_factory=dict)
    dimensions: dict[str, list[float | None]] | None = None
    curves: Tree | None = None
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
    verdict: Tree | None = None
    readable: Tree | None = None
    kept: Tree | None = None
    detectors: Tree | None = None
    coverage: Tree | None = None
    labelfree: Tree | None = None
    whole: Tree | None = None
    seeds: Tree | None = None
    control: Tree | None = None

    def to_dict(self) -> Tree:
        """Plain data in the order of the fields, without what was not measured."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, tree: Any, source: str = "results") -> Result:
        """The result of `to_dict`; branches of other versions are left out."""
        if not isinstance(tree, Mapping) or not any(isinstance(tree.get(d), Mapping) for d in KINDS):
            raise InputError(f"{source}: not the results of an evaluation")
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in tree.items() if name in known})

    def to_json(self) -> str:
        """As `evaluation.json` holds it."""
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str, source: str = "results") -> Result:
        """The result of `to_json`."""
        try:
            return cls.from_dict(json.loads(text), source)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source}: not the results of an evaluation: {error}") from None

    def by_threshold(self) -> tuple[np.ndarray, np.ndarray]:
        """L0 and consistency over the activation thresholds, the plain definition first."""
        names = [[name, *(at(name, t) for t in self.parameters["thresholds"][1:])] for name in ("l0", "consistency")]
        active, consistency = (as_array([(self.sound or {})[name] for name in each]) for each in names)
        return active, consistency

    def by_dims(self, k: int, definition: str = "sound") -> dict[int, float]:
        """Retrieval precision at k by the number of kept dimensions."""
        return {int(dims): found[str(k)] for dims, found in (self.curves or {})[f"retrieval_{definition}"].items()}


def to_json(tree: Any) -> str:
    """JSON that any reader takes: no NaN, no infinity."""
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def as_array(values: Any) -> np.ndarray:
    """Numbers and None as floats and NaN."""
    return np.array([np.nan if v is None else v for v in values], float)


def rounded(tree: Any, digits: int | None = None) -> Any:
    """The tree as JSON holds it: text keys, lists, no NaN, floats to so many significant digits."""
    if isinstance(tree, Mapping):
        return {str(key): rounded(value, digits) for key, value in tree.items()}
    if isinstance(tree, list | tuple | np.ndarray):
        return [rounded(value, digits) for value in (tree.tolist() if isinstance(tree, np.ndarray) else tree)]
    if isinstance(tree, float):
        return None if not math.isfinite(tree) else tree if digits is None else float(f"{tree:.{digits}g}")
    return tree
