"""bayesncl embed: names, formats, and refusals before the work."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.codes import embed
from bayesncl.codes.embed import embed_images
from bayesncl.codes.table import Table, write_features
from bayesncl.errors import InputError
from bayesncl.inputs import read_arrays, read_embeddings
from bayesncl.method.encoder import build_model
from tests.conftest import tiny_recipe

RNG = np.random.default_rng(0)


def write_photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_contain_the_same_as_arrays(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for name in ("dog/1.png", 'cat/"2",.png', "cat/3.png"):
        write_photo(tmp_path / "photos" / name)
    model = build_model(tiny_recipe("bayesncl"))
    for out in ("e.npz", f"e.{ending}"):
        assert embed_images(model, tmp_path / "photos", tmp_path / out, n_active=3)[0] == 3
    expected = read_arrays(tmp_path / "e.npz", ("z", "y", "names", "class_names"))
    table = read_arrays(tmp_path / f"e.{ending}", ("z", "y", "names"))
    assert np.array_equal(table["z"].astype(np.float32), expected["z"])
    labels = expected["class_names"][expected["y"]].tolist()
    assert table["y"].tolist() == labels == ["cat", "cat", "dog"]
    assert table["names"].tolist() == expected["names"].tolist()


FORMULAS = ["=1+1", "+x", "-x", "@x", "'=x", "''@x", "=cmd|' /C calc'!A0", "-1", "a\nb", "'x", ""]


def test_formulas_in_tables_are_text(tmp_path: Path) -> None:
    """Spreadsheets run cells that begin with = + - @; an apostrophe prevents that."""
    z = np.arange(2 * len(FORMULAS), dtype=np.float32).reshape(-1, 2)
    table = Table(z, FORMULAS, FORMULAS, ["=HYPERLINK(1)", "class"])
    write_features(tmp_path / "t.csv", table)
    with open(tmp_path / "t.csv", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row[:3]]
    assert all(cell[:1] not in ("=", "+", "@", "-") or float(cell) <= 0 for cell in cells)
    found, names, labels = read_embeddings(tmp_path / "t.csv")
    assert names.tolist() == labels.tolist() == FORMULAS
    np.testing.assert_array_equal(found, z)


def test_refusals_come_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "read_images", lambda *_, **__: pytest.fail("work was done"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    model = build_model(tiny_recipe("ncl"))
    for name in ("x" * 252 + ".npz", "e.xlsx", "e.parquet"):
        with pytest.raises(InputError):
            embed_images(model, tmp_path, tmp_path / name)
