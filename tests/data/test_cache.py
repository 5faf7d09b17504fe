"""The pixel cache: decoded once, verified, complete or absent, shared by processes."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from bayesncl.data import cache as module
from bayesncl.data.cache import Entry, map_in_threads, read_images
from bayesncl.errors import InputError
from bayesncl.recipes import Data

EIGHT = Data(root="x", size=8)
ROOT = Path(__file__).parents[2]


def draw(folder: Path, count: int = 20) -> list[Entry]:
    """Images 000.png, 001.png, ... whose gray value is their number."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        Image.new("RGB", (8, 8), (i, i, i)).save(folder / f"{i:03}.png")
    return [Entry(f"{i:03}.png", folder / f"{i:03}.png") for i in range(count)]


def built(cache: Path) -> list[Path]:
    return sorted(p for p in cache.iterdir() if p.suffix != ".lock")


def read(entries: list[Entry]) -> list[int]:
    images = read_images(entries, EIGHT)
    assert list(images.names) == [entry.name for entry in entries]
    return [int(p[0, 0, 0]) for p in images.pixels]


def test_images_are_decoded_once_unless_they_change(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = draw(tmp_path / "d")
    assert read(entries) == list(range(20))
    with monkeypatch.context() as patch:
        patch.setattr(module, "decode", None)
        assert read(entries) == list(range(20))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    path = entries[3].path  # a changed file with its old time and size is noticed
    before = path.stat()
    Image.new("RGB", (8, 8), (99, 99, 99)).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and read(entries)[3] == 99


def test_a_damaged_cache_is_built_again(tmp_path: Path, cache: Path) -> None:
    entries = draw(tmp_path / "d")
    read(entries)
    for ending in (".npy", ".json"):
        for content in (None, b"", b"cut"):
            (file,) = cache.glob(f"*{ending}")
            raw = file.read_bytes()[:-5] if content == b"cut" else content
            file.unlink() if raw is None else file.write_bytes(raw)
            assert read(entries) == list(range(20))


BUILD = """
import sys, time
from pathlib import Path
from bayesncl.data.cache import Entry, read_images
from bayesncl.recipes import Data
def progress(done, total, what):
    if what.startswith("decoding"):
        print("decoding", done, flush=True)
        time.sleep(float(sys.argv[2]))
entries = [Entry(p.name, p) for p in sorted(Path(sys.argv[1]).iterdir())]
pixels = read_images(entries, Data(size=8), progress).pixels
print("sum", int(pixels.astype(int).sum()), flush=True)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(folder), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_build_one_cache(tmp_path: Path, cache: Path) -> None:
    draw(tmp_path / "d")
    processes = [start(tmp_path / "d", 0.02) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert all(f"sum {3 * 64 * 190}" in out for out in outputs)
    assert sum("decoding" in out for out in outputs) == 1  # the other waited for the result
    assert [p.suffix for p in built(cache)] == [".json", ".npy"]


def test_a_killed_builder_leaves_nothing_that_stays(tmp_path: Path, cache: Path) -> None:
    entries = draw(tmp_path / "d")
    process = start(tmp_path / "d", 0.2)
    assert process.stdout is not None and "decoding" in process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [p.suffix for p in built(cache)] == [".partial"]
    assert read(entries) == list(range(20))
    assert [p.suffix for p in built(cache)] == [".json", ".npy"]


def test_a_full_disk_gets_one_line_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = draw(tmp_path / "d")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(InputError, match="No space left"):
        read(entries)
    assert built(cache) == []


def test_a_read_error_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = draw(tmp_path / "d")
    fails = Mock(side_effect=OSError(5, "Input/output error"))
    read_bytes = Path.read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda p: (fails if p.stem == "004" else read_bytes)(p))
        with pytest.warns(UserWarning, match=r"004.png \(Input"):
            images = read_images(entries, EIGHT, labels=range(20))
    seen = [int(p[0, 0, 0]) for p in images.pixels]
    assert seen == images.labels.tolist() == [i for i in range(20) if i != 4]
    assert read(entries) == list(range(20))


def test_threads_keep_the_order_and_stay_near_the_consumer() -> None:
    slow = Mock(side_effect=lambda i: time.sleep(0.001 * (i % 3)) or i)
    results = map_in_threads(slow, range(100), ahead=20, threads=4)
    assert [next(results) for _ in range(10)] == list(range(10))
    time.sleep(0.1)
    assert slow.call_count <= 31
    assert list(results) == list(range(10, 100))
