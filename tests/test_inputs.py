"""Reading arrays, tables and labels: every format, and one line for every kind of bad input."""

import contextlib
import csv
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import scipy.sparse
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from bayesncl import inputs
from bayesncl.errors import InputError
from bayesncl.inputs import as_features, as_labels, read_arrays, read_embeddings, read_labels

RNG = np.random.default_rng(0)
Z = RNG.standard_normal((30, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 30)
MANY = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@contextlib.contextmanager
def one_line():
    """An InputError of one short line."""
    with pytest.raises(InputError) as caught:
        yield caught
    assert "\n" not in str(caught.value)


# Files of every format


def write_all(folder: Path, z: np.ndarray, y: np.ndarray) -> list[Path]:
    pandas = pytest.importorskip("pandas")
    np.savez(folder / "a.npz", z=z, y=y)
    np.savez_compressed(folder / "b.npz", z=z, y=y)
    np.save(folder / "z.npy", np.asfortranarray(z))
    np.save(folder / "y.npy", y)
    safetensors.numpy.save_file({"z": z, "y": y}, folder / "c.safetensors")
    frame = pandas.DataFrame(z.astype(float)).add_prefix("f").assign(label=y)
    frame.to_csv(folder / "d.csv", index=False)
    frame.to_parquet(folder / "e.parquet")
    names = ("a.npz", "b.npz", "z.npy", "c.safetensors", "d.csv", "e.parquet")
    return [folder / name for name in names]


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    for path in write_all(tmp_path, Z, Y):
        z, names, labels, _ = read_embeddings(path)
        assert np.array_equal(z, Z) and np.array_equal(labels, Y) and names is None, path
    assert isinstance(read_embeddings(tmp_path / "z.npy")[0], np.memmap)
    names = {"a.npz": {"z", "y"}, "c.safetensors": {"z", "y"}, "z.npy": set(), "d.csv": set()}
    assert {file: inputs.array_names(tmp_path / file) for file in names} == names


def test_bfloat16_and_empty_arrays(tmp_path: Path) -> None:
    z = torch.from_numpy(Z).bfloat16()
    safetensors.torch.save_file({"z": z}, tmp_path / "a.safetensors")
    found = read_arrays(tmp_path / "a.safetensors", ("z",))["z"]
    assert np.array_equal(found, z.float().numpy())
    np.save(tmp_path / "empty.npy", np.empty((0, 3)))
    assert read_embeddings(tmp_path / "empty.npy")[0].shape == (0, 3)


def test_embeddings_and_labels_as_people_save_them(tmp_path: Path) -> None:
    """[N, F, 1, 1], one array of any name, bytes as HDF5 gives them, labels as float columns."""
    column, paths = Y.astype(float)[:, None], np.array(["ä.jpg".encode()] * len(Z))
    np.savez(tmp_path / "a.npz", features=Z[:, :, None, None], labels=column, paths=paths)
    z, names, labels, _ = read_embeddings(tmp_path / "a.npz")
    assert np.array_equal(z, Z) and names[0] == "ä.jpg"
    assert labels.dtype == np.int64 and labels.tolist() == Y.tolist()
    column[1] = np.nan
    np.savez(tmp_path / "b.npz", image_embeds=Z, y=column)
    z, _, labels, _ = read_embeddings(tmp_path / "b.npz")
    assert np.array_equal(z, Z) and labels.tolist() == [str(Y[0]), "", *map(str, Y[2:])]
    np.savez(tmp_path / "c.npz", X=Z, targets=Y, class_names=np.array(["x", "y", "z"]))
    assert read_embeddings(tmp_path / "c.npz")[2].tolist() == [*np.array(["x", "y", "z"])[Y]]
    for bad in ({"image": Z, "text": Z}, {"z": Z, "y": Y[:-1]}, {"z": Z, "y": Z}):
        np.savez(tmp_path / "d.npz", **bad)
        with one_line():
            read_embeddings(tmp_path / "d.npz")


# Tables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (",0,1\n0,2.5,3\n1,4,5\n", {"z": [[2.5, 3], [4, 5]]}),  # DataFrame(X).to_csv()
        ("1.5,2\n3,4\n", {"z": [[1.5, 2], [3, 4]]}),  # no heading
        ("name,a\n007,1\n\n07,2\n\n", {"z": [[1], [2]], "names": ["007", "07"]}),
        ("y,a\n7,1\n-8,2\n", {"z": [[1], [2]], "y": [7, -8]}),
        ("y,a\n1_0,1\n10,2\n", {"z": [[1], [2]], "y": ["1_0", "10"]}),
        ("File;a;Target\nx,y;1;t\n", {"z": [[1]], "y": ["t"], "names": ["x,y"]}),
        (",id,a\n0,x,1\n1,y,2\n", {"z": [[1], [2]], "names": ["x", "y"]}),
        ("id,a\n1,5\n2,6\n", {"z": [[5], [6]]}),  # counts the rows
        ("target,a\n,1\n1.0,2\n", {"z": [[1], [2]], "y": ["", "1"]}),
        ("target,a\n0.5,1\n1.25,2\n", {"z": [[1], [2]], "y": [0.5, 1.25]}),
    ],
)
def test_columns_by_their_headings(text: str, expected: dict, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    found = read_arrays(tmp_path / "a.csv", ("z", "y", "names"))
    if "y" in found:
        found["y"] = inputs.find_column(found, "y")
    assert {name: values.tolist() for name, values in found.items()} == expected


BAD_TABLES = (
    "", "a,b\n1,2,3\n", "a\n" + "9" * 200_000, "a\n\xff", "a,species\n1,cat\n",
    "a,species\n1,\n", "1,,2\n3,4,5\n",
)  # fmt: skip


@pytest.mark.parametrize("text", BAD_TABLES)
def test_bad_tables_get_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.CSV").write_bytes(text.encode("latin1"))
    with one_line():
        read_arrays(tmp_path / "a.CSV", ("z",), needed=("z",))


def test_parquet_tables(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "a"  # known by its first bytes
    beside = {"width": Y, "caption": "x", "filename": b"a", "label": [None, *map(int, Y[1:])]}
    pandas.DataFrame({**beside, "embedding": Z.tolist()}).to_parquet(path)
    z, names, labels, _ = read_embeddings(path)  # beside lists no other column is a feature
    assert np.allclose(z, Z) and set(names) == {"a"} and labels.tolist() == ["", *map(str, Y[1:])]
    frame = pandas.DataFrame({"v": [1.0, 2.0], "y": [None, 2.0]}, index=["a", "b"])
    for name in (None, "photo", "path"):
        frame.rename_axis(name).to_parquet(path)
        z, names, labels, _ = read_embeddings(path)
        assert z.tolist() == [[1.0], [2.0]] and names.tolist() == ["a", "b"]
        assert labels.tolist() == ["", "2"]
    pandas.DataFrame({"a": np.array([], np.float32)}).to_parquet(path)
    assert read_embeddings(path)[0].shape == (0, 1)
    lists = {"bbox": [[0.0, 1.0]] * 3, "tokens": [[1], [1, 2], [3]], "embedding": [[1.0, 2.0]] * 3}
    pandas.DataFrame(lists).to_parquet(path)
    assert read_embeddings(path)[0].tolist() == lists["embedding"]
    for columns in (beside, {"e": lists["tokens"]}, {"a": lists["bbox"], "b": lists["bbox"]}):
        pandas.DataFrame(columns).to_parquet(path)
        with one_line():
            read_embeddings(path)


@MANY
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=2))
def test_formula_guard_round_trip(tmp_path: Path, cells: list[str]) -> None:
    """No cell of a written table starts a formula, and reading it gives the text back."""
    guarded = [inputs.guard_cell(cell) for cell in cells]
    assert all(c[:1] not in ("=", "+", "-", "@") or inputs._is_number(c) for c in guarded)
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("name", "z0"), *((cell, 1) for cell in guarded)])
    try:
        names = read_embeddings(tmp_path / "t.csv")[1]
    except InputError:
        assert any("\0" in cell or "\r" in cell for cell in cells)
        return
    if names is not None and names.dtype.kind == "U" and not any("\0" in cell for cell in cells):
        assert names.tolist() == cells


