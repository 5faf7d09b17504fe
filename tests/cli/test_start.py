"""The command as a process: start-up and the environment."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bayesncl

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    for name in ("torch", "numpy", "PIL"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for words in (["fit", "--help"], ["recipes", "cifar100-ncl"]):
        command = [sys.executable, "-m", "bayesncl", *words]
        subprocess.run(command, env=environment, check=True, timeout=120)


def test_waiting_threads_sleep_unless_the_user_decides_otherwise() -> None:
    code = "import bayesncl, os; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "OMP_WAIT_POLICY"}
    for given, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, env=environment | given, capture_output=True, text=True)
        assert found.stdout == f"{policy}\n"


def test_the_optimizers_do_not_import_the_compiler() -> None:
    """torch._dynamo takes seconds to import."""
    code = """
import sys, numpy, torch, bayesncl
bayesncl.ReadableCodes(4, max_iter=2).fit(numpy.eye(40, 8, dtype="f4"))
optimizer = bayesncl.LARS([torch.ones(2, 2, requires_grad=True)], lr=0.1)
optimizer.zero_grad()
optimizer.step()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, timeout=120)


def test_public_names() -> None:
    assert all(callable(getattr(bayesncl, name)) for name in bayesncl.__all__)
    assert set(bayesncl.__all__) <= set(dir(bayesncl))
    assert next(iter(inspect.signature(bayesncl.train).parameters)) == "recipe"  # no module
    with pytest.raises(AttributeError):
        bayesncl.nothing  # noqa: B018
