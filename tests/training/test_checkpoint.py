"""Checkpoints: every bit restored, damage noticed, old ones removed, failed writes reported."""

import random
from pathlib import Path

import pytest
import torch

from bayesncl import distributed, train
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


def test_processes_that_find_different_checkpoints_stop(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "gather_arrays", lambda _: torch.tensor([4, 0]))
    with pytest.raises(InputError, match="different checkpoints"):
        train(tiny_recipe(), images, tmp_path, device="cpu")
