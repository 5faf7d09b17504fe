"""Run folders: reading their files, the lock, numbering; weights files and damage to them."""

import json
import random
import shutil
from pathlib import Path

import pytest

from bayesncl import load, train
from bayesncl.errors import InputError
from bayesncl.io import digest
from bayesncl.method.encoder import build_model
from bayesncl.training.run_folder import RunFolder, model_bytes, new_run
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


def test_a_model_that_cannot_be_built_leaves_no_folder(run, tmp_path: Path) -> None:
    refused(run("train", "scenes", *SETTINGS, "--backbone", "resnet19", "--quiet"), "resnet19")
    with pytest.raises(InputError, match="batch"):
        train(tiny_recipe("ncl", "run.batch=80"), tiny_images())
    assert list(tmp_path.glob("runs/*")) == []


def test_new_runs_are_numbered(tmp_path: Path) -> None:
    assert [new_run(tmp_path, "a").folder.name for _ in range(3)] == ["a", "a-2", "a-3"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot create"):
        new_run(tmp_path / "file", "a")


def test_a_damaged_model_is_rebuilt_from_the_last_checkpoint(
    run, trained: Path, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(trained, tmp_path / "r"))
    good = folder.weights.read_bytes()
    folder.weights.write_bytes(good[:-1])
    assert not folder.finished()
    assert run("resume", "r", "--quiet").status == 0
    assert folder.weights.read_bytes() == good


def test_every_damage_is_noticed(tmp_path: Path) -> None:
    model, rng, broken = build_model(tiny_recipe()), random.Random(0), tmp_path / "m.safetensors"
    good = model_bytes(model)
    damaged = [good[:n] for n in (0, 8, len(good) // 2, len(good) - 1)] + [good + b"\0"]
    for _ in range(12):
        damaged.append(flipped := bytearray(good))
        flipped[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
    for data in damaged:
        broken.write_bytes(data)
        try:
            found = load(broken)
        except InputError as error:
            assert str(broken) in str(error)
        else:  # the bit was in the text of the recipe
            assert digest(found.state_dict()) == digest(model.state_dict())
