"""A ledger with real entries of smoke size, shared by the tests of the paper's room."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from bayesncl.paper import ledger, reproduce
from bayesncl.paper.tables import EXPERIMENTS, SMOKE, Experiment
from bayesncl.recipes import Recipe, change, named

ROOT = Path(__file__).parents[2]


def smoke(method: str, *changes: str) -> Recipe:
    return change(named(f"scenes-{method}"), [*SMOKE, *changes])


def smoked_experiment(name: str) -> Experiment:
    return EXPERIMENTS[name]._replace(smoke=True)


def at_full_size(
    entry: dict[str, Any], recipe: Recipe, consistency: float = 10.0
) -> dict[str, Any]:
    """The entry as if it were of another recipe: for the layout of tables, never for results."""
    new = copy.deepcopy(entry)
    new |= {"recipe": recipe.to_dict(), "name": recipe.name, "seed": recipe.run.seed}
    new["measures"]["paper"]["consistency"] = consistency
    return new


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of BayesNCL with gradient dynamics: its entry in `results`, its weights in `models`."""
    folder = tmp_path_factory.mktemp("first")
    space = reproduce.Workspace(folder / "results", folder / "models")
    recipe = smoke("bayesncl", "run.dynamics_every=1")
    reproduce.run_list([recipe], smoked_experiment("interpretability"), space)
    return folder


@pytest.fixture(scope="session")
def smoked(first_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger to which the tests add runs, as the experiments do."""
    folder = tmp_path_factory.mktemp("smoke")
    shutil.copytree(first_run / "results", folder, dirs_exist_ok=True)
    shutil.copytree(first_run / "models", folder / "work" / "models")
    return folder


@pytest.fixture
def entry(first_run: Path) -> dict[str, Any]:
    """A real entry, with gradient dynamics."""
    (entry,) = ledger.read(first_run / "results")
    return entry
