"""Opening a finished or unfinished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesncl.errors import InputError
from bayesncl.method.encoder import build_model
from bayesncl.method.lars import LARS
from bayesncl.training import checkpoint
from bayesncl.training.checkpoint import open_model
from bayesncl.training.run_folder import RunFolder
from bayesncl.training.weights import model_bytes
from tests.conftest import tiny_recipe


def test_an_unfinished_run_opens_from_its_newest_checkpoint(tmp_path: Path) -> None:
    model = build_model(tiny_recipe())
    with pytest.raises(InputError):
        open_model(tmp_path, "cpu")
    state = checkpoint.snapshot(model, LARS(model.parameters(), 0.1), 12)
    checkpoint.write(RunFolder(tmp_path), state)
    opened, remark = open_model(tmp_path, "cpu")
    assert "12 steps" in remark
    expected = model.state_dict()
    assert all((x == expected[name]).all() for name, x in opened.state_dict().items())
    checkpoint.listed(RunFolder(tmp_path))[0].write_bytes(b"damaged")
    with pytest.raises(InputError):
        open_model(tmp_path, "cpu")
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    assert open_model(tmp_path, "cpu")[1] == ""
