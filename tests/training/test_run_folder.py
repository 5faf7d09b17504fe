"""Run folders: reading their files, the lock, numbering; weights files and damage to them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesncl import load, train
from bayesncl.errors import InputError
from bayesncl.io import digest
from bayesncl.method.encoder import Encoder, build_model
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


def test_a_damaged_model_is_rebuilt_from_the_last_checkpoint(
    run, trained: Path, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(trained, tmp_path / "r"))
    good = folder.weights.read_bytes()
    folder.weights.write_bytes(good[:-1])
    assert not folder.finished()
    assert run("resume", "r", "--quiet").status == 0
    assert folder.weights.read_bytes() == good


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes(build_model(tiny_recipe())))
    return path


def test_weights_come_back(tmp_path: Path) -> None:
    recipe = tiny_recipe("ncl-ipw")
    model = build_model(recipe)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)  # unlike a new model
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    raw = tiny_images(4).pixels
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        again = load(path)
        assert isinstance(again, Encoder) and not again.training and again.recipe == recipe
        assert all(torch.equal(t, model.state_dict()[n]) for n, t in again.state_dict().items())
        assert torch.equal(again.encode(raw), model.encode(raw))


def test_every_damage_is_noticed(saved: Path, tmp_path: Path) -> None:
    good, rng = saved.read_bytes(), np.random.default_rng(0)
    damaged = [good[:n] for n in (0, 8, len(good) // 2, len(good) - 1)] + [good + b"\0"]
    for place in rng.integers(0, len(good), 12):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    expected, broken = digest(load(saved).state_dict()), tmp_path / "broken.safetensors"
    for data in damaged:
        broken.write_bytes(data)
        try:
            model = load(broken)
        except InputError as error:
            assert "broken.safetensors" in str(error)
        else:  # the bit was in the text of the recipe
            assert digest(model.state_dict()) == expected


def test_buffers_that_files_do_not_contain_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the masks and positions of some transformers."""

    class Masked(nn.Module):
        features = 8

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)
            self.register_buffer("mask", torch.arange(3.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mean((2, 3)) * self.mask)

    monkeypatch.setattr("bayesncl.method.encoder.build_backbone", lambda _: Masked())
    model = build_model(tiny_recipe("ncl")).eval()
    (tmp_path / "m.safetensors").write_bytes(model_bytes(model))
    found, x = load(tmp_path / "m.safetensors"), torch.rand(4, 3, 8, 8)
    assert isinstance(found, Encoder) and found(x).z.any()
    assert torch.equal(found(x).z, model(x).z)
