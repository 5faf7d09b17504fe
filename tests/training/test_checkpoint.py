"""Checkpoints: every bit restored, damage noticed, old ones removed, failed writes reported."""

from __future__ import annotations

import hashlib
import json
import random
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bayesncl import io, train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.lars import LARS
from bayesncl.progress import Display
from bayesncl.training import checkpoint
from bayesncl.training.checkpoint import DIGEST_BYTES, Writer, listed, newest, snapshot
from bayesncl.training.loop import make_optimizer
from bayesncl.training.run_folder import RunFolder
from tests.conftest import Stopped, stop_after, tiny_recipe


def model_and_optimizer(seed: int = 0, *changes: str) -> tuple[Encoder, LARS]:
    model = build_model(tiny_recipe("bayesncl", f"run.seed={seed}", *changes))
    optimizer = LARS(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return model, optimizer


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: found.append(text))
    return found


def test_a_round_trip_restores_every_bit(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(1)
    checkpoint.write(RunFolder(tmp_path), snapshot(model, optimizer, 7))
    other, other_optimizer = model_and_optimizer(2)
    found, damaged = newest(RunFolder(tmp_path))
    assert found is not None and found.step == 7 and not damaged
    checkpoint.restore(found, other, other_optimizer)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), name
    for p, q in zip(model.parameters(), other.parameters()):
        momentum = optimizer.state[p]["momentum_buffer"]
        assert momentum.any()
        assert torch.equal(momentum, other_optimizer.state[q]["momentum_buffer"])
    with pytest.raises(InputError, match="does not fit"):
        checkpoint.restore(found, *model_and_optimizer(0, "model.dim=8"))


def steps(run: RunFolder) -> list[int]:
    return [int(path.stem[5:]) for path in listed(run)]


@pytest.mark.parametrize("background", [False, True])
def test_a_writer_keeps_the_newest_and_raises_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str], background: bool
) -> None:
    state = {step: snapshot(*model_and_optimizer(), step) for step in (1, 2, 9, 10, 11)}
    run, display = RunFolder(tmp_path), Display(quiet=True)
    with Writer(run, 2, display, background) as writer:
        for step in (1, 2, 9, 10):
            writer.save(state[step])
        writer.wait()
        assert steps(run) == [9, 10]

    def full(*_: object) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="no space"), Writer(run, 2, display, background) as writer:
        writer.save(state[11])
    assert notes == [] and steps(run) == [9, 10]


def test_a_failed_background_write_is_reported_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    run, write = RunFolder(tmp_path), checkpoint.write
    state = {step: snapshot(*model_and_optimizer(), step) for step in (3, 4, 5)}

    def full(*_: object) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(checkpoint, "write", full)
    writer = Writer(run, 2, Display(quiet=True), True)
    writer.save(state[3])
    writer.__exit__(KeyError, KeyError(), None)  # does not raise: it would hide the KeyError
    assert len(notes) == 1 and "no space" in notes[0]
    with Writer(run, 2, Display(quiet=True), True) as writer:
        writer.save(state[3])
        with pytest.raises(OSError, match="no space"):
            writer.save(state[4])  # written in the foreground, and the disk is still full
        writer.save(state[4])
        while not writer.pending.done():  # type: ignore[union-attr]
            time.sleep(0.001)
        monkeypatch.setattr(checkpoint, "write", write)
        writer.save(state[5])
    assert steps(run) == [5]


def test_any_damage_is_noticed_and_the_checkpoint_before_used(tmp_path: Path) -> None:
    run, rng = RunFolder(tmp_path), random.Random(0)
    for step in (1, 2):
        path = checkpoint.write(run, snapshot(*model_and_optimizer(), step))
    whole = path.read_bytes()
    for i in range(30):
        spoilt = bytearray(whole)
        if i % 2:
            del spoilt[rng.randrange(len(spoilt)) :]
        else:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        found, damaged = newest(run)
        assert found is not None and found.step == 1 and list(damaged) == [path]


def test_a_run_continues_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, images: Images, notes: list[str]
) -> None:
    run = RunFolder(tmp_path)
    train(tiny_recipe(), images, tmp_path, device="cpu")
    expected = run.weights.read_bytes()
    run.weights.unlink()
    last = listed(run)[-1]
    last.write_bytes(last.read_bytes()[:-9])
    train(tiny_recipe(), images, tmp_path, device="cpu")
    assert run.weights.read_bytes() == expected
    assert any(f"{last.name}.damaged" in note for note in notes)


def test_damaged_checkpoints_never_push_out_good_ones(tmp_path: Path, images: Images) -> None:
    """All are damaged, the run starts over and is killed early: its new checkpoint is used."""
    run = RunFolder(tmp_path)
    train(tiny_recipe(), images, tmp_path, device="cpu")
    expected = run.weights.read_bytes()
    run.weights.unlink()
    for path in listed(run):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Stopped):
        train(tiny_recipe(), images, tmp_path, device="cpu", after_epoch=stop_after(2))
    assert steps(run) == [4]
    names = sorted(path.name for path in run.checkpoints.glob("*.damaged"))
    assert names == ["step-00000008.ckpt.damaged", "step-00000012.ckpt.damaged"]
    train(tiny_recipe(), images, tmp_path, device="cpu")
    assert run.weights.read_bytes() == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 50,
        safetensors.torch.save({"x": torch.zeros(1)}),
        safetensors.torch.save({}, {"step": "x", "recipe": "{}"}),
        safetensors.torch.save({}, {"step": "3", "recipe": '{"run": 5}'}),
    ],
    ids=["empty", "text", "no metadata", "no step", "no recipe"],
)
def test_a_good_checksum_is_not_enough(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "step-00000001.ckpt"
    path.write_bytes(payload + hashlib.sha256(payload).digest())
    with pytest.raises(InputError, match=r"step-00000001\.ckpt"):
        checkpoint.read(path)


def test_equal_contents_give_equal_bytes() -> None:
    tensors = {"b": torch.arange(5.0), "a": torch.ones(2, 3)}
    metadata = {"one": "1", "two": "2", "three": "ü", "four": "4"}
    orders = [dict(sorted(metadata.items(), reverse=reverse)) for reverse in (True, False)]
    (raw,) = {io.tensor_bytes(tensors, order) for order in orders for _ in range(10)}
    assert int.from_bytes(raw[:8], "little") % 8 == 0
    back = safetensors.torch.load(raw)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_a_newer_version_resumes_an_older_checkpoint(tmp_path: Path) -> None:
    """A field that the checkpoint's recipe lacks takes its default."""
    model = build_model(tiny_recipe())
    optimizer = make_optimizer(model, torch.device("cpu"))
    path = checkpoint.write(RunFolder(tmp_path), snapshot(model, optimizer, 4))
    payload = path.read_bytes()[:-DIGEST_BYTES]
    end = 8 + int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8:end])
    recipe = json.loads(header["__metadata__"]["recipe"])
    del recipe["run"]["dynamics_every"]
    header["__metadata__"]["recipe"] = json.dumps(recipe)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    payload = len(text).to_bytes(8, "little") + text + payload[end:]
    path.write_bytes(payload + hashlib.sha256(payload).digest())
    arguments = (RunFolder(tmp_path), model, optimizer, ("", ""), Display(quiet=True), 4, False)
    assert checkpoint.resume_or_begin(*arguments) == 4
