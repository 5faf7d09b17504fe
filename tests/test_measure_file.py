"""Measuring files: what comes out, what is refused, and how results are printed."""

from __future__ import annotations

import builtins
import csv
import io
import os
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import arrays, cli
from bayesncl import evaluate as module
from bayesncl.arrays import read_embeddings
from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features, measure_file
from bayesncl.measure.interpretability import interpretability
from bayesncl.measure.result import Result
from bayesncl.measure.retrieval import retrieval
from bayesncl.report.tables import compare, render

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 120)
FEATURES = np.maximum(RNG.standard_normal((120, 80)) + 2 * np.eye(80)[LABELS] - 1, 0).astype(np.float32)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "features.npz", z=FEATURES, y=LABELS)
    return tmp_path / "features.npz"


def plain(result: Result) -> dict:
    """The numbers, less what the file and its classes are called."""
    result.readable.pop("clearest", None)
    return {key: value for key, value in result.to_dict().items() if key not in ("parameters", "verdict")}


def test_result_is_the_functions_by_name(npz: Path) -> None:
    result = measure_file(npz)
    old = {"paper", "sound", "retrieval", "chance", "parameters"}
    assert set(result.to_dict()) == old | {"verdict", "readable", "kept", "detectors", "coverage", "whole"}
    for definition in ("paper", "sound"):
        expected = interpretability(FEATURES, LABELS, definition)
        for key, value in getattr(result, definition).items():
            assert value == (value if value is None else pytest.approx(expected[key], rel=1e-6)), key
        for kept, dims in (("64", 64), ("all", None)):
            by_k = retrieval(FEATURES, LABELS, dims, definition=definition)
            assert result.retrieval[definition][kept] == pytest.approx({str(k): v for k, v in by_k.items()})
    assert set(result.retrieval["sound"]) == {"64", "all"}
    shuffled = np.random.default_rng(0).permutation(LABELS)
    by_chance = interpretability(FEATURES, shuffled)
    assert result.chance["sound"]["consistency"] == pytest.approx(by_chance["consistency"])
    assert "l0" not in result.chance["sound"]
    assert set(result.chance["retrieval"]) == {"paper", "sound"}
    parameters = result.parameters
    assert (parameters["images"], parameters["classes"], parameters["queries"]) == (120, 4, 120)
    assert parameters["images_per_class"] == [int(np.bincount(LABELS).min()), int(np.bincount(LABELS).max())]
    assert Result.from_json(result.to_json()) == result  # nothing JSON cannot hold; a second run gives the same
    assert measure_file(npz) == result


def test_storage_does_not_matter(npz: Path, tmp_path: Path) -> None:
    expected = plain(measure_file(npz))
    np.savez_compressed(tmp_path / "packed.npz", z=FEATURES, y=LABELS)
    np.savez(tmp_path / "fortran.npz", z=np.asfortranarray(FEATURES), y=LABELS.astype(float))
    np.savez(tmp_path / "words.npz", z=FEATURES, y=np.array(["ant", "bee", "cow", "dog"])[LABELS])
    np.savez(tmp_path / "offset.npz", z=FEATURES, y=LABELS * 3 - 5)
    np.save(tmp_path / "z.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    for name in ("packed.npz", "fortran.npz", "words.npz", "offset.npz", "z.npy"):
        assert plain(measure_file(tmp_path / name)) == expected, name
    np.savez(tmp_path / "unlabelled.npz", z=FEATURES)
    assert plain(measure_file(tmp_path / "unlabelled.npz", tmp_path / "y.npy")) == expected
    assert plain(measure_features(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))) == expected


def test_without_labels(npz: Path, tmp_path: Path) -> None:
    """What can be said without them; a second encoder tells what is alike."""
    np.savez(tmp_path / "z.npz", z=FEATURES)
    result = measure_file(tmp_path / "z.npz")
    assert set(result.to_dict()) == {"retrieval", "chance", "parameters", "verdict", "coverage"}
    assert Result.from_json(result.to_json()) == result
    assert result.coverage == measure_file(npz).coverage
    np.save(tmp_path / "e.npy", np.eye(4)[LABELS] + 0.1 * RNG.standard_normal((120, 4)))
    judged = measure_file(tmp_path / "z.npz", None, tmp_path / "e.npy")
    assert judged.labelfree["by"] == "a second encoder"
    assert judged.readable["count"] > judged.chance["readable"]["count"]
    assert render(judged, "csv").count("labelfree") >= 3


