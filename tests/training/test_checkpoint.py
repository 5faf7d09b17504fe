"""Checkpoints: every bit restored, damage noticed, old ones removed, failed writes reported."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from bayesncl import train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.lars import LARS
from bayesncl.training import checkpoint
from bayesncl.training.checkpoint import listed, newest, snapshot
from bayesncl.training.run_folder import RunFolder
from tests.conftest import Stopped, stop_after, tiny_recipe

IMAGES = ("70 images", "hash")


def model_and_optimizer(seed: int = 0, *changes: str) -> tuple[Encoder, LARS]:
    model = build_model(tiny_recipe("bayesncl", f"run.seed={seed}", *changes))
    optimizer = LARS(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return model, optimizer


def test_a_round_trip_restores_every_bit(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(1)
    checkpoint.write(RunFolder(tmp_path), snapshot(model, optimizer, 7, IMAGES))
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


def test_any_damage_is_noticed_and_the_checkpoint_before_used(tmp_path: Path) -> None:
    run, rng = RunFolder(tmp_path), random.Random(0)
    for step in (1, 2):
        checkpoint.write(run, snapshot(*model_and_optimizer(), step, IMAGES))
    path = listed(run)[-1]
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
