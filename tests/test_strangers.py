"""Folders and files from strangers, met by fit, embed, export and atlas: one line, nothing waited for, nothing lost."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl import arrays, export, files, photos
from bayesncl.arrays import read_embeddings
from bayesncl.codes_folder import CodesFolder
from bayesncl.embed import Table
from bayesncl.embed import _csv as as_csv
from bayesncl.encoders import OnnxEncoder, Request, TorchEncoder, View, open_encoder
from bayesncl.errors import InputError
from bayesncl.names import read_names
from bayesncl.run import Run
from tests.commands import draw_folder, refused

NET = "tests.test_encoders:Net"
ROOT = Path(__file__).parent.parent
FIT = ["--dim", "4", "--quiet"]


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """What waits for a pipe fails."""

    def give_up(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of codes: `photos` and `array`, beside what they were fitted on."""
    from tests.commands import call

    top = tmp_path_factory.mktemp("made")
    draw_folder(top / "pictures")
    np.save(top / "x.npy", np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32))
    assert call("fit", top / "pictures", "-o", top / "photos", "--encoder", NET, *FIT) == 0
    assert call("fit", top / "x.npy", "-o", top / "array", *FIT) == 0
    return top


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the codes of photos, to be spoilt."""
    shutil.copytree(made / "pictures", tmp_path / "pictures", copy_function=shutil.copy2)
    return shutil.copytree(made / "photos", tmp_path / "photos")


def forge(folder: Path, change: object = None, **about: object) -> CodesFolder:
    """Change rows.json and codes.json; the checksum in the latter is right again."""
    here = CodesFolder(folder)
    tree = json.loads(here.about_file.read_text()) | about
    rows = json.loads(here.rows_file.read_text())
    if callable(change):
        change(rows)
    data = json.dumps(rows).encode()
    here.rows_file.write_bytes(data)
    tree["embeddings"]["names"] = hashlib.blake2b(data, digest_size=16).hexdigest()
    here.about_file.write_text(json.dumps(tree))
    return here


KNOWN = [path.name for path in vars(CodesFolder("x")).values() if path.name not in ("x", "atlas")]


@pytest.mark.parametrize("name", KNOWN)
def test_pipes_and_folders_in_the_place_of_files(name: str, run, folder: Path, tmp_path: Path) -> None:
    """A pipe in a folder of codes is not waited for, a folder not replaced; nothing is read or embedded before that."""
    spoilt = folder / name
    spoilt.unlink(missing_ok=True)
    os.mkfifo(spoilt)
    words = ["fit", tmp_path / "pictures", "-o", folder, "--encoder", NET, *FIT]
    refused(run(*words), name, "pipe or a device")
    assert stat.S_ISFIFO(spoilt.lstat().st_mode)
    spoilt.unlink()
    spoilt.mkdir()
    refused(run(*words), name if name != ".lock" else "Is a directory")
    assert spoilt.is_dir()


def test_a_pipe_in_the_place_of_results(run, folder: Path, trained: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "evaluation.json")
    answer = run("evaluate", folder, "--quiet")
    assert answer.status == 2 and "pipe or a device" in answer.err and "dimensions" in answer.out  # no result is lost
    here = shutil.copytree(trained, tmp_path / "run")
    for name in ("evaluation.json", "environment.json"):
        (here / name).unlink(missing_ok=True)
        os.mkfifo(here / name)
    assert Run(here).evaluation() is None and Run(here).environment() is None
    assert run("atlas", here, "-o", "page", "--quiet").status == 0
    (here / "recipe.json").unlink()
    os.mkfifo(here / "recipe.json")
    refused(run("resume", here, "--quiet"), "recipe.json")


def test_endless_files_are_not_read_to_their_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="larger than 64 MiB"):
        read_names("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_regular(tmp_path / "pipe", 10)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than"):
        files.read_regular(tmp_path / "sparse", 1 << 20)
    with pytest.raises(InputError, match="no such file"):
        files.read_tensors(tmp_path / "pipe")


@pytest.mark.parametrize("config", [b"[" * 100_000, b"\xff", b"", None])
def test_a_hostile_config_beside_weights(config: bytes | None, made: Path, tmp_path: Path) -> None:
    CodesFolder(made / "array").codes().save_pretrained(tmp_path / "hub")
    path = tmp_path / "hub/config.json"
    path.unlink()
    os.mkfifo(path) if config is None else path.write_bytes(config)
    with pytest.raises(InputError, match=r"config\.json"):
        bayesncl.ReadableCodes.from_pretrained(tmp_path / "hub")


def test_only_photos_of_the_known_size_are_shown(run, folder: Path, tmp_path: Path) -> None:
    """codes.json of a stranger may name any folder: pictures there are not those that he had."""
    private = draw_folder(tmp_path / "private")
    for path in private.rglob("*.png"):
        path.write_bytes(path.read_bytes() + b"longer")
    here = forge(folder, images=str(private))
    refused(run("atlas", folder, "--quiet"), "none of the 24 images is there")
    assert all(here.photo_paths(here.rows(), range(24), private))  # but where a person names it
    no_sizes = forge(folder, lambda rows: rows.update(marks=None))
    refused(run("atlas", folder, "--quiet"), "does not say how large its images are", "--data DIR")
    assert all(no_sizes.photo_paths(no_sizes.rows(), range(24), tmp_path / "pictures"))


def test_paths_of_rows_stay_in_the_folder_of_images(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures/ant/pipe.png").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "pictures/ant/pipe.png")
    wrong = ["../x.png", "/etc/passwd", "a\0b", "x" * 5000, "ant/pipe.png", "ant", ""]

    def change(rows: dict) -> None:
        rows["names"][: len(wrong)] = wrong

    here = forge(folder, change, images="../pictures")
    for root in (None, tmp_path / "pictures"):
        paths = here.photo_paths(here.rows(), range(24), root)
        assert paths[: len(wrong)] == [None] * len(wrong) and all(paths[len(wrong) :])


@pytest.mark.parametrize("name", ["test/x", "test/-1", "test/1.5", "", "val/3", "train/99999999999"])
def test_rows_of_a_run_are_numbers(name: str, trained: Path, run, tmp_path: Path) -> None:
    assert run("fit", trained, "-o", "codes", *FIT).status == 0
    forge(tmp_path / "codes", lambda rows: rows["names"].__setitem__(3, name))
    refused(run("atlas", "codes", "-o", "page", "--quiet"), "rows.json is damaged")
    forge(tmp_path / "codes", lambda rows: rows["names"].__setitem__(3, "train/96"))
    refused(run("atlas", "codes", "-o", "page", "--quiet"), "is of other images")


def test_what_fit_wrote_is_no_source_for_the_same_folder(made: Path, run) -> None:
    shutil.copytree(made / "array", "codes")
    before = {path.name: path.read_bytes() for path in Path("codes").iterdir()}
    refused(run("fit", "codes/embeddings.npy", "-o", "codes", *FIT), "lies in, the folder")
    assert {path.name: path.read_bytes() for path in Path("codes").iterdir()} == before


def test_rows_without_end(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be sparse: its rows take no room on a disk, but their names would in memory."""
    with open("sparse.npy", "wb") as file:
        fields = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 2)}
        np.lib.format.write_array_header_1_0(file, fields)
        file.truncate(file.tell() + 8 * 10**9)
    monkeypatch.setattr(arrays, "memory", lambda: 20 << 30)
    refused(run("fit", "sparse.npy", "-o", "codes", *FIT), "names of 1,000,000,000 rows would take")


