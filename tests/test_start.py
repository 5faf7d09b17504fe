"""How the command starts and ends where little is as it should be: one line, never a traceback."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bayesncl import __main__ as start
from bayesncl import cli
from bayesncl.run import Run

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "bayesncl"]


def ends(
    *words: object, before: Callable[[], object] | None = None, python: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "bayesncl", *map(str, words)]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, preexec_fn=before, timeout=120)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("bayesncl: ")
    return lines[0]


@pytest.fixture
def features(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).random((40, 4))
    np.savez(tmp_path / "f.npz", z=z, y=np.arange(40) % 4)
    return tmp_path / "f.npz"


def test_optimisers_import_no_compiler() -> None:
    code = """
import sys, numpy, torch, bayesncl
from bayesncl.lars import LARS
bayesncl.ReadableCodes(dim=4, steps=2).fit(numpy.eye(40, 8, dtype="f4"))
optimiser = LARS([torch.ones(2, 2, requires_grad=True)], lr=0.1)
optimiser.zero_grad()
optimiser.step()
assert "torch._dynamo" not in sys.modules
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)


def test_measuring_a_file_imports_no_more_than_it_needs(features: Path) -> None:
    done = ends("measure", features, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert done.returncode == 0 and {"torch", "bayesncl.measure.verdict"} <= imported
    unwanted = {
        "PIL", "jinja2", "matplotlib", "pandas", "safetensors", "scipy.linalg", "scipy.optimize", "scipy.stats",
        "sklearn", "sympy", "torch._dynamo", "torch._inductor", "bayesncl.augment", "bayesncl.graph", "bayesncl.model",
        "bayesncl.train",
    }  # fmt: skip
    assert not unwanted & imported


def test_python_leaves_without_a_search_for_garbage() -> None:
    """What was registered first runs last, when all else that happens on leaving has."""
    code = (
        "import atexit, gc, sys; n = gc.get_freeze_count(); atexit.register(lambda: print(gc.get_freeze_count() > n));"
        "sys.argv[1:] = ['recipes']; from bayesncl.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


def test_objects_of_imports_are_left_alone_by_a_collector_that_is_on_again() -> None:
    before = gc.get_freeze_count()
    try:
        with cli.importing():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_closed_streams_are_given_to_nobody_else(features: Path) -> None:
    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    done = subprocess.run(
        [*COMMAND, "measure", str(features), "--json", str(features.with_name("o.json"))],
        preexec_fn=close, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert "sound" in json.loads(features.with_name("o.json").read_text())


def test_too_few_files_and_too_little_memory(features: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))

    assert "Too many open files" in one_line(ends("measure", features, before=few))
    assert "cannot load" in one_line(ends("measure", features, before=small))


def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "recipes"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert one_line(done) == "bayesncl: i/o: No space left on device"


@pytest.mark.parametrize(
    ("raised", "said", "status"),
    [
        (UserWarning("3 files skipped"), "bayesncl: 3 files skipped", 1),
        (ImportError("no libx.so", name="libx"), "bayesncl: cannot load libx: no libx.so", 1),
        (RuntimeError("can't start new thread"), "bayesncl: out of memory", 1),
        (RuntimeError("Could not determine home directory."), "bayesncl: Could not determine home directory.", 2),
    ],
)
def test_what_is_raised_becomes_one_line(
    raised: Exception, said: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fall() -> None:
        raise raised

    monkeypatch.setattr(cli, "app", fall)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == status
    assert capsys.readouterr().err.startswith(said)


def test_interrupts_end_imports_and_are_thrown_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('still here')\n")
    code = "from bayesncl import __main__ as m\nm.catch_interrupts()\nimport slow"
    surroundings = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=surroundings)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bayesncl: stopped\n")
    with pytest.raises(KeyboardInterrupt):
        start._interrupt(signal.SIGINT, sys._getframe())


@pytest.mark.slow
def test_interrupts_at_any_moment(features: Path) -> None:
    rng = random.Random(0)
    for _ in range(40):
        child = subprocess.Popen(
            [*COMMAND, "measure", str(features)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        time.sleep(rng.uniform(0.15, 3))  # before that it is not yet our code that runs
        child.send_signal(signal.SIGINT)
        said = child.communicate()[1]
        assert "Traceback" not in said and "Error" not in said, said


def test_numbers_that_no_float_holds_are_read_as_infinite(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text('{"sound": {"consistency": %s, "l0": 3}}' % ("9" * 400))
    assert Run(tmp_path).evaluation() == {"sound": {"consistency": float("inf"), "l0": 3}}


def test_no_home_is_said_where_a_cache_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesncl.errors import InputError
    from bayesncl.files import cache_folder

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BAYESNCL_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(InputError, match="BAYESNCL_CACHE names a folder"):
        cache_folder()


@pytest.mark.parametrize(
    ("told", "beside", "kept"), [("1", False, True), ("1", True, False), ("", False, False)], ids=["kept", "has", "may"]
)
def test_bytecode_of_torch_is_kept_where_nobody_else_keeps_it(
    told: str, beside: bool, kept: bool, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    if beside:
        (package / "__pycache__").mkdir()
    code = "from bayesncl import __main__ as start; start.keep_bytecode(); import torch; print(torch.__cached__)"
    environment = os.environ | {
        "PYTHONPATH": f"{package.parent}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": told,
        "BAYESNCL_CACHE": str(tmp_path / "c"),
    }
    environment.pop("PYTHONPYCACHEPREFIX", None)

    def cached() -> Path:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        return Path(done.stdout.strip())

    place = cached()
    assert place.is_relative_to(tmp_path / "c") == kept == (tmp_path / "c").exists()
    assert place.is_file() == (kept or not told)  # where it was kept, and by whom
    assert cached() == place
    (package.parent / "other-1.0.dist-info").mkdir()  # other packages may come with files of the same size and time
    assert (cached() != place) == kept