# Hostile files


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def test_nothing_is_unpickled_and_other_types_get_one_line(tmp_path: Path) -> None:
    objects = np.array([Exploit()], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", z=objects)
    np.savez(tmp_path / "beside.npz", z=Z, y=Y, class_names=objects)
    for name in ("b.npy", "b.npz", "b.safetensors", "b.csv", "b.parquet", "b.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(Exploit()))
    assert read_embeddings(tmp_path / "beside.npz")[2].tolist() == Y.tolist()
    (tmp_path / "beside.npz").unlink()
    for i, value in enumerate((Z * 1j, Y.astype("M8[s]"), np.zeros(3, "V4"))):
        np.savez(tmp_path / f"{i}.npz", z=value)
    for path in (*tmp_path.iterdir(), tmp_path, tmp_path / "none.npy", tmp_path / "a\0b"):
        with one_line():
            read_embeddings(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    paths = write_all(tmp_path_factory.mktemp("good"), Z[:4], Y[:4])
    return {path.name: path.read_bytes() for path in paths}


@MANY
@given(data=st.data())
def test_damaged_files_get_one_line_or_an_array(tmp_path: Path, good, data) -> None:
    """Bytes changed, cut or added anywhere: an InputError or plain arrays, no other exception."""
    path = tmp_path / data.draw(st.sampled_from(sorted(good)))
    raw = bytearray(good[path.name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        piece = data.draw(st.binary(max_size=4))
        raw[at : at + data.draw(st.sampled_from([0, len(piece), 40, len(raw)]))] = piece
    path.write_bytes(raw)
    with contextlib.suppress(InputError):
        for values in read_embeddings(path):
            assert values is None or values.dtype.kind in "fiubU"


# Features and labels


ANY_ARRAY = arrays_of.arrays(
    st.one_of(arrays_of.scalar_dtypes(), arrays_of.unicode_string_dtypes(max_len=3)),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@MANY
@given(ANY_ARRAY)
@pytest.mark.filterwarnings("ignore")
def test_any_array_as_features_or_labels(values: np.ndarray) -> None:
    with contextlib.suppress(InputError):
        features = as_features(values)
        assert features.ndim == 2 and features.dtype.kind == "f" and features.dtype.isnative
    with contextlib.suppress(InputError):
        index, classes = as_labels(values, len(values) if values.ndim else 0)
        assert index.dtype == np.int64 and (classes[index] == values.astype(classes.dtype)).all()


def test_features_and_labels_of_any_kind() -> None:
    assert as_features([[1, 2], [3, 4]]).dtype == np.float64
    assert as_features(torch.zeros(2, 2, dtype=torch.bfloat16)).dtype == np.float32
    index, classes = as_labels(np.array([7, -3, 7, 10**18]), 4)
    assert (index.tolist(), classes.tolist()) == ([1, 0, 1, 2], [-3, 7, 10**18])
    dates = np.array(["2020-01-01", "2021-01-01"], "M8[D]")
    for bad in (np.array([1j, 2]), dates, np.array([1.5, 2]), [np.nan, 1], [[1, 2]], [1], [1, 1]):
        with one_line():
            as_labels(bad, 2)


def test_labels_and_codes_as_pandas_and_scipy_hold_them() -> None:
    pandas = pytest.importorskip("pandas")
    words = pandas.Series(["b", "a", "b", "c"])
    for labels in (words, words.astype("string"), words.astype("category"), words.to_numpy(object)):
        index, classes = as_labels(labels, 4)
        assert (index.tolist(), classes.tolist()) == ([1, 0, 1, 2], ["a", "b", "c"])
    assert as_labels(np.array(["b", np.str_("a")], object), 2)[1].tolist() == ["a", "b"]
    numbers = pandas.Series([7, 3, 7, 3])
    for labels in (numbers.astype(object), numbers.astype("Int64")):
        assert as_labels(labels, 4)[1].tolist() == [3, 7]
    for missing in (None, np.nan):
        with pytest.raises(InputError, match="and str"):
            as_labels(pandas.Series(["b", missing, "a", "a"], dtype=object), 4)
    assert as_features(scipy.sparse.csr_matrix(Z)).tolist() == Z.tolist()


# Labels from files


def test_labels_by_name_or_by_row(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("name,label\nb.jpg,dog\na.jpg,cat\n")
    names = np.array(["x/a.jpg", "b.jpg"])
    assert read_labels(tmp_path / "y.csv", names, 2)[1].tolist() == ["cat", "dog"]
    with pytest.warns(UserWarning, match="order"):
        own_names, labels = read_labels(tmp_path / "y.csv", None, 2)
    assert own_names.tolist() == ["b.jpg", "a.jpg"] and labels.tolist() == ["dog", "cat"]
    np.save(tmp_path / "y.npy", Y)
    assert read_labels(tmp_path / "y.npy", None, 30)[1].tolist() == Y.tolist()
    np.savez(tmp_path / "none.npz", other=Z)
    np.savez(tmp_path / "wide.npz", y=Z)
    for name in ("y.npy", "none.npz", "wide.npz"):
        with one_line():
            read_labels(tmp_path / name, names, 2)


def test_ambiguous_and_missing_labels(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    for wanted, names in [
        (["x/a.jpg", "y/a.jpg"], ["a.jpg", "b.jpg"]),  # the last part is not unique
        (["a.jpg"], ["a.jpg", "a.jpg"]),  # two labels
        (["c.jpg"], ["a.jpg", "b.jpg"]),
    ]:
        np.savez(path, names=names, labels=["cat", "dog"])
        with one_line():
            read_labels(path, np.array(wanted), len(wanted))


def test_labels_that_are_no_classes() -> None:
    for labels, note in [(["", "a"], "no label"), ([0.5, 1], "neither")]:
        with pytest.warns(UserWarning, match=note):
            assert inputs.class_labels(np.array(labels)) is None
