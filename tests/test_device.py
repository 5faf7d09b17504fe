"""The choice of a device, and the option --device."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reports a GPU; what is put on it fails."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_auto_is_the_gpu_unless_another_device_was_chosen(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device.find_device() == device.find_device(None) == torch.device("cuda:0")
    monkeypatch.setattr(device, "_default", "auto")  # restored after the test
    device.set_default_device("cpu")
    assert device.find_device() == device.find_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("gpu")
def test_evaluate_measures_on_the_device_given(run, trained: Path) -> None:
    assert run("evaluate", trained, "--device", "cpu", "--quiet").status == 0


@pytest.mark.usefixtures("gpu")
def test_codes_are_fitted_and_measured_on_the_device_given(run) -> None:
    np.save("x.npy", np.random.default_rng(0).normal(size=(80, 20)))
    on_cpu = "--device", "cpu", "--quiet"
    assert run("fit", "x.npy", "-o", "codes", "--components", "4", *on_cpu).status == 0
    assert run("evaluate", "codes", *on_cpu).status == 0
