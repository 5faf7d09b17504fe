"""bayesncl embed without images: codes of the fitted rows, wide and long."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes.folder import CodesFolder
from bayesncl.inputs import read_arrays, read_embeddings
from tests.commands import refused

RNG = np.random.default_rng(0)


@pytest.fixture
def codes(run, tmp_path: Path) -> CodesFolder:
    y = np.arange(90) % 3
    x = RNG.normal(0, 1, (3, 20))[y] + 0.3 * RNG.normal(0, 1, (90, 20))
    np.savez("x.npz", z=x, y=np.array(["ant", "bee", "cat"])[y], names=[f"{i}.png" for i in range(90)])
    assert run("fit", "x.npz", "-o", "codes", "--components", "8", "--quiet").status == 0
    assert run("names", "codes", "--from-labels", "--quiet").status == 0
    return CodesFolder("codes")


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_codes_names_and_labels_of_the_fitted_rows(run, codes: CodesFolder, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    assert run("embed", "codes", "-o", f"c.{ending}", "--active", "3", "--quiet").status == 0
    z, names, labels = read_embeddings(Path(f"c.{ending}"))
    rows = codes.rows()
    expected = codes.model().transform(codes.embeddings(), 3)
    np.testing.assert_array_equal(z.astype(np.float32), expected)
    assert names.tolist() == list(rows.names)
    if ending == "npz":
        content = read_arrays("c.npz", ("dimensions", "novelty"))
        assert content["dimensions"].tolist() == codes.names().columns(8)
        assert content["novelty"].shape == (90,)
    else:
        assert labels.tolist() == [rows.class_names[label] for label in rows.labels]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_long_tables_and_sqlite(run, codes: CodesFolder, ending: str) -> None:
    assert run("embed", "codes", "-o", "long.csv", "--long", "--quiet").status == 0
    with open("long.csv", newline="") as file:
        table = [tuple(row.values()) for row in csv.DictReader(file)]
    z, names = codes.model().transform(codes.embeddings(), 5), codes.rows().names
    columns = codes.names().columns(8)
    slow = [
        (names[i], str(k), columns[k], f"{z[i, k]:.9g}")
        for i in range(90) for k in range(8) if z[i, k] > 0
    ]  # fmt: skip
    assert table == slow
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        assert run("embed", "codes", "-o", "long.parquet", "--long", "--quiet").status == 0
        found = parquet.read_table("long.parquet").to_pydict()
        assert [(*row[:3], f"{row[3]:.9g}") for row in zip(*found.values())] == [
            (image, int(k), name, value) for image, k, name, value in slow
        ]
        return
    with sqlite3.connect(":memory:") as db:
        db.execute("create table codes (image, dimension int, name, value real)")
        db.executemany("insert into codes values (?, ?, ?, ?)", table)
        query = "select image from codes where dimension = 2 order by value desc limit 1"
        assert db.execute(query).fetchone()[0] == names[z[:, 2].argmax()]


def test_refusals(run, codes: CodesFolder, trained: Path) -> None:
    refused(run("embed", "codes", "-o", "long.npz", "--long", "--quiet"), "--long")
    refused(run("embed", trained, "-o", "e.npz", "--quiet"), "images")
