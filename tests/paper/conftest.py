"""A ledger with real entries of smoke size, shared by the tests of the paper's room."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from bayesncl.paper import ledger, reproduce
from bayesncl.paper.tables import SMOKE
from bayesncl.recipes import Recipe, change, named

ROOT = Path(__file__).parents[2]


def smoke(method: str, *changes: str) -> Recipe:
    return change(named(f"scenes-{method}"), [*SMOKE, *changes])


def at_full_size(
    entry: dict[str, Any], recipe: Recipe, consistency: float = 10.0
) -> dict[str, Any]:
    """The entry as if it were of another recipe: for the layout of tables, never for results."""
    new = copy.deepcopy(entry)
    new |= {"recipe": recipe.to_dict(), "name": recipe.name, "seed": recipe.run.seed}
    new["measures"]["paper"]["consistency"] = consistency
    return new


@pytest.fixture(scope="session")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger to which the tests add runs, as the experiments do."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture
def entry(smoked: Path) -> dict[str, Any]:
    """A real entry, with gradient dynamics."""
    reproduce.reproduce("gradients", scale="smoke", results=smoked)
    entry = ledger.find(smoked, smoke("bayesncl"))
    assert entry is not None
    return copy.deepcopy(entry)
