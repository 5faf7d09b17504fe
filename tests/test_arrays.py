"""The one reader of array files: what it reads, what it refuses, and what that costs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import arrays
from bayesncl.arrays import as_features, as_labels, find_column, read_arrays, read_embeddings
from bayesncl.atlas.sources import atlas_of_arrays
from bayesncl.errors import InputError
from bayesncl.measure.sparse import unit_blocks

RNG = np.random.default_rng(0)
Z = RNG.standard_normal((30, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 30)


def header(shape: tuple[int, ...], descr: str) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def npz(path: Path, packed: bool, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return path


def tensors(path: Path, entries: object, raw: bytes = b"") -> Path:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw)
    return path


def test_every_format_gives_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=Z, y=Y)
    np.savez_compressed(tmp_path / "b.npz", z=Z, y=Y)
    np.save(tmp_path / "z.npy", np.asfortranarray(Z))
    np.save(tmp_path / "y.npy", Y)
    from safetensors.numpy import save_file

    save_file({"z": Z, "y": Y}, tmp_path / "c.safetensors")
    lines = ["label,a,b,c,d,e", *(f"{y}," + ",".join(map(repr, row)) for y, row in zip(Y, Z.tolist()))]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    for name in ("a.npz", "b.npz", "z.npy", "c.safetensors", "d.csv"):
        z, _, y = read_embeddings(tmp_path / name)
        assert np.array_equal(z, Z), name
        assert np.array_equal(y, Y), name
        assert isinstance(z, np.memmap) == (name in ("a.npz", "z.npy", "c.safetensors"))
    (tmp_path / "plain.csv").write_text("\n".join(",".join(map(repr, row)) for row in Z.tolist()))
    assert np.array_equal(read_arrays(tmp_path / "plain.csv", ("z",))["z"], Z)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"label": Y, **{f"z{i}": c for i, c in enumerate(Z.T.copy())}}), tmp_path / "a")
    parquet.write_table(pyarrow.table({"y": [f"c{y}" for y in Y], "embedding": Z.tolist()}), tmp_path / "b")
    for name in ("a", "b"):
        assert np.allclose(read_arrays(tmp_path / name, ("z",))["z"], Z)
    assert list(read_arrays(tmp_path / "a", ("y",))["y"]) == Y.tolist()
    assert list(read_arrays(tmp_path / "b", ("y",))["y"]) == [f"c{y}" for y in Y]
    more = {"width": Y, "caption": ["x"] * len(Y), "filename": [b"a"] * len(Y), "label": [None, *map(int, Y[1:])]}
    parquet.write_table(pyarrow.table(more | {"embedding": Z.tolist()}), tmp_path / "d")
    z, names, labels = read_embeddings(tmp_path / "d")  # what stands beside lists is no feature
    assert np.allclose(z, Z) and set(names) == {"a"} and labels.tolist() == ["", *map(str, Y[1:])]
    index = {"__index_level_0__": ["x"] * 30, "a": Y, "y": [None, 2.0] * 15}
    parquet.write_table(pyarrow.table(index), tmp_path / "f")
    z, names, labels = read_embeddings(tmp_path / "f")
    assert z.shape == (30, 1) and set(names) == {"x"} and labels.tolist() == ["", "2"] * 15
    table = pyarrow.table({"photo": ["a", "b"], "v": [1.0, 2.0]})
    said = {b"pandas": b'{"index_columns": ["photo", {"kind": "range"}]}'}
    parquet.write_table(table.replace_schema_metadata(said), tmp_path / "g")
    z, names, _ = read_embeddings(tmp_path / "g")  # an index that has a name is an index
    assert z.tolist() == [[1.0], [2.0]] and names.tolist() == ["a", "b"]
    parquet.write_table(table.replace_schema_metadata({b"pandas": b'{"index_columns": 7}'}), tmp_path / "g")
    with pytest.raises(InputError, match="column photo holds"):
        read_embeddings(tmp_path / "g")
    parquet.write_table(pyarrow.table(more), tmp_path / "e")
    with pytest.raises(InputError, match=r"column caption holds .*, no number"):
        read_arrays(tmp_path / "e", ("z",))
    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.float32())}), tmp_path / "h")
    assert read_embeddings(tmp_path / "h")[0].shape == (0, 1)
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes()[:300])
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays(tmp_path / "c", ("z",))


def test_parquet_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(InputError, match=r"pip install 'bayesncl\[tables\]'"):
        read_arrays(tmp_path / "a.parquet", ("z",))


def test_bfloat16_tensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    z = torch.from_numpy(Z).bfloat16()
    save_file({"z": z}, tmp_path / "a.safetensors")
    assert np.array_equal(read_arrays(tmp_path / "a.safetensors", ("z",))["z"], z.float().numpy())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("shape", "descr", "message"),
    [
        ((10**17,), "|V0", "holds .*V0"),
        ((2 * 10**9,), "<U0", "holds <U0"),
        ((2 * 10**9,), "|S0", "holds .*S0"),
        ((10**17,), "<i8", "cut short"),
        ((10**30, 10**30), "<i8", "shape"),
        ((-5,), "<i8", "shape"),
        ((30,), "<c8", "complex64"),
        ((30,), "<M8[s]", "datetime64"),
        ((30,), "<m8[s]", "timedelta64"),
        ((30,), "|O", "pickled"),
        ((30,), [("a", "<i4")], "expected real numbers"),
    ],
)
def test_sizes_and_types_are_checked_before_anything_is_copied(
    tmp_path: Path, packed: bool, shape: tuple[int, ...], descr: str, message: str
) -> None:
    path = npz(tmp_path / "a.npz", packed, y=header(shape, descr) + bytes(960))
    with pytest.raises(InputError, match=message) as caught:
        read_arrays(path, ("y",))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_characters_beyond_unicode(tmp_path: Path, packed: bool) -> None:
    for order in "<>":
        raw = np.array([65, 0x110000, 66, 67], f"{order}u4").tobytes()
        path = npz(tmp_path / "a.npz", packed, y=header((4,), f"{order}U1") + raw)
        with pytest.raises(InputError, match="beyond Unicode"):
            read_arrays(path, ("y",))
    with pytest.raises(InputError, match="beyond Unicode"):
        as_labels(np.array([65, 2**31], "<u4").view("<U1"), 2)


@pytest.mark.parametrize("packed", [False, True])
def test_a_flipped_byte_is_noticed(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if packed else np.savez)(path, z=Z)
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays(path, ("z",))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        ([], "cannot be read"),
        ({"z": 3}, "cannot be read"),
        ({"z": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 64]}}, "cut short"),
        ({"z": {"dtype": "F32", "shape": [16], "data_offsets": [0, 10**15]}}, "cut short"),
        ({"z": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 64]}}, "not a tensor"),
        ({"z": {"dtype": "F32", "shape": ["4"], "data_offsets": [0, 64]}}, "not a tensor"),
        ({"z": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 64]}}, "not a tensor"),
    ],
)
def test_hostile_tensors(tmp_path: Path, entries: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_arrays(tensors(tmp_path / "a.safetensors", entries, bytes(32)), ("z",))
    assert "\n" not in str(caught.value)
    (tmp_path / "b.safetensors").write_bytes((10**18).to_bytes(8, "little"))
    with pytest.raises(InputError, match="header is said to take"):
        read_arrays(tmp_path / "b.safetensors", ("z",))


@pytest.mark.parametrize("text", ["", "a,b\n1,2,3\n", "a,b\n1,x\n", "a\n" + "9" * 200_000, "a\n\xff"])
def test_hostile_tables(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode("latin1"))
    with pytest.raises(InputError) as caught:
        read_arrays(tmp_path / "a.csv", ("z",), needed=("z",))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_memory_is_asked_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", z=np.zeros((1000, 1000), np.float32))
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * 500_000)
    monkeypatch.setattr(arrays, "memory", lambda: 4_000_000)
    for name in ("a.npz", "a.csv"):
        with pytest.raises(InputError, match="over half of free memory"):
            read_arrays(tmp_path / name, ("z",))


@pytest.mark.parametrize(
    ("kind", "scale"), [(np.float32, 1e20), (np.float32, 1e-30), (np.float64, 1e300), (np.float64, 1e-300)]
)
def test_rows_of_any_scale_at_unit_length(kind: type, scale: float) -> None:
    wide = Z.astype(np.float64)
    wide[3] = 0
    expected = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-9)
    ((_, rows),) = unit_blocks((wide * scale).astype(kind))
    assert np.allclose(rows, expected, rtol=1e-5, atol=1e-7)
    wide[7, 2] = np.nan
    with pytest.raises(InputError, match="row 7 holds NaN"):
        list(unit_blocks(wide))


def test_atlas_of_scaled_features(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    pages = {}
    for name, scale in (("plain", 1.0), ("large", 1e300), ("small", 1e-300)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "f.npz", z=np.abs(Z).astype(np.float64) * scale, y=Y * 10**7, images=images)
        page = atlas_of_arrays(tmp_path / name / "f.npz", tmp_path / name / "atlas")
        pages[name] = {path.name: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    assert pages["plain"] == pages["large"] == pages["small"]
    np.savez(tmp_path / "c.npz", z=Z * 1j, images=images)
    with pytest.raises(InputError, match="complex"):
        atlas_of_arrays(tmp_path / "c.npz", tmp_path / "atlas")


def test_features_and_labels_of_any_kind() -> None:
    assert as_features([[1, 2], [3, 4]]).dtype == np.float64
    assert as_features(torch.zeros(2, 2, dtype=torch.bfloat16)).dtype == np.float32
    index, names = as_labels(np.array([7, -3, 7, 10**18]), 4)
    assert (index.tolist(), names.tolist()) == ([1, 0, 1, 2], [-3, 7, 10**18])
    for bad in (np.array([1j, 2]), np.array(["2020-01-01", "2021-01-01"], "M8[D]"), np.array([1.5, 2]), [np.nan, 1]):
        with pytest.raises(InputError, match="whole numbers or strings"):
            as_labels(bad, 2)


def test_large_arrays_are_not_loaded(tmp_path: Path) -> None:
    """A mapped array of 600 MB of zeros, which takes no room on disk, is read with far less memory than that."""
    with open(tmp_path / "z.npy", "wb") as file:
        file.write(header((150, 2**20), "<f4"))
        file.truncate(file.tell() + 150 * 2**22)
    script = "import sys; from bayesncl.arrays import read_arrays; print(read_arrays(sys.argv[1], 'z')['z'].shape)"
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "z.npy"], preexec_fn=limit, capture_output=True)
    assert done.stdout.split() == [b"(150,", b"1048576)"], done.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0,1\n2.5,3\n4,5\n", {"z": [[2.5, 3], [4, 5]]}),  # DataFrame(X).to_csv(index=False)
        (",0,1\n0,2.5,3\n1,4,5\n", {"z": [[2.5, 3], [4, 5]]}),  # and with its index
        ("a,b\n1,2\n\n3,4\n\n", {"z": [[1, 2], [3, 4]]}),
        ("name,a\n007,1\n07,2\n", {"z": [[1], [2]], "names": ["007", "07"]}),
        ("y,a\n7,1\n-8,2\n", {"z": [[1], [2]], "y": [7, -8]}),
        ("y,a\n1_0,1\n10,2\n", {"z": [[1], [2]], "y": ["1_0", "10"]}),
        ("Filename;a;Target\nx,y;1;t\nz;2;u\n", {"z": [[1], [2]], "y": ["t", "u"], "names": ["x,y", "z"]}),
        ("a\tb\n1\t2\n", {"z": [[1, 2]]}),
        ("id,a\n70,1\n80,2\n", {"z": [[1], [2]], "names": [70, 80]}),  # numbers of rows are no features
        (",a\ncat.jpg,1\ndog.jpg,2\n", {"z": [[1], [2]], "names": ["cat.jpg", "dog.jpg"]}),  # an index of names
        (",id,a,\n0,x,1,\n1,y,2,\n", {"z": [[1], [2]], "names": ["x", "y"]}),
        ("id,a\n0,5\n1,6\n", {"z": [[5], [6]], "names": [0, 1]}),
        (",a\n1,5\n2,6\n", {"z": [[5], [6]]}),
        ("1.5,2,\n3,4,\n", {"z": [[1.5, 2], [3, 4]]}),  # no heading, and a comma at the end
        ("y,a\nnan,1\n3,2\nnan,3\n", {"z": [[1], [2], [3]], "y": ["", "3", ""]}),
        ("id,path,index,a\n7,x,0,1\n8,y,1,2\n", {"z": [[1], [2]], "names": ["x", "y"]}),
    ],
)
def test_tables_say_what_they_say(text: str, wanted: dict[str, list[object]], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    found = read_arrays(tmp_path / "a.csv", ("z", "y", "names"))
    if "y" in found:
        found["y"] = find_column(found, "y")
    assert {name: values.tolist() for name, values in found.items()} == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,species\n1,cat\n", "column species holds 'cat', no number; head it label or name"),
        ("a,species\n1,\n", "column species is empty: fill it in"),
        ("1,,2\n3,4,5\n", "column  is empty: fill it in"),  # a row of a table without heading
        ("1,2,\n3,4,5\n", "3 columns, expected 2"),
    ],
)
def test_a_column_without_numbers_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.CSV").write_text(text)
    with pytest.raises(InputError, match=f"line [12]: {why}"):
        read_arrays(tmp_path / "a.CSV", ("z",))


def test_embeddings_and_labels_as_people_save_them(tmp_path: Path) -> None:
    """Pooled maps [N, F, 1, 1], one array of any name, bytes as HDF5 gives them, labels as a column or as floats."""
    column, paths = Y.astype(float)[:, None], np.array(["ä.jpg".encode()] * len(Z))
    np.savez(tmp_path / "a.npz", features=Z[:, :, None, None], labels=column, paths=paths)
    z, names, labels = read_embeddings(tmp_path / "a.npz")
    assert np.array_equal(z, Z) and names[0] == "ä.jpg" and labels.dtype == np.int64 and labels.tolist() == Y.tolist()
    column[1] = np.nan
    np.savez(tmp_path / "b.npz", image_embeds=Z, y=column)
    z, _, labels = read_embeddings(tmp_path / "b.npz")
    assert np.array_equal(z, Z) and labels.tolist() == [str(Y[0]), "", *map(str, Y[2:])]
    np.savez(tmp_path / "d.npz", X=Z, targets=Y)
    assert read_embeddings(tmp_path / "d.npz")[2].tolist() == Y.tolist()
    np.savez(tmp_path / "d.npz", X=Z, targets=Z)  # attributes, boxes
    assert read_embeddings(tmp_path / "d.npz")[2] is None
    np.savez(tmp_path / "c.npz", image=Z, text=Z)
    with pytest.raises(InputError, match=r"expected an array named z, .* it holds image, text"):
        read_embeddings(tmp_path / "c.npz")


def test_two_columns_of_one_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,path,a\nx,y,1\n")
    with pytest.raises(InputError, match="columns name and path hold the same kind of thing"):
        read_arrays(tmp_path / "a.csv", ("z", "names"))


def test_measured_numbers_are_no_classes_and_named_rows_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("target,f0\n0.5,1\n1.25,2\n,3\n")
    labels = read_embeddings(path)[2]
    assert labels is not None and labels.dtype.kind == "f" and np.isnan(labels[2])
    path.write_text("target,f0\n0.0,1\n1.0,2\n")
    assert read_embeddings(path)[2].tolist() == [0, 1]  # type: ignore[union-attr]
    path.write_text(",index,f0\n0,cat.jpg,1\n1,dog.jpg,2\n")
    assert read_embeddings(path)[1].tolist() == ["cat.jpg", "dog.jpg"]  # type: ignore[union-attr]
    path.write_text("name,f0\n,1\n,2\n")
    assert read_embeddings(path)[1] is None


def test_of_several_columns_of_lists_one_is_meant(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = {"bbox": [[0.0, 1.0]] * 3, "tokens": [[1], [1, 2], [3]], "embedding": [[1.0, 2.0, 3.0]] * 3}
    parquet.write_table(pyarrow.table(lists), tmp_path / "a.parquet")
    assert read_embeddings(tmp_path / "a.parquet")[0].tolist() == lists["embedding"]
    parquet.write_table(pyarrow.table({"left": lists["bbox"], "right": lists["bbox"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="columns left, right hold lists"):
        read_embeddings(tmp_path / "b.parquet")
