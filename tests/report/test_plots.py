"""Every figure is written and shows the data it was given."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from bayesncl.report import plots
from bayesncl.report.plots import Curve


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1]
    )
    return figures


def check(path: Path) -> None:
    image = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    assert (image == 255).all(1).mean() > 0.5
    assert len(np.unique(image, axis=0)) > 20


def test_consistency(tmp_path: Path, drawn: list[Figure]) -> None:
    support, consistency = np.array([0, 1, 20, 300]), np.array([np.nan, 100, 40, 12.0])
    check(plots.plot_consistency(support, consistency, tmp_path / "new" / "a.png"))
    (axes,) = drawn[0].axes
    assert axes.collections[0].get_offsets().tolist() == [[1, 100], [20, 40], [300, 12]]
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_xdata()[0] == 10


def test_entropy(tmp_path: Path, drawn: list[Figure]) -> None:
    check(plots.plot_entropy(np.array([0.0, 1.0, np.nan, np.log(10)]), tmp_path / "a.png", 10))
    assert sum(bar.get_height() for bar in drawn[0].axes[0].patches) == 3


def test_curves(tmp_path: Path, drawn: list[Figure]) -> None:
    curves = [Curve(0, [(1, 10.0), (2, 20.0), (20, 25.0)], "NCL"), Curve(1, [(1, -1.0)], "B")]
    options = {"log": True, "descending": True, "chance": 1.0, "mark": (10, "sound")}
    check(plots.plot_curves(curves, tmp_path / "a.png", "x", "y", **options))
    (axes,) = drawn[0].axes
    curve, _, chance, mark = axes.lines
    assert list(curve.get_xdata()) == [1, 2, 20] and list(curve.get_ydata()) == [10, 20, 25]
    assert list(chance.get_ydata()) == [1, 1] and mark.get_xdata()[0] == 10
    assert axes.get_xticks().tolist() == [1, 2, 20] and axes.get_xscale() == "log"
    assert axes.xaxis_inverted() and axes.get_ylim()[0] <= -1
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names == ["NCL", "B", "labels shuffled"]


def test_dynamics(tmp_path: Path, drawn: list[Figure]) -> None:
    kinds = {"sound": 0.1, "paper": 0.2, "chance": 0.3}
    row = {key: {"af_gv": v, "af_sc": -v, "gv_sc": None} for key, v in kinds.items()}
    rows = [{"epoch": 10} | row, {"epoch": 20} | row]
    check(plots.plot_dynamics({"NCL": rows}, tmp_path / "a.png"))
    first, second, third = drawn[0].axes
    assert list(first.lines[1].get_xdata()) == [10, 20]
    assert list(first.lines[1].get_ydata()) == [0.1] * 2
    assert list(second.lines[1].get_ydata()) == [-0.1] * 2
    assert list(second.lines[2].get_ydata()) == [-0.3] * 2
    assert np.isnan(third.lines[1].get_ydata()).all()