def test_names_that_fit_takes_will_do(npz: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", embeddings=FEATURES, labels=LABELS.astype(float))
    np.savez(tmp_path / "alone.npz", vectors=FEATURES)
    (tmp_path / "y.csv").write_text("label\n" + "".join(f"{y}\n" for y in LABELS))
    expected = measure_file(npz).sound
    assert measure_file(tmp_path / "other.npz").sound == expected
    assert measure_file(tmp_path / "alone.npz", tmp_path / "y.csv").sound == expected
    np.savez(tmp_path / "some.npz", z=FEATURES, y=np.where(LABELS, LABELS, np.nan))
    with pytest.warns(UserWarning, match=f"{(LABELS == 0).sum()} of 120 rows have no label"):
        assert measure_file(tmp_path / "some.npz").sound is None


def test_what_else_a_file_may_hold(tmp_path: Path) -> None:
    more = {"h": FEATURES, "y_coarse": LABELS // 2, "control": RNG.random((120, 80)), "again": FEATURES[:, ::-1]}
    np.savez(tmp_path / "all.npz", z=FEATURES, y=LABELS, **more)
    result = measure_file(tmp_path / "all.npz")
    assert result.labelfree["by"] == "the embeddings given"
    assert result.seeds["mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert result.readable["by"] == "class or superclass"
    assert result.control["kept"]["5"]["p5"] < result.kept["5"]["p5"] > result.chance["kept"]["5"]["p5"]
    assert result.control["coverage"]["l0"] == 80
    assert Result.from_json(result.to_json()) == result
    lines = render(result).splitlines()
    assert "untrained" in lines[0]
    assert len(result.verdict["lines"]) <= 8


def test_uncompressed_arrays_are_mapped(npz: Path, tmp_path: Path) -> None:
    features = read_embeddings(npz)[0]
    assert isinstance(features, np.memmap)
    assert np.array_equal(features, FEATURES)
    np.save(tmp_path / "z.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    assert isinstance(read_embeddings(tmp_path / "z.npy")[0], np.memmap)


def test_many_rows_use_a_sample_of_queries(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_ROWS", 100)
    monkeypatch.setattr(module, "SAMPLED_QUERIES", 30)
    monkeypatch.setattr(module, "JUDGED_ROWS", 90)
    result = measure_file(npz)
    assert result.verdict["images"] == result.parameters["judged_rows"] == 90
    assert (result.parameters["queries"], result.parameters["queries_sampled"]) == (30, True)
    rows = np.sort(np.random.default_rng(0).choice(120, 30, replace=False))
    assert result.retrieval["sound"]["all"]["5"] == pytest.approx(retrieval(FEATURES, LABELS, queries=rows)[5])


def test_features_by_definition_and_strict_ranking() -> None:
    other = FEATURES[:, ::-1] ** 2
    ranking = np.arange(80.0)
    result = measure_features({"paper": FEATURES, "sound": other}, LABELS, dims=(8,), ks=(5, 500), ranking=ranking)
    assert result.paper["consistency"] == pytest.approx(interpretability(FEATURES, LABELS, "paper")["consistency"])
    assert result.sound["consistency"] == pytest.approx(interpretability(other, LABELS)["consistency"])
    assert result.retrieval["sound"]["8"]["5"] == pytest.approx(retrieval(other, LABELS, 8, ranking=ranking)[5])
    by_paper = retrieval(FEATURES, LABELS, 8, definition="paper")[5]
    assert result.retrieval["paper"]["8"] == {"5": pytest.approx(by_paper)}
    assert measure_features({"paper": FEATURES}, LABELS).sound is None


@pytest.mark.parametrize(
    ("kind", "scale"),
    [(np.float64, s) for s in (1e-300, 1e-100, 1e-13, 1e100, 1e148)] + [(np.float32, s) for s in (1e-30, 1e25)],
)
def test_the_length_of_rows_does_not_matter(kind: type, scale: float) -> None:
    """What is defined on unit rows is the same for rows whose squares would be 0 or infinite."""
    z = FEATURES.astype(np.float64)
    z[7] = 0
    expected = measure_features(z, LABELS, dims=(8,))
    rows = np.where(np.arange(len(z)) % 3 == 0, scale, 1.0)[:, None]
    for factor in (scale, rows):
        result = measure_features((z * factor).astype(kind), LABELS, dims=(8,))
        for key in ("retrieval", "sound"):
            close = {"retrieval": 1e-9, "sound": 1e-9 if kind is np.float64 else 1e-5}[key]
            for name, value in flat(getattr(expected, key)).items():
                if not name.endswith(("effective_rank", "orthogonality")) or factor is rows:
                    assert flat(getattr(result, key))[name] == pytest.approx(value, rel=close, abs=1e-9), (key, name)
    assert measure_features(z, LABELS, dims=(8, 80, 300)).parameters["retrieval_dims"] == [8]


def flat(tree: dict, above: str = "") -> dict:
    leaves = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{above}{key}/") if isinstance(value, dict) else {above + key: value}
    return leaves


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def forge(path: Path, compression: int, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


class Bomb:
    """Unpickling this would leave a mark."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("unpickled"),)


def test_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "objects.npz", z=np.array([[Bomb()], [Bomb()]], dtype=object), y=[0, 1])
    np.savez_compressed(tmp_path / "packed.npz", z=np.ones((2, 2)), y=np.array([Bomb(), 1], dtype=object))
    np.save(tmp_path / "z.npy", np.array([[Bomb()]], dtype=object))
    (tmp_path / "y.npy").write_bytes(b"")
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    for name, message in (
        ("objects.npz", "pickled"),
        ("packed.npz", "pickled"),
        ("z.npy", "pickled"),
        ("raw.npz", "not an .npz"),
    ):
        with pytest.raises(InputError, match=message):
            measure_file(tmp_path / name)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_lying_headers_are_refused(tmp_path: Path, compression: int) -> None:
    huge = {"z.npy": header((10**9, 10**9)) + bytes(64), "y.npy": header((2,), "<i8") + bytes(16)}
    with pytest.raises(InputError, match="need"):
        measure_file(forge(tmp_path / "huge.npz", compression, huge))
    negative = {"z.npy": header((-4, -4)) + bytes(64), "y.npy": header((2,), "<i8") + bytes(16)}
    with pytest.raises(InputError, match="shape"):
        measure_file(forge(tmp_path / "negative.npz", compression, negative))


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", z=np.zeros((1000, 1000), np.float32), y=np.arange(1000) % 2)
    monkeypatch.setattr(arrays, "memory", lambda: 4_000_000)
    with pytest.raises(InputError, match="over half of free memory"):
        measure_file(tmp_path / "bomb.npz")


def test_bad_files(tmp_path: Path) -> None:
    good = {"z": FEATURES, "y": LABELS}
    nan = FEATURES.copy()
    nan[7, 3] = np.nan
    cases: list[tuple[dict[str, np.ndarray], str]] = [
        ({"y": LABELS}, "no embeddings in it, .* it holds y"),
        (good | {"y": LABELS * 0}, "one class"),
        (good | {"y": LABELS[:-1]}, r"but labels \[119\]"),
        (good | {"y": FEATURES}, r"but labels \[120, 80\]"),
        (good | {"z": nan}, "row 7 holds NaN"),
        (good | {"z": FEATURES[:0], "y": LABELS[:0]}, "empty"),
        (good | {"z": FEATURES[:, 0]}, r"\[N, D\]"),
        (good | {"z": FEATURES.astype("S3")}, "float16"),
    ]
    for number, (members, message) in enumerate(cases):
        for save in (np.savez, np.savez_compressed):
            path = tmp_path / f"{number}.npz"
            save(path, **members)
            with pytest.raises(InputError, match=message) as error:
                measure_file(path)
            assert "\n" not in str(error.value)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, message in (
        ("text.npz", "not an .npz"),
        ("empty.npz", "not an .npz"),
        ("none.npz", "no such file"),
        (".", "a folder, expected a file"),
    ):
        with pytest.raises(InputError, match=message):
            measure_file(tmp_path / name)


def test_damaged_files(npz: Path, tmp_path: Path) -> None:
    """Every cut, and bytes changed all over, give a result or one clear line."""
    for packed in (False, True):
        (np.savez_compressed if packed else np.savez)(npz, z=FEATURES[:12, :3], y=LABELS[:12])
        data = npz.read_bytes()
        broken = tmp_path / "broken.npz"
        damaged = [data[:size] for size in range(0, len(data), 37)]
        damaged += [data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :] for i in range(0, len(data), 11)]
        for content in damaged:
            broken.write_bytes(content)
            message = ""
            try:
                measure_file(broken)
            except InputError as error:
                message = str(error)
            assert "\n" not in message


def test_render(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measure_file(npz)
    table = render(result)
    assert f"{result.sound['consistency_mass']:.2f}" in table
    assert "retrieval precision at 5, 64 dimensions (%)" in table
    assert "effective rank" not in table
    assert "effective rank" in render(result, everything=True)
    rows = list(csv.DictReader(io.StringIO(render(result, "csv"))))
    sound = {row["measure"]: row for row in rows if row["definition"] == "sound"}
    assert float(sound["consistency"]["value"]) == result.sound["consistency"]
    assert float(sound["consistency"]["chance"]) == result.chance["sound"]["consistency"]
    assert sound["l0"]["chance"] == ""
    by_chance = result.chance["retrieval"]["sound"]["64"]["5"]
    assert float(sound["retrieval, 64 dimensions, precision at 5"]["chance"]) == by_chance
    markdown = render(result, "markdown").splitlines()
    assert markdown[0] == "| definition | measure | value | chance |"
    assert all(line.count("|") == 5 for line in markdown)
    latex = render(result, "latex")
    assert r"consistency (\%)" in latex
    assert latex.count("\\\\\n") == len(markdown) - 1
    with pytest.raises(InputError, match="table, csv"):
        render(result, "html")
    whole = render(result, everything=True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, says rich
    for columns, widest in (("80", 80), ("30", 60), ("200", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        table = re.sub(r"\x1b\[\d*m", "", render(result, everything=True))
        assert max(map(len, table.splitlines())) <= widest
        assert sorted(table.split()) == sorted(whole.split())  # wrapped, and nothing cut off


def test_compare() -> None:
    text = compare({"a": {"params": 14_319_168, "x": 0.5}, "b": {"params": 3, "y": None}})
    found = [line.split() for line in text.splitlines()[1:]]
    assert found == [["params", "14,319,168", "3"], ["x", "0.500", "-"], ["y", "-", "-"]]


def test_files_do_not_hang_on_the_table_nor_the_table_on_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", z=np.abs(rng.normal(size=(40, 6))), y=np.arange(40) % 4)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        cli.measure(tmp_path / "f.npz", json=tmp_path / "file" / "m.json", quiet=True)
    assert "consistency" in capsys.readouterr().out

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(builtins, "print", closed)
    with pytest.raises(BrokenPipeError):
        cli.measure(tmp_path / "f.npz", json=tmp_path / "m.json", csv=tmp_path / "m.csv", quiet=True)
    assert "consistency" in (tmp_path / "m.json").read_text()
    assert "consistency" in (tmp_path / "m.csv").read_text()


def test_a_mapped_file_cut_between_two_blocks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesncl.measure import counts

    monkeypatch.setattr(counts, "BLOCK", 4096)
    np.save(tmp_path / "z.npy", np.ones((4096, 8), np.float32))
    z = np.load(tmp_path / "z.npy", mmap_mode="r")
    found = counts.blocks(z)
    next(found)
    os.truncate(tmp_path / "z.npy", 65536)
    with pytest.raises(InputError, match=r"z.npy was cut while it was read"):
        list(found)


def test_what_is_not_needed_is_not_read(tmp_path: Path) -> None:
    """Arrays of objects, names of classes, labels under a second name: none of them is in the way."""
    y = np.arange(60) % 3
    z = np.eye(3)[y] + 0.01
    pickled = np.array(["a", None, "c"], object)
    extras = ({"names": np.array(["a", "b", "c"])}, {"names": pickled}, {"class_names": pickled}, {"labels": pickled})
    for extra in extras:
        np.savez(tmp_path / "f.npz", z=z, y=y, **extra)
        assert measure_file(tmp_path / "f.npz").sound["classes_owned"] is not None
    np.savez(tmp_path / "h.npz", h=z)  # which is what is measured, and no embedding to judge it by
    assert "Without labels or embeddings" in str(measure_file(tmp_path / "h.npz").verdict)


@pytest.mark.filterwarnings("ignore")
def test_labels_that_were_asked_for_must_be_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", z=np.eye(6), y=np.arange(6) % 2)
    (tmp_path / "names.csv").write_text("name\n" + "\n".join("abcdef") + "\n")
    np.save(tmp_path / "measured.npy", np.linspace(0, 1, 6))
    for name, why in (("names.csv", "no labels in it"), ("measured.npy", "no labels to judge by")):
        with pytest.raises(InputError, match=why):
            measure_file(tmp_path / "f.npz", tmp_path / name)
