"""Run folders: what their files say, who holds them, and that nothing is written outside them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import bayesncl.run
from bayesncl import checkpoint
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.model import build_model, model_bytes
from bayesncl.run import Run, git_revision
from bayesncl.train import train
from tests.commands import SETTINGS, Answer
from tests.conftest import Stopped, stop_after, tiny_images, tiny_recipe


def test_a_full_disk_is_named_that_metrics_find(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.metrics_file = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        run.append_metrics({"step": 1})
    assert caught.value.filename == "/dev/full"


def test_metrics_are_read_by_kind_and_without_what_a_kill_cut(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.metrics() == []
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "kind": "dynamics"}, {"step": 3}]
    for line in lines:
        run.append_metrics(line)
    with open(run.metrics_file, "a") as file:
        file.write('[1]\n{"a": 2}\n{"step": true}\n{"step": 4, "lo')
    assert run.metrics() == [lines[0], lines[2]]
    assert run.metrics("dynamics") == [lines[1]]


def test_results_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for data in (None, b"[1]", b"{", b"\xff\xfe", b"[" * 100_000):
        if data is not None:
            run.evaluation_file.write_bytes(data)
            run.environment_file.write_bytes(data)
        assert run.evaluation() is None
        assert run.environment() is None
    run.evaluation_file.write_text('{"sound": {}}')
    assert run.evaluation() == {"sound": {}}


WRITTEN = [
    ".lock", "recipe.json", "environment.json", "metrics.jsonl", "model.safetensors", "evaluation.json", "checkpoints",
    "tensorboard", "atlas",
]  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_in_a_run_folder_is_not_followed(name: str, tmp_path: Path, images: Images) -> None:
    """A stranger's folder, stopped half way, with one of its entries leading to a file or a folder of ours."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    with pytest.raises(Stopped):
        train(tiny_recipe(), images, folder, after_epoch=stop_after(3))
    path = folder / name
    if path.exists():
        path.rename(outside)
    elif path.suffix or name == ".lock":
        outside.write_text("mine")
    else:
        outside.mkdir()
    before = contents(outside)
    path.symlink_to(outside)
    with pytest.raises(InputError, match=r"is a symbolic link, and what is written here stays here"):
        train(tiny_recipe(), images, folder)
    assert path.is_symlink()
    assert contents(outside) == before


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (path, *path.rglob("*")) if p.is_file()}


