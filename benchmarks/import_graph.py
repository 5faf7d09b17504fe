"""Draw which folder of the package imports which, from the code: the picture in CONTRIBUTING.md.

    python benchmarks/import_graph.py                # writes docs/images/imports.svg
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
# The order of the map in CONTRIBUTING.md, with places from left to right: a room may import from
# those before it.
SHARED = ("errors", "io", "inputs", "progress", "distributed", "device")
PLACES = {
    "shared": 0, "recipes": 0, "data": 0, "method": -1, "measure": 1, "training": -1, "codes": 0,
    "evaluate": 0, "jobs": -1, "report": 1, "atlas": -1, "paper": 0, "cli": 0,
}  # fmt: skip
LEVEL = {name: level for level, name in enumerate(PLACES)}


def room(module: str) -> str | None:
    """Return the room of a module such as bayesncl.codes.fit."""
    parts = module.split(".")
    if parts[0] != "bayesncl" or len(parts) < 2 or parts[1] == "__main__":
        return None
    return "shared" if parts[1] in SHARED else parts[1]


def edges() -> set[tuple[str, str]]:
    """Return which room imports which, `if TYPE_CHECKING` left out."""
    found: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "bayesncl").rglob("*.py")):
        source = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        targets = {room(name) for name in imports(ast.parse(path.read_text()))}
        if source:
            found |= {(source, target) for target in targets if target and target != source}
    return found


def imports(tree: ast.AST) -> set[str]:
    """Return the modules a file imports, wherever in the file."""
    names: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "bayesncl":
            names |= {f"bayesncl.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        stack.extend(ast.iter_child_nodes(node))
    return {name for name in names if name.startswith("bayesncl.")}


def is_implied(source: str, target: str, arrows: set[tuple[str, str]]) -> bool:
    """Return whether a path through other rooms leads from one to the other."""
    seen, stack = set(), [b for a, b in arrows if a == source and b != target]
    while stack:
        name = stack.pop()
        if name == target:
            return True
        if name not in seen:
            seen.add(name)
            stack += [b for a, b in arrows if a == name]
    return False


def draw(out: Path) -> None:
    """Draw the rooms, with arrows to what they import; an arrow against the order is red."""
    at = {name: (1.3 * x, -0.8 * LEVEL[name]) for name, x in PLACES.items()}
    found = {(a, b) for a, b in edges() if a in at and b in at}
    allowed = {(a, b) for a, b in found if LEVEL[b] < LEVEL[a]}
    shown = {(a, b) for a, b in allowed if not is_implied(a, b, allowed)} | (found - allowed)
    figure = Figure(figsize=(6, 7))
    axes = figure.subplots()
    for source, target in sorted(shown):
        (x0, y0), (x1, y1) = at[source], at[target]
        side = 1 if y1 > y0 else -1
        far = abs(y1 - y0) > 1 and x0 == x1  # around the boxes between them
        axes.annotate(
            "", xy=(x1, y1 - 0.24 * side), xytext=(x0, y0 + 0.24 * side),
            arrowprops={
                "arrowstyle": "-|>", "lw": 1.2, "shrinkA": 0, "shrinkB": 0,
                "color": "#0f766e" if (source, target) in allowed else "#c0392b",
                "connectionstyle": f"arc3,rad={0.5 if far else 0}",
            },
        )  # fmt: skip
    for name, (x, y) in at.items():
        text = "errors, io, inputs, progress, ..." if name == "shared" else name
        axes.text(
            x, y, text, ha="center", va="center", fontsize=11, zorder=3,
            bbox={"boxstyle": "round,pad=0.45", "fc": "white", "ec": "#0f766e"},
        )  # fmt: skip
    axes.set_xlim(-2.6, 2.6)
    axes.set_ylim(-0.8 * len(PLACES), 0.5)
    axes.axis("off")
    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "imports"}):  # the same code gives the same file
        figure.savefig(out, bbox_inches="tight", metadata={"Date": None})
    against = sorted(found - allowed)
    print(f"{out}: {len(found)} arrows, {len(shown)} drawn; against the order: {against or 'none'}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    draw(ROOT / "docs" / "images" / "imports.svg")
