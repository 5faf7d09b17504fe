"""Small things shared by the tests."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

with contextlib.suppress(ValueError):
    # A shell starts background jobs deaf to Ctrl-C, which is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

import numpy as np
import pytest
import torch
from torch.utils._triton import has_triton

from bayesncl.data.images import Images
from bayesncl.method.encoder import build_model
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, change, named

# Tests run on the CPU, children included; those marked `gpu` see the GPU, if there is one.
see_gpu, GPU = torch.cuda.is_available, torch.cuda.is_available()
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")
torch.cuda.is_available = lambda: False
os.environ["CUDA_VISIBLE_DEVICES"] = ""

RNG_STATES: dict[str, dict[str, object]] = {}  # of test modules, when they were imported
TINY = [
    "data.size=16", "views.size=16", "model.hidden=24", "model.dim=12", "run.batch=16",
    "run.epochs=3", "run.log_every=2", "run.checkpoint_every=1",
]  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-messages", action="store_true", help="rewrite tests/messages.txt")


def unit_length(z: np.ndarray) -> np.ndarray:
    """Rows of unit length; zero rows stay zero."""
    return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)


def tiny_recipe(method: str = "bayesncl", *changes: str) -> Recipe:
    """A recipe that trains in about a second."""
    return change(named(f"scenes-{method}"), [*TINY, *changes])


def tiny_images(n: int = 70, size: int = 16, classes: int = 3, seed: int = 0) -> Images:
    """Blurry blobs, one color a class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    tint = rng.uniform(40, 215, (classes, 3, 1, 1))
    pixels = tint[labels] + rng.normal(0, 25, (n, 3, size, size))
    names = tuple(f"class {c}" for c in range(classes))
    return Images(pixels.clip(0, 255).astype(np.uint8), labels, class_names=names)


def assert_same_way(
    recipe: Recipe, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor],
    share: float, least: float,
) -> None:  # fmt: skip
    """Weights moved by `least` or more from the start, and are apart by at most a share of that."""
    start = build_model(recipe).state_dict()
    for name, tensor in expected.items():
        if not name.endswith("num_batches_tracked"):
            moved, apart = (tensor - start[name]).norm(), (tensor - found[name]).norm()
            assert moved > least, f"{name} did not move: the test says nothing of it"
            assert apart <= share * moved, f"{name}: {apart:.2g} apart after moving {moved:.2g}"


class Stopped(Exception):
    """A training was cut off by `stop_after`."""


def stop_after(epochs: int) -> Callable[[object, int], None]:
    """An `after_epoch` for `train` that cuts it off, as a kill between two checkpoints would."""

    def stop(model: object, epoch: int) -> None:
        if epoch == epochs:
            raise Stopped

    return stop


@pytest.fixture(autouse=True)
def same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Start the RNG of a test module anew, so that no test depends on those before it."""
    if rng := getattr(request.module, "RNG", None):
        start = RNG_STATES.setdefault(request.module.__name__, rng.bit_generator.state)
        rng.bit_generator.state = start


@pytest.fixture(autouse=True)
def gpu_where_asked_for(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if request.node.get_closest_marker("gpu"):
        if not GPU:
            pytest.skip("needs a GPU that torch can use")
        monkeypatch.setattr(torch.cuda, "is_available", see_gpu)
        if VISIBLE is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", VISIBLE)
    has_triton.cache_clear()  # it remembers whether there is a GPU
    yield
    has_triton.cache_clear()


@pytest.fixture
def images() -> Images:
    return tiny_images()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What displays say that stays."""
    found: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text, wrap=True: found.append(text))
    return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Call a command in this process, in a folder of its own: exit status, stdout, stderr."""
    from tests.commands import Answer, call

    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return lambda *words: Answer(call(*words), *capsys.readouterr())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on scenes."""
    from tests.commands import SETTINGS, call

    folder = tmp_path_factory.mktemp("scenes") / "a run"
    assert call("train", "scenes", *SETTINGS, "--out", folder, "--quiet") == 0
    return folder
