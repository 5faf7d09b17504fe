"""Outputs: regular files whole or not at all, through links and with their mode; everything else as a stream."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bayesncl.errors import InputError
from bayesncl.files import check_place, temporary_beside, write_atomic, write_together

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_the_mode_of_a_file_stays(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(mode)
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "twin").touch()
    write_atomic(tmp_path / "x", "new")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "twin").stat().st_mode


def test_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "elsewhere/target.json"
    target.parent.mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("elsewhere/target.json")
    for text in ("made", "replaced"):  # it leads nowhere at first
        assert check_place(Path("first")) == Path("first")
        write_atomic(Path("first"), text)
        assert target.read_text() == text
        assert os.readlink("first") == "second"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["elsewhere", "first", "second", "target.json"]
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere/x")
    with pytest.raises(InputError, match="there is no folder"):
        check_place(tmp_path / "lost")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomic(tmp_path / "round", "x")


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert check_place(path) == path
    text = "x" * 300_000  # more than a pipe holds
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_atomic(path, text)
    reader.join(30)
    assert read == [text]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    assert check_place(Path("/dev/null")) == Path("/dev/null")
    write_atomic(tmp_path / "x", "")
    (tmp_path / "null").symlink_to("/dev/null")
    write_atomic(tmp_path / "null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (tmp_path / "null").is_symlink()


@pytest.mark.parametrize("redirected", [True, False])
def test_standard_output(tmp_path: Path, redirected: bool) -> None:
    """What is printed before and after is in its place, also where standard output is a file."""
    script = (
        "import sys; from pathlib import Path; from bayesncl.files import check_place, write_atomic; print('before');"
        "write_atomic(check_place(Path('/dev/stdout')), 'json\\n'); print('after')"
    )
    command = [sys.executable, "-c", script]
    if redirected:
        with open(tmp_path / "out", "w") as out:
            subprocess.run(command, cwd=ROOT, stdout=out, check=True)
        found = (tmp_path / "out").read_text()
    else:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found == "before\njson\nafter\n"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, temporary_beside(tmp_path / "atlas", folder=True):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "atlas")


def test_of_files_written_together_none_vouches_for_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after the first has taken its place: the last, which speaks for all, is gone."""
    first, last = tmp_path / "rows", tmp_path / "about"
    write_together({first: [b"old"], last: [b"old"]})
    real = os.replace

    def replace(a: Path, b: Path) -> None:
        if b == last:
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_together({first: [b"n", b"ew"], last: [b"new"]})
    assert first.read_bytes() == b"new" and [path.name for path in tmp_path.iterdir()] == ["rows"]
