"""What a person sees of a long run where there is no terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayesncl import progress, train
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.train import compiles
from tests.conftest import tiny_images, tiny_recipe


def test_time_left_is_by_the_pace_since_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    display, notes = Display(), []
    monkeypatch.setattr(display, "note", notes.append)
    display.begin(named("scenes"), 1000, 200)  # resumed at step 200
    line = {"epoch": 1.0, "loss": 2.0, "kl": 0.0, "open": 1.0, "active": 9, "near_dead": 1, "images_per_second": 50.0}
    for step, now in ((250, 170.0), (300, 171.0), (350, 180.0), (1000, 181.0)):  # 70 s to compile
        clock[0] = now
        display.update(line | {"step": step})
    assert [note.split()[2] for note in notes] == ["250/1000", "350/1000", "1000/1000"]
    assert "left" not in notes[0]
    assert notes[1].endswith("  65 s left")  # 650 steps at 100 in 10 s
    assert notes[2].endswith("  0 s left")


@pytest.mark.parametrize("compiled", [True, False])
def test_compiling_is_announced(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "compiles", lambda *_: compiled)
    monkeypatch.setattr(train, "make_step", lambda *_: lambda *_: None)  # there is no GPU to compile for
    notes: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: notes.append(text))
    train.train(tiny_recipe(), tiny_images(), tmp_path, display=Display())
    assert any(note.startswith("compiling the step for this GPU") for note in notes) == compiled


def test_only_a_gpu_compiles() -> None:
    recipe = named("scenes")
    assert compiles(recipe, torch.device("cuda"))
    assert not compiles(change(recipe, ["run.compile=false"]), torch.device("cuda"))
    assert not compiles(recipe, torch.device("cpu"))
