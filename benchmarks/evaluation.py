"""Seconds of each part of a whole evaluation (all but the 50-epoch probe), the longest first.

    python benchmarks/evaluation.py                        # made-up features of CIFAR-100's size, no images
    python benchmarks/evaluation.py --dims 1024 --fires 1  # ... of a wide code that fires everywhere
    python benchmarks/evaluation.py --run RUN --data DIR   # a finished run, with its images

`own` is a function's time without the functions below it that have a line of their own. A GPU is waited for at the
start and end of each, which costs little; the probe runs beside the rest there, so that the parts add up to more than
the whole. What happens before, imports and reading images, is printed apart.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl import evaluate as evaluation
from bayesncl.data import load as load_split
from bayesncl.data.images import Images
from bayesncl.device import find_device
from bayesncl.method import encoder
from bayesncl.method.encoder import Extracted, build_model
from bayesncl.recipes import named, replace_fields, with_root
from bayesncl.training.run_folder import load_run

IMPORTS = time.process_time()  # of the processor, since the process began
MODULES = ("bayesncl.evaluate", "bayesncl.method.encoder", "bayesncl.codes.heat", "bayesncl.measure.")
# called for every block of rows, or nothing to speak of
SMALL = {"norms", "unit", "divide", "as_tensor", "positive", "release", "place", "at", "at_l0", "mean", "rounded"}


class Clock:
    """Calls, own seconds and seconds with all that is called, by function."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}
        self.threads = threading.local()

    @property
    def inside(self) -> list[float]:
        """Seconds of timed callees, of each function that is running in this thread."""
        if not hasattr(self.threads, "inside"):
            self.threads.inside = []
        return self.threads.inside

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            start = self.now()
            self.inside.append(0.0)
            try:
                return function(*args, **options)
            finally:
                whole = self.now() - start
                row = self.rows.setdefault(name, [0, 0.0, 0.0])
                for i, value in enumerate((1, whole - self.inside.pop(), whole)):
                    row[i] += value
                if self.inside:
                    self.inside[-1] += whole

        return timed

    @staticmethod
    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def watch_all(clock: Clock) -> None:
    """Put a clock on the public functions of the measuring modules, under every name they were imported by."""
    timed: dict[Callable[..., Any], Callable[..., Any]] = {}
    for module in [m for name, m in sys.modules.items() if name.startswith("bayesncl")]:
        for alias, function in list(vars(module).items()):
            if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
                continue
            home, name = function.__module__, function.__name__
            if home.startswith(MODULES) and not name.startswith("_") and name not in SMALL:
                timed.setdefault(function, clock.watch(f"{home.split('.')[-1]}.{name}", function))
                setattr(module, alias, timed[function])


def make_features(n: int, classes: int, width: int, dims: int, fires: float, seed: int) -> tuple[Extracted, np.ndarray]:
    """Features that a linear probe reads half of: a few strong directions, and classes that overlap in all.

    z is a rectified projection of h of which that share fires; gates close half of it.
    """
    world, rng = np.random.default_rng(0), np.random.default_rng(seed)
    latent = min(128, width)
    scale = np.arange(1, latent + 1, dtype=np.float32) ** -0.7
    centers = 0.35 * world.standard_normal((classes, latent), dtype=np.float32)
    mixed = world.standard_normal((latent, width), dtype=np.float32)
    project = world.standard_normal((width, dims), dtype=np.float32) / np.float32(width**0.5)
    labels = rng.permutation(np.arange(n) % classes)
    inner = (centers[labels] + rng.standard_normal((n, latent), dtype=np.float32)) * scale
    h = np.maximum(inner @ mixed + rng.standard_normal((n, width), dtype=np.float32) / 2, 0)
    raw = (h - h.mean(0)) @ project
    raw -= np.quantile(raw[:1000], 1 - fires) if fires < 1 else raw.min() - 0.01
    z = np.maximum(raw, 0)
    opened = rng.random((n, dims), np.float32) < 0.5
    gated = z * opened if fires < 1 else z
    unit = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (z, gated)]
    return Extracted(h, *unit, opened), labels


def made_up(options: argparse.Namespace) -> tuple[Any, Images, Images]:
    """An untrained model, and black images whose features are made up; only a GPU also computes the true ones."""
    recipe = replace_fields(named(options.recipe), model={"dim": options.dims})
    model = build_model(recipe).to(find_device()).eval()
    width = int(model.backbone.features)
    found, splits = {}, []
    for i, n in enumerate((options.train, options.test)):
        sound, labels = make_features(n, options.classes, width, options.dims, options.fires, i)
        images = Images(np.zeros((n, 3, recipe.data.size, recipe.data.size), np.uint8), labels)
        splits.append(images)
        found[id(images), "sound"] = sound
        found[id(images), "paper"] = sound._replace(gated=sound.gated[:, ::-1].copy())  # as other features take as long

    def instead(model: Any, images: Images, mode: str, **rest: Any) -> Extracted:
        if torch.cuda.is_available():
            encoder.extract(model, images, mode, **rest)
        return found[id(images), mode]

    evaluation.extract = instead
    if not torch.cuda.is_available():
        evaluation.N_CHECKED = 16
    return model, *splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run, instead of made-up features")
    parser.add_argument("--data", help="where its images are, if they have moved")
    parser.add_argument("--recipe", default="cifar100-bayesncl")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dims", type=int, default=256)
    parser.add_argument("--fires", type=float, default=0.1, help="share of entries that fire before the gates")
    parser.add_argument("--warm", action="store_true", help="evaluate once before, so that nothing is done first")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--values", type=Path, help="also save the result, to compare two versions")
    options = parser.parse_args()
    start = time.perf_counter()
    if options.run:
        model = load_run(options.run, find_device())
        data = with_root(model.recipe, options.data).data
        splits = [load_split(data, split) for split in ("train", "test")]
    else:
        model, *splits = made_up(options)
    ready = time.perf_counter() - start
    if options.warm:
        evaluation.evaluate(model, *splits)
    clock = Clock()
    watch_all(clock)
    result = evaluation.evaluate(model, *splits)
    total = clock.rows["evaluate.evaluate"][2]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}: imports {IMPORTS:.2f} s, images or features {ready:.2f} s, evaluate {total:.2f} s")
    print(f"{'own s':>8} {'all s':>8} {'calls':>6}  part")
    for name, (calls, own, whole) in sorted(clock.rows.items(), key=lambda row: -row[1][1]):
        if own >= 0.005:
            print(f"{own:8.2f} {whole:8.2f} {calls:6}  {name}")
    rows = {name: {"own": own, "all": whole, "calls": calls} for name, (calls, own, whole) in clock.rows.items()}
    if options.json:
        found = {"device": device, "imports": IMPORTS, "ready": ready, "seconds": total, "parts": rows}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.values:
        options.values.write_text(result.to_json())


if __name__ == "__main__":
    main()