def test_a_link_is_one_line_for_every_command_that_writes_into_a_run(run, trained: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for command, name in (("resume", ".lock"), ("evaluate", "evaluation.json"), ("atlas", "atlas")):
        folder = tmp_path / command
        shutil.copytree(trained, folder)
        (folder / name).symlink_to(mine)
        if command == "resume":
            (folder / "model.safetensors").unlink()
        answer: Answer = run(command, folder, "--quiet")
        assert answer.status == 2
        assert f"{name} is a symbolic link" in answer.err
        assert answer.err.count("\n") == 1
        assert mine.read_text() == "mine"


def test_a_hard_link_is_replaced_not_written_through(tmp_path: Path, images: Images) -> None:
    """An unpacked archive may hold hard links too."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "run").mkdir()
    for name in (".lock", "recipe.json", "metrics.jsonl", "environment.json"):
        os.link(mine, tmp_path / "run" / name)
    train(tiny_recipe(), images, tmp_path / "run")
    assert mine.read_text() == "mine"
    assert Run(tmp_path / "run").finished()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    run = Run(tmp_path / "run")
    with run.lock():
        run.write(run.recipe_file, "{}")
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["recipe.json"]
    with pytest.raises(InputError, match="is not in"):
        run.write(tmp_path / "elsewhere.json", "{}")


@pytest.mark.parametrize("damage", ["empty", "cut", "nan"])
def test_finished_means_that_the_model_loads(damage: str, run, tmp_path: Path) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "r", "--quiet").status == 0
    found = Run("r")
    assert found.finished()
    good = found.weights.read_bytes()
    if damage == "nan":
        model = found.model()
        model.projector[0].weight.data[0, 0] = float("nan")
        found.weights.write_bytes(model_bytes(model))
    else:
        found.weights.write_bytes(b"" if damage == "empty" else good[:-1])
    assert not found.finished()
    assert run("resume", "r", "--quiet").status == 0
    assert found.weights.read_bytes() == good, "made again from the last checkpoint"


def test_damaged_checkpoints_never_push_out_good_ones(tmp_path: Path, images: Images) -> None:
    """Both kept ones cut short, resumed from the start, killed early: what that left is good and used."""
    run, kept = Run(tmp_path), []
    whole = train(tiny_recipe(), images, tmp_path).state_dict()
    run.weights.unlink()
    for path in checkpoint.listed(run):
        kept.append(path.name)
        path.write_bytes(path.read_bytes()[:-9])
    assert kept == ["step-00000008.ckpt", "step-00000012.ckpt"]
    with pytest.raises(Stopped):
        train(tiny_recipe(), images, tmp_path, after_epoch=stop_after(2))
    assert [p.name for p in checkpoint.listed(run)] == ["step-00000004.ckpt"]
    assert sorted(p.name for p in run.checkpoints.glob("*.damaged")) == [f"{name}.damaged" for name in kept]
    found = checkpoint.newest(run)
    assert found is not None
    assert found.step == 4
    for a, b in zip(train(tiny_recipe(), images, tmp_path).state_dict().values(), whole.values()):
        assert (a == b).all()


def test_pruning_keeps_the_newest_good_ones_whatever_their_numbers(tmp_path: Path) -> None:
    from bayesncl.lars import LARS

    run, model = Run(tmp_path), build_model(tiny_recipe())
    optimiser = LARS(model.parameters(), lr=0.1)
    paths = {step: checkpoint.write(run, checkpoint.snapshot(model, optimiser, step)) for step in (5, 40, 50, 60)}
    paths[60].write_bytes(paths[60].read_bytes()[:100])
    notes = checkpoint.prune(run, 2, known=paths[5])  # the one just written
    assert [p.name for p in checkpoint.listed(run)] == [paths[5].name, paths[50].name]
    assert notes == [f"{paths[60]} is damaged: its checksum does not match; set aside as {paths[60].name}.damaged"]


def test_a_checkpoint_that_is_no_file_is_passed_over(tmp_path: Path, images: Images) -> None:
    """A pipe would be waited for, for ever."""
    run = Run(tmp_path)
    run.checkpoints.mkdir()
    os.mkfifo(run.checkpoints / "step-00000009.ckpt")
    (run.checkpoints / "step-00000010.ckpt").mkdir()
    os.mkfifo(tmp_path / ".model.safetensors.0123abcd.partial")
    train(tiny_recipe(), images, tmp_path)
    assert run.finished()


def test_the_revision_is_that_of_our_own_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package inside the repository of somebody else's project has none."""
    monkeypatch.delenv("BAYESNCL_REVISION", raising=False)
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    places = {"own": tmp_path / "own/bayesncl", "foreign": tmp_path / "foreign/lib/site-packages/bayesncl"}
    for name, package in places.items():
        package.mkdir(parents=True)
        (package / "run.py").touch()
        git = ["git", "-C", str(tmp_path / name), "-c", "user.name=x", "-c", "user.email=x@x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
            subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(bayesncl.run, "__file__", str(places["foreign"] / "run.py"))
    assert git_revision() is None
    monkeypatch.setattr(bayesncl.run, "__file__", str(places["own"] / "run.py"))
    head = subprocess.run([*git[:2], str(tmp_path / "own"), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert git_revision() == head.stdout.strip()
    (places["own"] / "run.py").write_text("changed")
    assert git_revision() == head.stdout.strip() + "+"
    (tmp_path / "plain/bayesncl").mkdir(parents=True)
    monkeypatch.setattr(bayesncl.run, "__file__", str(tmp_path / "plain/bayesncl/run.py"))
    assert git_revision() is None


def test_environment_is_what_the_run_reads_back(tmp_path: Path) -> None:
    train(tiny_recipe("bayesncl", "run.epochs=1"), tiny_images(), tmp_path)
    found = Run(tmp_path).environment()
    assert found == json.loads((tmp_path / "environment.json").read_text())
    assert found["processes"] == 1
