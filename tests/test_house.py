"""The map of the package: what may import what, how long a file may be, and what is written down once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayesncl import gates, recipes

PACKAGE = Path(recipes.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 500

# Rooms in the order in which data flows. A module imports from its own rank and from those above it, never from below.
RANKS = (
    "errors bus draws schedule lars",
    "files options distributed gates objective",
    "recipes data arrays tables labels pixels names",
    "augment feed graph progress kernels",
    "backbones heads run model",
    "checkpoint meter train cost",
    "features plan",
    "rows neighbours shelf codes encoders codes_folder photos heat",
    "measure",
    "dynamics paper_probe evaluate fit embed export",
    "report atlas quiz",
    "reproduce demo",
)
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms.split()}
# Imports inside a function that look downstream: `load` opens folders of codes too, a loop plans before it starts and
# records dynamics if asked to, and an optimiser has a kernel where there is a GPU.
LATE = {("model", "codes_folder"), ("run", "model"), ("train", "plan"), ("train", "dynamics"), ("lars", "kernels")}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


ROOMS = [path for path in FILES if not room_of(path).startswith(("__", "cli"))]  # the commands call everything


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Rooms that a file imports, and whether it does so when it is itself imported. Imports for types do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parent if node.level == 1 else path.parents[node.level - 1]
            inside = base.relative_to(PACKAGE).parts + tuple((node.module or "").split(".") if node.module else ())
            for room in [inside[0]] if inside else [alias.name for alias in node.names]:
                if room in RANK:
                    yield room, node in tree.body


def test_every_module_has_a_rank() -> None:
    assert {room_of(path) for path in ROOMS} == RANK.keys()


@pytest.mark.parametrize("path", ROOMS, ids=str)
def test_nothing_imports_what_is_downstream(path: Path) -> None:
    room = room_of(path)
    for other, early in imports(path):
        assert RANK[other] <= RANK[room] or (not early and (room, other) in LATE), f"{room} imports {other}"


def test_no_file_is_long() -> None:
    """Nor one of the tests, benchmarks and examples."""
    others = [path for room in ("tests", "benchmarks", "examples") for path in (PACKAGE.parent / room).rglob("*.py")]
    long = {path.name: n for path in [*FILES, *others] if (n := len(path.read_text().splitlines())) > MOST_LINES}
    assert others and not long


def literals(path: Path) -> Iterator[str | float]:
    """Constants in the code of a file, without its docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docs and isinstance(node.value, str | float):
            yield node.value


@pytest.mark.parametrize("name", re.findall(r'self\.folder / "([^"]*\.[^"]+)"', (PACKAGE / "run.py").read_text()))
def test_the_name_of_a_file_of_a_run_is_written_once(name: str) -> None:
    """`shelf` has a folder of its own, laid out as the hub wants it: there model.safetensors is another file."""
    places = [path.name for path in FILES if path.name != "shelf.py" for value in literals(path) if value == name]
    assert places == ["run.py"]


def test_the_size_from_which_a_dimension_fires_is_written_once() -> None:
    """As the value of a name of its own; lists of penalties and tolerances may hold the same number."""
    named = [
        (path.name, node.targets[0].id)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and node.value.value == 1e-5
    ]
    assert named == [("objective.py", "ACTIVE")]


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) not in ("gates", "recipes", "data")], ids=str)
def test_nobody_asks_for_a_gate_kind_or_a_data_set_by_its_name(path: Path) -> None:
    """A comparison with such a name would have to change with every new one."""
    known = (gates.GATES.keys() | set(recipes.DATASETS)) - {"arrays"}  # also a kind of source
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            wrong = {side.value for side in sides if isinstance(side, ast.Constant)} & known
            assert not wrong, f"{path.name}, line {node.lineno}: {wrong}"
