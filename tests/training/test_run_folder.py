"""Run folders: reading their files, the lock, numbering, and the recorded environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import bayesncl.training.run_folder as run_folder
from bayesncl import train
from bayesncl.errors import InputError
from bayesncl.training.run_folder import RunFolder, git_revision, new_run
from bayesncl.training.weights import model_bytes
from tests.commands import SETTINGS
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


def test_a_full_disk_names_the_metrics_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics_file = Path("/dev/full")
    if not run.metrics_file.exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        run.append_metrics({"step": 1})
    assert caught.value.filename == "/dev/full"


def test_results_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.evaluation() is None
    for data in (b"[1]", b"{", b"\xff\xfe", b"[" * 100_000):
        run.evaluation_file.write_bytes(data)
        run.environment_file.write_bytes(data)
        assert run.evaluation() is None and run.environment() is None
    run.evaluation_file.write_text('{"sound": {}}')
    assert run.evaluation() == {"sound": {}}


def test_one_process_holds_the_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for _ in range(2):
        with run.lock():
            with pytest.raises(InputError, match="in use"), RunFolder(run.folder).lock():
                pass
            assert run.lock_file.exists()
        assert list(run.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError), RunFolder(tmp_path / "file/run").lock():
        pass
    with pytest.raises(InputError):
        new_run(tmp_path / "file", "a")


def test_new_runs_are_numbered(tmp_path: Path) -> None:
    assert [new_run(tmp_path, "a").folder.name for _ in range(3)] == ["a", "a-2", "a-3"]
    for folder in (tmp_path / "none", tmp_path / "a"):
        with pytest.raises(InputError, match="is not a run"):
            RunFolder(folder).recipe()


@pytest.mark.parametrize("damage", ["empty", "cut", "nan"])
def test_a_damaged_model_is_rebuilt_from_the_last_checkpoint(damage: str, run) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "r", "--quiet").status == 0
    folder = RunFolder("r")
    good = folder.weights.read_bytes()
    if damage == "nan":
        model = folder.model()
        model.projector[0].weight.data[0, 0] = float("nan")
        folder.weights.write_bytes(model_bytes(model))
    else:
        folder.weights.write_bytes(b"" if damage == "empty" else good[:-1])
    assert not folder.finished()
    assert run("resume", "r", "--quiet").status == 0
    assert folder.weights.read_bytes() == good


def test_the_environment_is_recorded(tmp_path: Path) -> None:
    train(tiny_recipe("bayesncl", "run.epochs=1"), tiny_images(), tmp_path, device="cpu")
    found = RunFolder(tmp_path).environment()
    assert found is not None and found["processes"] == 1


def test_the_revision_is_that_of_the_package_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package installed inside another project's repository has none."""
    for name in ("BAYESNCL_REVISION", "GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    files = {}
    for name, package in (("own", "bayesncl"), ("foreign", "lib/site-packages/bayesncl")):
        files[name] = tmp_path / name / package / "training/run_folder.py"
        files[name].parent.mkdir(parents=True)
        files[name].touch()
        git = ["git", "-C", str(tmp_path / name), "-c", "user.name=x", "-c", "user.email=x@x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
            subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(run_folder, "__file__", str(files["foreign"]))
    assert git_revision() is None
    monkeypatch.setattr(run_folder, "__file__", str(files["own"]))
    words = ["git", "-C", str(tmp_path / "own"), "rev-parse", "HEAD"]
    head = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    assert git_revision() == head
    files["own"].write_text("changed")
    assert git_revision() == f"{head}+"