def test_more_codes_than_memory_holds(made: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "memory", lambda: 36_000)
    answer = run("embed", made / "array", made / "x.npy", "-o", "e.npz", "--quiet")
    refused(answer, "40 x 4 codes would take")
    assert not Path("e.npz").exists()


def test_a_full_disk_leaves_the_old_rows_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings, rows and codes.json change together: nothing that was embedded is lost."""
    here = CodesFolder(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    about, rows = here.about(), here.rows()
    here.embeddings_file.chmod(0o600)
    for fatal in ("embeddings.npy", "rows.json", "codes.json"):
        real = files.temporary_beside

        def full(path: Path, real=real, fatal: str = fatal, **options: bool):
            if path.name == fatal:
                raise OSError(28, "No space left on device")
            return real(path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(files, "temporary_beside", full)
            with pytest.raises(InputError, match=r"cannot write to .*photos: No space left"):
                here.put_rows(about, rows, [np.zeros((24, 6), np.float32)], 6)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    here.put_rows(about, rows, [np.zeros((24, 6), np.float32)], 6)
    assert not here.embeddings().any()
    assert stat.S_IMODE(here.embeddings_file.stat().st_mode) == 0o600


def test_the_log_of_photos_outlives_a_full_disk_and_tells_damage(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_folder(tmp_path / "pictures")
    monkeypatch.setattr(photos, "BATCH", {"cpu": 4})
    words = ["fit", "pictures", "-o", "codes", "--encoder", NET, *FIT]
    real = photos.Log.append

    def full(log: photos.Log, *args: object) -> None:
        if len(log.lines) >= 16:
            raise InputError("no room")
        real(log, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(photos.Log, "append", full)
        refused(run(*words), "no room")
    here, encoder = CodesFolder("codes"), open_encoder(Request(NET))
    kept = here.log_index.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert run(*words).status == 1
    assert here.log_index.read_bytes() == kept
    assert len(photos.Log(here, encoder).lines) == 16
    data = bytearray(here.log.read_bytes())
    data[4 * encoder.features * 9] ^= 1
    here.log.write_bytes(data)
    assert len(photos.Log(here, encoder).lines) == 9
    assert run(*words).status == 0
    rows, x = here.rows(), here.embeddings()
    wanted = [encoder.embed(encoder.read((tmp_path / "pictures" / name).read_bytes())[None])[0] for name in rows.names]
    np.testing.assert_allclose(x, wanted, atol=1e-6)


FORMULAS = ["=1+1", "+x", "-x", "@x", "'=x", "''@x", "=cmd|' /C calc'!A0", "-1", "a\nb", "it's", "'x", ""]


def test_formulas_in_tables_are_text(tmp_path: Path) -> None:
    """Spreadsheets run what begins with = + - @; here it has an apostrophe before it, and comes back without."""
    z = np.arange(2 * len(FORMULAS), dtype=np.float32).reshape(-1, 2)
    data = as_csv(Table(z, FORMULAS, FORMULAS, ["=HYPERLINK(1)", "z1"]))
    (tmp_path / "t.csv").write_bytes(data)
    with open(tmp_path / "t.csv", newline="") as file:
        for row in csv.reader(file):
            for cell in row[:3]:
                assert cell[:1] not in ("=", "+", "@", "-") or float(cell) <= 0
    found, names, labels = read_embeddings(tmp_path / "t.csv")
    assert names.tolist() == labels.tolist() == FORMULAS
    np.testing.assert_array_equal(found, z)


def test_an_export_writes_to_pipes_and_keeps_modes(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's exporter wants a name: a file by that name must not take the place of a pipe or device."""
    monkeypatch.setattr(export, "import_onnx", lambda: (None, None))
    monkeypatch.setattr(export, "write_graph", lambda graph, example, names, path: path.write_bytes(b"onnx"))
    monkeypatch.setattr(export, "compare", lambda *_: 0.0)
    model = bayesncl.load(made / "array")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "m.onnx").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    export.export(model, tmp_path / "m.onnx")
    assert os.read(reader, 100) == b"onnx"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and (tmp_path / "m.onnx").is_symlink()
    (tmp_path / "own.onnx").touch(0o600)
    export.export(model, tmp_path / "own.onnx")
    assert (tmp_path / "own.onnx").read_bytes() == b"onnx"
    assert stat.S_IMODE((tmp_path / "own.onnx").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "m.onnx", "own.onnx"}


