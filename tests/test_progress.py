"""What a person sees of a long run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bayesncl import progress, train
from bayesncl.progress import Display, words
from bayesncl.recipes import change, named
from bayesncl.train import compiles
from tests.conftest import tiny_images, tiny_recipe

LINE = {"epoch": 1.0, "loss": 2.0, "kl": 0.5, "open": 1.0, "active": 9, "near_dead": 1, "images_per_second": 50.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_plain_lines_are_few_and_their_pace_leaves_compiling_out(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    display, notes = Display(), []
    monkeypatch.setattr(display, "note", notes.append)
    display.begin(change(named("scenes"), ["run.epochs=10", "run.batch=20"]), 1000, 200)  # resumed at step 200
    for step, now in ((201, 170.0), (202, 170.1), (290, 178.9), (291, 179.0), (1000, 260.0)):  # 70 s to compile
        clock[0] = now
        display.advance(step)
    display.update(LINE | {"step": 1000})
    assert notes[0] == "scenes-bayesncl:  epoch 3/10"
    assert notes[1] == "scenes-bayesncl:  epoch 3/10  200 images/s  71 s left"  # 710 steps at 10 a second
    assert notes[2].startswith("scenes-bayesncl:  epoch 10/10")
    assert notes[3] == "scenes-bayesncl:  10 epochs in 3 min  loss 2.000  kl 0.50  open 100 %  active 9 (1 nearly dead)"
    assert len(notes) == 4


def live(width: int) -> Display:
    display = Display()
    display.console = Console(file=io.StringIO(), force_terminal=True, width=width)
    display.live = True
    return display


def test_notes_break_between_words_on_a_terminal_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    text, path = "said in a few words, no more:\n- as a list", f"runs/{'x' * 30}/index.html"
    display = live(20)
    display.note(f"{text} {path}")
    display.note(f"copy me:  {text[:25]}", wrap=False)
    assert isinstance(display.console.file, io.StringIO)
    assert display.console.file.getvalue().split("\n") == [
        "said in a few words,", "no more:", "- as a list", path, f"copy me:  {text[:25]}", "",
    ]  # fmt: skip
    Display().note(20 * "word ")
    assert capsys.readouterr().err == 20 * "word " + "\n"


def test_the_moving_line_fits_80_columns_and_says_more_where_there_is_room(clock: list[float]) -> None:
    found = {}
    for width in (30, 80, 200):
        clock[0] = 100.0
        display = live(width)
        display.begin(change(named("scenes"), ["run.epochs=20", "run.batch=100"]), 2000, 600)
        clock[0] = 104.0
        assert display._line().plain[1:] == "  first step 4 s"
        display.advance(601)
        display.update(LINE | {"step": 601})
        clock[0] = 114.0
        display.advance(701)
        found[width] = display._line().plain
        display.close()
        assert display.view is None
    assert all(len(line) < width for width, line in found.items())
    assert found[30].endswith("epoch 8/20")
    assert "epoch 8/20  1,000 images/s  2 min left  loss 2.000" in found[80]
    assert found[200].endswith("active 9 (1 nearly dead)")


def test_a_log_has_a_line_for_work_that_comes_late(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    display, notes = Display(), []
    monkeypatch.setattr(display, "note", notes.append)
    for what, seconds in (("starting", 4), ("training", 3), ("judging", 1), ("writing", 0)):
        display.busy(what)
        clock[0] += seconds
    assert notes == ["judging"]


def test_work_of_unknown_length_and_counted_work_move(clock: list[float]) -> None:
    display = live(80)
    display.busy("starting")
    lines = [display._line().plain]
    clock[0] += 1
    lines.append(display._line().plain)
    assert [line[1:] for line in lines] == ["  starting  0 s", "  starting  1 s"]
    display.count(250, 1000, "decoding")
    assert display._line().plain.endswith("decoding 250/1,000")
    display.count(1000, 1000, "decoding")
    assert display.view is None


def test_words_for_times() -> None:
    assert [words(s) for s in (0.4, 99, 100, 3600, 5969, 9000)] == ["0 s", "99 s", "2 min", "60 min", "99 min", "2.5 h"]


@pytest.mark.parametrize(("world", "rank", "silent"), [("1", "3", False), ("4", "0", False), ("4", "3", True)])
def test_one_process_of_several_speaks(world: str, rank: str, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("RANK", rank)
    assert Display().quiet == silent


def test_progress_needs_no_torch() -> None:
    code = "import sys, bayesncl.progress; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("compiled", [True, False])
def test_compiling_is_announced(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "compiles", lambda *_: compiled)
    monkeypatch.setattr(train, "make_step", lambda *_: lambda *_: None)  # there is no GPU to compile for
    notes: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: notes.append(text))
    train.train(tiny_recipe(), tiny_images(), tmp_path, display=Display())
    assert any(note.startswith("compiling the step for this GPU") for note in notes) == compiled


def test_only_a_gpu_with_triton_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = named("scenes")
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    assert not compiles(recipe, torch.device("cuda"))
    monkeypatch.setattr(train, "find_spec", lambda name: name == "triton" or None)
    assert compiles(recipe, torch.device("cuda"))
    assert not compiles(change(recipe, ["run.compile=false"]), torch.device("cuda"))
    assert not compiles(recipe, torch.device("cpu"))
