"""Whether others use the processors, by a made-up /proc/stat."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bayesncl import __main__ as start
from bayesncl import cli


def at(monkeypatch: pytest.MonkeyPatch, path: Path, *lines: str) -> None:
    """/proc/stat says one line after the other."""
    said = iter(lines)
    monkeypatch.setattr(start, "STAT", path)
    monkeypatch.setattr(Path, "read_text", lambda self: next(said))


@pytest.mark.parametrize(
    ("then", "share"),
    [
        ("cpu 110 5 20 980 15 0 0 0 9 9\ncpu0 1", 10 / 95),  # 10 of 95 ticks busy
        ("cpu 195 5 20 900 10 0 0 0 0 0", 1.0),
        ("cpu 100 5 20 1000 10 0 0 0 0 0", 0.0),
        ("cpu 100 5 20 900 10 0 0 0 0 0", 0.0),  # no tick at all
        ("what else", 0.0),
        ("", 0.0),
    ],
)
def test_share_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str, share: float) -> None:
    at(monkeypatch, tmp_path, "cpu 100 5 20 900 10 0 0 0 0 0\ncpu0 1", then)
    assert start.busy_share(0.0) == pytest.approx(share)


def test_no_such_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(start, "STAT", tmp_path / "none")
    assert start.busy_share(0.0) == 0


def test_every_command_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(start, "catch_interrupts", lambda: None)
    monkeypatch.setattr(start, "rest_when_busy", lambda: called.append("rest"))
    monkeypatch.setattr(start, "keep_bytecode", lambda: called.append("keep"))
    monkeypatch.setattr(cli, "app", lambda: called.append("app"))
    for words in (["measure", "x.npz"], ["train", "--help"], ["--version"]):  # the last two need no torch
        monkeypatch.setattr(sys, "argv", ["bayesncl", *words])
        start.main()
    assert called == ["rest", "keep", "app", "app", "app"]


def test_an_interrupt_meanwhile_is_one_line() -> None:
    code = (
        "import os, signal; from bayesncl import __main__ as start; "
        "start.rest_when_busy = lambda: os.kill(os.getpid(), signal.SIGINT); start.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bayesncl: stopped\n")


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_an_interrupted_import_gives_the_cursor_back(term: str) -> None:
    """Ctrl-C while torch is imported ends the process at once, below the line that moves."""
    code = "from bayesncl import cli, __main__ as start; cli.open_display(False).busy('starting'); start.stop()"
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": term, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 130 and said.endswith("bayesncl: stopped\r\n")
    assert said.rfind("\x1b[?25h") >= said.rfind("\x1b[?25l")  # shown after it was hidden, if it was
    assert ("\x1b[?25h" in said) == (term == "xterm")


@pytest.mark.parametrize(
    ("share", "given", "found"), [(0.9, None, "PASSIVE"), (0.9, "ACTIVE", "ACTIVE"), (0.1, None, None)]
)
def test_threads_rest_if_others_are_busy(share: float, given: str | None, found: str | None) -> None:
    code = (
        "import os, sys; from bayesncl import __main__ as start; start.busy_share = lambda: float(sys.argv[1]); "
        "start.rest_when_busy(); print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    out = subprocess.run(
        [sys.executable, "-c", code, str(share)], env=environment, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str(found)