class Moody(torch.nn.Module):
    """Right for two photos, wrong for more."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.mood = mood

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2 and self.mood == "raises":
            raise IndexError("too many\nphotos")
        rows, columns = (2, 3) if len(x) <= 2 else {"rows": (1, 3), "columns": (len(x), 4), "none": (0, 3)}[self.mood]
        return torch.ones(rows, columns)


@pytest.mark.parametrize("mood", ["raises", "rows", "columns", "none"])
def test_an_encoder_that_goes_wrong_on_the_way(mood: str) -> None:
    encoder = TorchEncoder(Request("a:b"), View(32, 32), Moody(mood))
    assert encoder.features == 3
    with pytest.raises(InputError, match="encoder a:b") as told:
        encoder.embed(np.zeros((5, 3, 32, 32), np.uint8))
    assert "\n" not in str(told.value)


def test_an_onnx_file_gives_a_row_a_photo() -> None:
    """More rows than photos are not cut to fit."""
    put = SimpleNamespace(name="x", type="tensor(float)")
    for batch, extra, good in ((None, 0, True), (4, 0, True), (None, 4, False), (4, 1, False)):
        session = SimpleNamespace(
            get_inputs=lambda: [put], run=lambda names, given, e=extra: [np.ones((len(given["x"]) + e, 3), np.float32)]
        )
        if good:
            found = OnnxEncoder(Request("a.onnx"), View(32, 32), session, "y", batch, "w")
            assert found.embed(np.zeros((5, 3, 32, 32), np.uint8)).shape == (5, 3)
        else:
            with pytest.raises(InputError, match=r"gives \[\d, 3\] for 2 photos"):
                OnnxEncoder(Request("a.onnx"), View(32, 32), session, "y", batch, "w")


@pytest.mark.parametrize("side", [1.5, True, "32", None, 0, 5000])
def test_sides_of_photos_are_whole_numbers(side: object) -> None:
    with pytest.raises(InputError, match="pixels a side"):
        View(crop=side)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pixels a side"):
        View(resize=side)  # type: ignore[arg-type]


CUT = """
import os, sys, threading
import numpy as np, torch
from bayesncl import cli
cli.open_display(True)
np.save("a file.npy", np.ones((4096, 64), np.float32))
rows = np.load("a file.npy", mmap_mode="c")
os.truncate("a file.npy", 4096)
threads = [threading.Thread(target=rows.sum) for _ in range(6)]
ways = {
    "numpy": lambda: rows.sum(),
    "rows": lambda: rows[[1, 4095]],
    "torch": lambda: torch.from_numpy(rows).sum(),
    "threads": lambda: [t.start() for t in threads] + [t.join() for t in threads],
}
ways[sys.argv[1]]()
print("read")
"""


@pytest.mark.parametrize("way", ["numpy", "rows", "torch", "threads"])
def test_a_file_that_is_cut_while_it_is_mapped(way: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUT, way]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    name = tmp_path / "a file.npy"
    assert done.stderr == f"bayesncl: {name} was cut while it was read: start again once it is whole\n"


def test_lists_of_different_lengths_are_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid end to end they may make a table, but not the one that was meant."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"e": [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]]}), path)
    with pytest.raises(InputError, match=r"column e: lists of different lengths \(1, 2, 3\)"):
        read_embeddings(path)
    parquet.write_table(pyarrow.table({"e": [[0.0] * 10_000] * 200}), path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(arrays, "memory", lambda: 20_000_000)
    with pytest.raises(InputError, match="the table would take"):
        read_embeddings(path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "../x.png"])
def test_names_that_are_no_files(name: str, run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", classes=())
    x = np.random.default_rng(0).normal(size=(24, 5))
    np.savez("x.npz", z=x, names=np.array([f"{i:02}.png" for i in range(23)] + [name]))
    assert run("fit", "x.npz", "-o", "codes", "--images", "pictures", *FIT).status == 0
    here = CodesFolder("codes")
    assert here.photo_paths(here.rows(), range(24)).count(None) == 1
    np.savez("x.npz", z=x, names=np.array([name] * 24))
    assert len(refused(run("fit", "x.npz", "-o", "other", "--images", "pictures", *FIT), "none of the 24 images")) < 400


TOO_LARGE = "up to 1e+15, row 0 is not"


@pytest.mark.parametrize(("scale", "said"), [(1e38, TOO_LARGE), (1e300, TOO_LARGE), (1e-40, "below 1e-15")])
def test_embeddings_of_absurd_size(scale: float, said: str, run) -> None:
    np.save("x.npy", np.random.default_rng(0).normal(size=(24, 5)) * scale)
    refused(run("fit", "x.npy", "-o", "codes", *FIT), said)
    assert not Path("codes/embeddings.npy").exists()
    np.save("x.npy", np.random.default_rng(0).normal(size=(24, 5)) * (1e14 if scale > 1 else 1e-14))
    assert run("fit", "x.npy", "-o", "codes", *FIT).status == 0


def test_a_file_of_others_by_the_name_of_ours(run, tmp_path: Path) -> None:
    """Photos beside somebody's codes.json are photos, not a folder that fit wrote."""
    draw_folder(tmp_path / "pictures")
    for place in (tmp_path / "pictures", tmp_path / "pictures/ant"):
        (place / "codes.json").write_text('{"colours": []}')
    answer = run("fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "4")
    assert answer.status == 0 and "24 photos" in answer.err
    assert len(CodesFolder("codes").rows()) == 24
