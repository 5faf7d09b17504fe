"""bayesncl embed: names and formats, of images and of the fitted rows, and refusals."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes import embed
from bayesncl.codes.embed import embed_images
from bayesncl.codes.folder import CodesFolder, hash_tree
from bayesncl.codes.open import PhotoCodes
from bayesncl.codes.table import Table, write_features
from bayesncl.errors import InputError
from bayesncl.inputs import read_arrays, read_embeddings
from bayesncl.method.encoder import build_model
from tests.commands import refused
from tests.conftest import tiny_recipe
from tests.data.conftest import save

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_contain_the_same_as_arrays(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for i, name in enumerate(("dog/1.png", 'cat/"2",.png', "cat/3.png")):
        save(tmp_path / "photos" / name, 80 * i, (40, 40))
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
    found, names, labels, _ = read_embeddings(tmp_path / "t.csv")
    assert names.tolist() == labels.tolist() == FORMULAS
    np.testing.assert_array_equal(found, z)


def test_refusals_come_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "read_images", lambda *_, **__: pytest.fail("work was done"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    model = build_model(tiny_recipe("ncl"))
    for name in ("x" * 252 + ".npz", "e.xlsx", "e.parquet"):
        with pytest.raises(InputError):
            embed_images(model, tmp_path, tmp_path / name)


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
    z, names, labels, _ = read_embeddings(Path(f"c.{ending}"))
    rows = codes.rows()
    expected = PhotoCodes(codes).transform(codes.embeddings(), 3)
    np.testing.assert_array_equal(z.astype(np.float32), expected)
    assert names.tolist() == list(rows.names)
    if ending == "npz":
        content = read_arrays("c.npz", ("dimensions", "novelty"))
        assert content["dimensions"].tolist() == codes.names().columns(8)
        assert content["novelty"].shape == (90,)
    else:
        assert labels.tolist() == [rows.class_names[label] for label in rows.labels]


def test_long_tables(run, codes: CodesFolder) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for ending in ("csv", "parquet"):
        assert run("embed", "codes", "-o", f"long.{ending}", "--long", "--quiet").status == 0
    with open("long.csv", newline="") as file:
        table = [tuple(row.values()) for row in csv.DictReader(file)]
    z, names = PhotoCodes(codes).transform(codes.embeddings(), 5), codes.rows().names
    columns = codes.names().columns(8)
    slow = [
        (names[i], str(k), columns[k], f"{z[i, k]:.9g}")
        for i in range(90) for k in range(8) if z[i, k] > 0
    ]  # fmt: skip
    assert table == slow
    found = parquet.read_table("long.parquet").to_pydict()
    rows = [(image, str(k), name, f"{value:.9g}") for image, k, name, value in zip(*found.values())]
    assert rows == slow


def write_table(path: str, columns: list[str], x: np.ndarray) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["name", *columns], *([f"r{i}", *x[i]] for i in range(len(x)))])


def test_columns_of_tables_are_matched_by_name(run, tmp_path: Path) -> None:
    x, columns = RNG.normal(size=(40, 20)), [f"f{i}" for i in range(20)]
    order = RNG.permutation(20)
    write_table("x.csv", columns, x)
    write_table("permuted.csv", [columns[i] for i in order], x[:, order])
    write_table("other.csv", [*columns[:-1], "<b>g"], x)
    np.save("x.npy", x)
    np.savez("x.npz", z=x[:, order], columns=[columns[i] for i in order])
    np.savez("plain.npz", z=x, columns=np.arange(20))  # no names
    assert run("fit", "x.csv", "-o", "codes", "--components", "4", "--quiet").status == 0
    model = PhotoCodes("codes")
    expected = model.transform(model.embeddings)
    for name in ("x.csv", "permuted.csv", "x.npz", "x.npy", "plain.npz"):
        np.testing.assert_allclose(embed.codes_of(model, Path(name)).z, expected, atol=1e-5)
    refused(run("embed", "codes", "other.csv", "--quiet"), "other.csv", "1 of the 20", "f19")
    tree = json.loads(Path("codes/codes.json").read_text())
    del tree["columns"], tree["checksum"]  # as older versions wrote it
    Path("codes/codes.json").write_text(json.dumps(tree | {"checksum": hash_tree(tree)}))
    by_position = embed.codes_of(PhotoCodes("codes"), Path("other.csv")).z
    np.testing.assert_allclose(by_position, expected, atol=1e-5)


def documented(pattern: str) -> list[str]:
    """Lines of the guide that match."""
    page = Path(__file__).parents[2] / "docs" / "tables.md"
    return re.findall(pattern, page.read_text(), re.M)


def test_documented_lines_of_sqlite(run, codes: CodesFolder) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("the sqlite3 command is not installed")
    assert run("embed", "codes", "-o", "long.csv", "--long", "--quiet").status == 0
    lines = documented(r"^    (sqlite3 .+)$")
    out = [subprocess.check_output(shlex.split(line), text=True) for line in lines]
    bees = [k for k, name in enumerate(codes.names().columns(8)) if name == "bee"]
    z, names = PhotoCodes(codes).transform(codes.embeddings(), 5), codes.rows().names
    rows = [(z[i, k], names[i]) for i in range(90) for k in bees if z[i, k] > 0]
    best = sorted(rows, key=lambda row: -row[0])[:20]
    assert len(lines) == 2 and out[1].split() == [name for _, name in best]


def test_documented_lines_of_duckdb(run, codes: CodesFolder) -> None:
    duckdb = pytest.importorskip("duckdb")
    assert run("embed", "codes", "-o", "long.csv", "--long", "--quiet").status == 0
    with open("long.csv", newline="") as file:
        table = list(csv.DictReader(file))
    count, both = [duckdb.sql(line).fetchall() for line in documented(r'duckdb\.sql\("(.+)"\)$')]
    assert sorted(count) == sorted(Counter(row["name"] for row in table).items())
    images = {name: {r["image"] for r in table if r["name"] == name} for name in ("ant", "bee")}
    assert {image for (image,) in both} == images["ant"] & images["bee"]


def test_sparse_vectors_restore_the_codes(run, codes: CodesFolder) -> None:
    for name in ("c.sparsevec.csv", "points.jsonl"):
        assert run("embed", "codes", "-o", name, "--quiet").status == 0
    z, rows = PhotoCodes(codes).transform(codes.embeddings(), 5), codes.rows()
    with open("c.sparsevec.csv", newline="") as file:
        table = list(csv.DictReader(file))
    points = [json.loads(line) for line in Path("points.jsonl").read_text().splitlines()]
    assert len(table) == len(points) == 90
    for i, (row, point) in enumerate(zip(table, points)):
        pairs, size = re.fullmatch(r"\{([\d.:,e-]+)\}/(\d+)", row["codes"]).groups()
        vector, sparse = np.zeros(int(size), np.float32), point["vector"]["codes"]
        for pair in pairs.split(","):
            k, value = pair.split(":")
            vector[int(k) - 1] = float(value)
        np.testing.assert_array_equal(vector, z[i])
        vector = np.zeros(8, np.float32)
        vector[sparse["indices"]] = sparse["values"]
        np.testing.assert_array_equal(vector, z[i])
        label = rows.class_names[rows.labels[i]]
        assert (row["name"], row["label"]) == (rows.names[i], label)
        payload = point["payload"]
        assert (point["id"], payload["name"], payload["label"]) == (i, rows.names[i], label)
        assert -5 < payload["novelty"] < 5
    for name in ("c.sparsevec.csv", "long.npz"):
        refused(run("embed", "codes", "-o", name, "--long", "--quiet"), "--long")
