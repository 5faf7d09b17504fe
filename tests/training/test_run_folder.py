"""Run folders: reading their files, the lock, numbering, and the recorded environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayesncl import train
from bayesncl.errors import InputError
from bayesncl.training.run_folder import RunFolder, new_run
from tests.commands import SETTINGS, refused
from tests.conftest import tiny_images, tiny_recipe


def test_metrics_are_read_by_kind_without_cut_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.metrics() == []
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "kind": "dynamics"}, {"step": 3}]
    for line in lines:
        run.append_metrics(line)
    with open(run.metrics_file, "a") as file:
        file.write('[1]\n{"a": 2}\n{"step": true}\n{"step": 4, "lo')
    assert run.metrics() == [lines[0], lines[2]]
    assert run.metrics("dynamics") == [lines[1]]
    run.cut_metrics(2)
    assert run.metrics_file.read_text() == "".join(f"{json.dumps(line)}\n" for line in lines[:2])


def test_one_process_holds_the_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for _ in range(2):
        with run.lock():
            with pytest.raises(InputError, match="in use"), RunFolder(run.folder).lock():
                pass
            assert run.lock_file.exists()
        assert not run.folder.exists()  # nothing was written


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError), RunFolder(tmp_path / "file/run").lock():
        pass
    with pytest.raises(InputError):
        new_run(tmp_path / "file", "a")


def test_a_model_that_cannot_be_built_leaves_no_folder(run, tmp_path: Path) -> None:
    refused(run("train", "scenes", *SETTINGS, "--backbone", "resnet19", "--quiet"), "resnet19")
    with pytest.raises(InputError, match="batch"):
        train(tiny_recipe("ncl", "run.batch=80"), tiny_images())
    assert list(tmp_path.glob("runs/*")) == []


def test_new_runs_are_numbered(tmp_path: Path) -> None:
    assert [new_run(tmp_path, "a").folder.name for _ in range(3)] == ["a", "a-2", "a-3"]
    for folder in (tmp_path / "none", tmp_path / "a"):
        with pytest.raises(InputError, match="is not a run"):
            RunFolder(folder).recipe()


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_model_is_rebuilt_from_the_last_checkpoint(damage: str, run) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "r", "--quiet").status == 0
    folder = RunFolder("r")
    good = folder.weights.read_bytes()
    folder.weights.write_bytes(b"" if damage == "empty" else good[:-1])
    assert not folder.finished()
    assert run("resume", "r", "--quiet").status == 0
    assert folder.weights.read_bytes() == good
