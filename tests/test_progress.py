"""Progress on a terminal and in a log."""

import io
import time
from unittest.mock import patch

import pytest
from rich.console import Console

from bayesncl import progress
from bayesncl.errors import wrap
from bayesncl.progress import Display


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def on_terminal(width: int) -> Display:
    console = Console(stderr=True, force_terminal=True, width=width, highlight=False)
    with patch.object(progress, "Console", lambda **_: console):
        display = Display()
    display.bar.live.auto_refresh = False
    return display


def shown(display: Display, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(display.bar.get_renderable())
    return console.export_text()


def test_plain_lines_are_few(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    display, notes = Display(), []
    monkeypatch.setattr(display, "note", notes.append)
    for done in range(200, 1001):  # resumed at 200; 10 steps per second
        clock[0] += 0.1
        display.count(done, 1000, "scenes", "epoch 3/10")
    assert len(notes) == 5
    assert "epoch 3/10" in notes[0] and "s left" in notes[0]


def test_notes_break_between_words_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    display = on_terminal(20)
    display.note("a note of more than twenty characters")
    display.note("a command of more than twenty characters", wrap=False)
    assert [line.rstrip() for line in capsys.readouterr().err.split("\n")] == [
        "a note of more than", "twenty characters", "a command of more than twenty characters", "",
    ]  # fmt: skip


def test_paths_and_shares_are_not_broken() -> None:
    path, lines = "a/long/path/of/forty/characters/or-so/it", wrap("5 of 6 % in 7 s", 7).split("\n")
    assert lines == ["5 of", "6 % in", "7 s"]
    assert wrap(f"see {path}", 20, "- ", "  ").split("\n") == ["- see", f"  {path}"]


def test_the_bar_fits_its_terminal(clock: list[float]) -> None:
    for width in (30, 80):
        display = on_terminal(width)
        display.busy("starting")
        clock[0] += 3
        assert "starting" in shown(display, width) and "3 s" in shown(display, width)
        for done in (600, 650, 700):
            display.count(done, 2000, "scenes", "epoch 7/20")
            clock[0] += 5
        line = shown(display, width).rstrip("\n")
        display.close()
        assert "\n" not in line and len(line) <= width and "700/2,000" in line
        assert width == 30 or "2 min left  epoch 7/20" in line


def test_one_process_of_several_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    for world, rank, silent in (("1", "3", False), ("4", "0", False), ("4", "3", True)):
        monkeypatch.setenv("WORLD_SIZE", world)
        monkeypatch.setenv("RANK", rank)
        assert Display().quiet == silent
