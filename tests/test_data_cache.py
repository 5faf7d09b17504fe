from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from PIL import Image

from bayesncl.data import cache
from bayesncl.data.archive import Entry
from bayesncl.data.decode import Square
from bayesncl.errors import InputError
from bayesncl.files import temporary_beside

SQUARE = Square(8, 8)
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(folder: Path, count: int = 20) -> list[Entry]:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        Image.new("RGB", (8, 8), (i, i, i)).save(folder / f"{i:03}.png")
    return [Entry(f"{i:03}.png", folder / f"{i:03}.png") for i in range(count)]


def built(where: Path) -> list[Path]:
    return sorted(p for p in where.iterdir() if p.name not in ("locks", "seen"))


def read(entries: list[Entry], square: Square = SQUARE) -> list[int]:
    pixels, kept = cache.decoded(entries, square, what="x")
    assert list(kept) == list(range(len(entries)))
    return [int(p[0, 0, 0]) for p in pixels]


def test_decoded_once(tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = files(tmp_path / "d")
    assert read(entries) == list(range(20))
    monkeypatch.setattr(cache, "decode", None)  # must not be needed again
    assert read(entries) == list(range(20))
    assert len(built(where)) == 1


def test_key_is_content_and_settings_and_order(tmp_path: Path, where: Path) -> None:
    entries = files(tmp_path / "d")
    read(entries)
    for entry in entries:  # copied elsewhere, other names and times: the same pixels
        os.utime(entry.path, (1, 1))
        entry.path.rename(entry.path.with_name("new" + entry.path.name))
    moved = [Entry(e.name, e.path.with_name("new" + e.path.name)) for e in entries]
    assert read(moved) == list(range(20))
    assert len(built(where)) == 1
    assert read(moved[::-1]) == list(range(20))[::-1]
    pixels, _ = cache.decoded(moved, Square(4, 4), what="x")
    assert pixels.shape[2:] == (4, 4)
    assert len(built(where)) == 3


def test_changed_file_is_seen_even_with_its_old_time_and_size(tmp_path: Path) -> None:
    entries = files(tmp_path / "d")
    read(entries)
    path = entries[3].path
    before, raw = path.stat(), path.read_bytes()
    Image.new("RGB", (8, 8), (99, 99, 99)).save(path)
    assert len(path.read_bytes()) == len(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read(entries)[3] == 99


@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["always checked", "checked when changed"])
def test_damage_is_found_and_repaired(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(cache, "ALWAYS_CHECKED", limit)
    entries = files(tmp_path / "d")
    read(entries)
    rng = np.random.default_rng(0)
    for what in ("flip", "cut", "empty", "gone", "meta cut", "meta other"):
        (folder,) = built(where)
        pixels, meta = folder / "pixels.npy", folder / "meta.json"
        raw = bytearray(pixels.read_bytes())
        if what == "flip":
            raw[128 + int(rng.integers(len(raw) - 128))] ^= 4
            pixels.write_bytes(raw)
        elif what == "cut":
            pixels.write_bytes(raw[:-5])
        elif what == "empty":
            pixels.write_bytes(b"")
        elif what == "gone":
            pixels.unlink()
        elif what == "meta cut":
            meta.write_text(meta.read_text()[:-9])
        else:
            meta.write_text(json.dumps({"version": 1}))
        with pytest.warns(UserWarning, match="damaged and is built again"):
            assert read(entries) == list(range(20))
        assert read(entries) == list(range(20))


def test_leftovers_of_the_dead_are_swept_and_the_living_left_alone(tmp_path: Path, where: Path) -> None:
    dead, note = where / f".{'a' * 40}.00000001.partial", where / "seen" / ".x.00000002.partial"
    dead.mkdir(parents=True)
    note.parent.mkdir()
    note.write_text("x")
    with temporary_beside(where / ("b" * 40), folder=True) as alive:
        read(files(tmp_path / "d"))
        assert alive.exists()
    assert not dead.exists() and not note.exists()


def test_folders_that_go_or_are_torchs_are_not_looked_into(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (where / "compiled").mkdir(parents=True)
    scandir = os.scandir

    def scan(path: str | Path) -> object:
        if Path(path).parent == where and Path(path).name != "seen":
            raise FileNotFoundError(2, "No such file or directory", str(path))  # as if it was renamed a moment ago
        return scandir(path)

    with temporary_beside(where / ("b" * 40), folder=True), monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        assert read(files(tmp_path / "d")) == list(range(20))


def test_half_built_caches_go_where_folders_have_no_locks(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def flock_of_nfs(file: int | IO[bytes], operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    entries = files(tmp_path / "d")
    read(entries)
    (made,) = built(where)
    shutil.rmtree(made)
    other = f"{int(made.name[:2], 16) ^ 1:02x}{made.name[2:]}"  # has another lock, which a living builder may hold
    dead, old = where / f".{made.name}.01234567.partial", where / f"{made.name}.abc.tmp"
    alive, stranger = where / f".{other}.01234567.partial", where / f"{made.name[:2]}.tmp"
    for folder in (dead, old, alive, stranger):
        folder.mkdir()
    read(entries)
    assert set(built(where)) == {made, alive, stranger}


def test_a_finished_cache_is_private(tmp_path: Path, where: Path) -> None:
    read(files(tmp_path / "d"))
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in built(where)] == [0o700]


BUILD = """
import sys, time
from pathlib import Path
from bayesncl.data import cache
from bayesncl.data.archive import Entry
from bayesncl.data.decode import Square
folder = Path(sys.argv[1])
slow = float(sys.argv[2])
def progress(done, total, what):
    if what.startswith("decoding"):
        print("decoding", done, flush=True)
        time.sleep(slow)
entries = [Entry(p.name, p) for p in sorted(folder.iterdir())]
pixels, _ = cache.decoded(entries, Square(8, 8), what="x", progress=progress)
print("sum", int(pixels.astype(int).sum()), flush=True)
"""


def start(folder: Path, slow: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder), str(slow)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_two_processes_build_one_cache(tmp_path: Path, where: Path) -> None:
    files(tmp_path / "d")
    outputs = [p.communicate(timeout=60)[0] for p in [start(tmp_path / "d", 0.02), start(tmp_path / "d", 0.02)]]
    want = f"sum {3 * 64 * sum(range(20))}"
    assert all(want in out for out in outputs)
    assert sum("decoding" in out for out in outputs) == 1  # the other waited and used the result
    assert len(built(where)) == 1


def test_killed_builder_leaves_nothing_that_stays(tmp_path: Path, where: Path) -> None:
    entries = files(tmp_path / "d")
    process = start(tmp_path / "d", 0.2)
    assert process.stdout is not None
    assert "decoding" in process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [p.suffix for p in built(where)] == [".partial"]
    assert read(entries) == list(range(20))
    assert [p.suffix for p in built(where)] == [""]


def test_interrupted_builder_cleans_up(tmp_path: Path, where: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("decoding") and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.decoded(files(tmp_path / "d"), SQUARE, what="x", progress=stop)
    assert built(where) == []


def test_unwritable_cache_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="BAYESNCL_CACHE names another folder"):
        read(files(tmp_path / "d"))


def test_full_disk_gets_one_line_and_leaves_nothing(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    entries = files(tmp_path / "d")
    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        read(entries)
    assert built(where) == []


def test_file_removed_before_it_is_read(tmp_path: Path) -> None:
    entries = files(tmp_path / "d")
    entries[4].path.unlink()
    with pytest.warns(UserWarning, match=r"004.png \(No such file"):
        pixels, kept = cache.decoded(entries, SQUARE, what="x")
    assert list(kept) == [i for i in range(20) if i != 4]
    assert [int(p[0, 0, 0]) for p in pixels] == list(kept)


def test_map_keeps_order_and_stays_near_its_reader() -> None:
    begun: list[int] = []

    def slow(i: int) -> int:
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return i

    results = cache.in_threads(slow, range(500))
    assert [next(results) for _ in range(10)] == list(range(10))
    time.sleep(0.1)
    assert len(begun) <= (2 * cache.THREADS + 3) * cache.CHUNK
    assert list(results) == list(range(10, 500))


def test_a_few_items_are_shared_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "THREADS", 4)
    all_at_once = threading.Barrier(4, timeout=5)

    def meet(i: int) -> int:
        all_at_once.wait()
        return i

    assert list(cache.in_threads(meet, range(8))) == list(range(8))
    assert list(cache.in_threads(str, range(3))) == ["0", "1", "2"]
