"""Checkpoints and the files they are made of: atomic, checked, the same bytes for the same contents."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bayesncl import checkpoint, files
from bayesncl.errors import InputError
from bayesncl.lars import LARS
from bayesncl.model import Encoder, build_model
from bayesncl.progress import Display
from bayesncl.recipes import change
from bayesncl.run import Run, new_run
from tests.conftest import tiny_recipe


def model_and_optimiser(seed: int = 0, *changes: str) -> tuple[Encoder, LARS]:
    model = build_model(change(tiny_recipe(), [f"run.seed={seed}", *changes]))
    optimiser = LARS(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    return model, optimiser


def test_round_trip_restores_every_bit(tmp_path: Path) -> None:
    model, optimiser = model_and_optimiser(1)
    checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, 7))
    other, other_optimiser = model_and_optimiser(2)
    found = checkpoint.newest(Run(tmp_path))
    assert found is not None
    assert found.step == 7
    checkpoint.restore(found, other, other_optimiser)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), name
    for p, q in zip(model.parameters(), other.parameters()):
        momentum = optimiser.state[p]["momentum_buffer"]
        assert momentum.any()
        assert torch.equal(momentum, other_optimiser.state[q]["momentum_buffer"])


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    model, optimiser = model_and_optimiser()
    for step in (1, 2, 9, 10):
        path = checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, step))
        assert checkpoint.prune(Run(tmp_path), 2, path) == []
    assert [p.name for p in checkpoint.listed(Run(tmp_path))] == ["step-00000009.ckpt", "step-00000010.ckpt"]
    checkpoint.prune(Run(tmp_path), 1)
    assert [p.name for p in checkpoint.listed(Run(tmp_path))] == ["step-00000010.ckpt"]


@pytest.mark.parametrize("beside", [False, True])
def test_a_writer_writes_keeps_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    model, optimiser = model_and_optimiser()
    run = Run(tmp_path)
    with checkpoint.Writer(run, 2, Display(quiet=True), beside) as writer:
        for step in (1, 2, 3):
            writer.save(checkpoint.snapshot(model, optimiser, step))
        writer.wait()
        assert [p.name for p in checkpoint.listed(run)] == ["step-00000002.ckpt", "step-00000003.ckpt"]

    written, notes = checkpoint.write, []
    monkeypatch.setattr(Display, "note", lambda self, text: notes.append(text))

    def full(*_: object) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="no space"), checkpoint.Writer(run, 2, Display(quiet=True), beside) as writer:
        writer.save(checkpoint.snapshot(model, optimiser, 4))
    assert notes == []
    writer = checkpoint.Writer(run, 2, Display(quiet=True), True)
    writer.save(checkpoint.snapshot(model, optimiser, 4))
    writer.__exit__(KeyError, KeyError(), None)  # the disk's error does not hide another
    assert notes == ["a checkpoint could not be written: no space"]
    writer = checkpoint.Writer(run, 2, Display(quiet=True), True)
    writer.save(checkpoint.snapshot(model, optimiser, 4))
    with pytest.raises(OSError, match="no space"):
        writer.save(checkpoint.snapshot(model, optimiser, 5))  # tried here and now, and the disk is still full
    writer.save(checkpoint.snapshot(model, optimiser, 6))
    while not writer.pending.done():  # type: ignore[union-attr]
        pass
    monkeypatch.setattr(checkpoint, "write", written)
    writer.save(checkpoint.snapshot(model, optimiser, 7))  # there is space again: nothing more is lost
    assert [p.name for p in checkpoint.listed(run)] == ["step-00000003.ckpt", "step-00000007.ckpt"]


def test_damage_is_named_and_the_one_before_used(tmp_path: Path) -> None:
    model, optimiser = model_and_optimiser()
    for step in (1, 2):
        path = checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, step))
    whole = path.read_bytes()
    for spoilt in (whole[:-1], whole[:40], b"", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        path.write_bytes(spoilt)
        found = checkpoint.newest(Run(tmp_path))
        assert found is not None
        assert found.step == 1
        said = f"{path} is damaged: its checksum does not match; set aside as {path.name}.damaged"
        assert checkpoint.prune(Run(tmp_path), 2) == [said]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 50,
        safetensors.torch.save({"x": torch.zeros(1)}),
        safetensors.torch.save({}, {"step": "x", "recipe": "{}"}),
        safetensors.torch.save({}, {"step": "3", "recipe": '{"run": 5}'}),
    ],
    ids=["empty", "text", "no metadata", "no step", "no recipe"],  # metadata come in any order
)
def test_a_good_checksum_is_not_enough(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "step-00000001.ckpt"
    path.write_bytes(payload + hashlib.sha256(payload).digest())
    with pytest.raises(InputError, match=r"step-00000001\.ckpt"):
        checkpoint.read(path)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    model, optimiser = model_and_optimiser()
    found = checkpoint.read(checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, 1)))
    with pytest.raises(InputError, match="does not fit the recipe"):
        checkpoint.restore(found, *model_and_optimiser(0, "model.dim=8"))
    odd = found._replace(tensors={k: v[:1] if k.startswith("momentum") else v for k, v in found.tensors.items()})
    with pytest.raises(InputError, match="does not fit the recipe: momentum of"):
        checkpoint.restore(odd, model, optimiser)


def test_equal_contents_give_equal_bytes() -> None:
    tensors = {"b": torch.arange(5.0), "a": torch.ones(2, 3)}
    metadata = {"one": "1", "two": "2", "three": "ü", "four": "4"}
    made = {
        files.tensor_bytes(tensors, dict(sorted(metadata.items(), reverse=r))) for r in (True, False) for _ in range(10)
    }
    assert len(made) == 1
    raw = made.pop()
    assert int.from_bytes(raw[:8], "little") % 8 == 0
    back = safetensors.torch.load(raw)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    files.write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_atomic(path, "new")
    assert caught.value.filename == str(path), "the message can say where"
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    dead = tmp_path / ".x [1].json.0123abcd.partial"
    dead_folder = tmp_path / "below" / ".atlas.0123abcd.partial"
    other = tmp_path / ".y.json.0123abcd.partial"
    dead_folder.mkdir(parents=True)
    (dead_folder / "page.html").touch()
    dead.touch()
    other.touch()
    with files.temporary_beside(tmp_path / "x [1].json") as alive:
        assert not dead.exists(), "swept by the next writer of the same file"
        assert other.exists()
        files.sweep(tmp_path)
        assert alive.exists()
        assert not other.exists()
        assert not dead_folder.exists()
    assert not alive.exists()
    with files.temporary_beside(tmp_path / "atlas", folder=True) as made:
        (made / "page.html").touch()
        made.rename(tmp_path / "atlas")
    assert (tmp_path / "atlas/page.html").exists()


def test_sweeping_passes_over_folders_that_go_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("goes", "stays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".x.0123abcd.partial").touch()
    scandir = os.scandir

    def scan(path: str | Path) -> object:
        if Path(path).name == "goes":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        files.sweep(tmp_path)
    assert list((tmp_path / "stays").iterdir()) == []


def test_lock_is_for_one_and_leaves_nothing(tmp_path: Path) -> None:
    with Run(tmp_path / "run").lock():
        with pytest.raises(InputError, match="is in use by another process"), Run(tmp_path / "run").lock():
            pass
        assert (tmp_path / "run/.lock").exists()
    assert list((tmp_path / "run").iterdir()) == []
    with Run(tmp_path / "run").lock():
        pass


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    assert [new_run(tmp_path, "a").folder.name for _ in range(3)] == ["a", "a-2", "a-3"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make a run folder"):
        new_run(tmp_path / "file", "a")
    for folder, message in ((tmp_path / "none", "no run folder"), (tmp_path / "a", "has no recipe.json")):
        with pytest.raises(InputError, match=message):
            Run(folder).recipe()


def test_a_checkpoint_of_an_older_recipe_goes_on(tmp_path: Path) -> None:
    """A field that a checkpoint does not know has its default: a newer version resumes an older run."""
    from bayesncl.train import make_optimiser

    model = build_model(tiny_recipe())
    optimiser = make_optimiser(model, torch.device("cpu"))
    checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, 4))
    path = checkpoint.listed(Run(tmp_path))[0]
    payload = path.read_bytes()[: -checkpoint.DIGEST]
    end = 8 + int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8:end])
    recipe = json.loads(header["__metadata__"]["recipe"])
    del recipe["run"]["dynamics_every"]
    header["__metadata__"]["recipe"] = json.dumps(recipe)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    payload = len(text).to_bytes(8, "little") + text + payload[end:]
    path.write_bytes(payload + hashlib.sha256(payload).digest())
    done = checkpoint.resume_or_begin(Run(tmp_path), model, optimiser, ("", ""), Display(quiet=True), 4, False)
    assert done == 4


def test_foreign_lines_of_metrics_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n12\n[]\n{"a": 1}\n{"step": "x"}\n{"step": 9}\n{"st')
    Run(tmp_path).cut_metrics(5)
    assert path.read_text() == '{"step": 1}\n'


def test_sweeping_leaves_strangers_alone(tmp_path: Path) -> None:
    from bayesncl.files import sweep

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.video.partial").write_text("mine")
    (tmp_path / "sub/.model.safetensors.0123abcd.partial").write_text("ours")
    sweep(tmp_path)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == [".video.partial"]
