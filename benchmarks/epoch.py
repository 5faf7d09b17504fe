"""A training epoch: ours against a conventional pipeline, on the machine at hand.

    python benchmarks/epoch.py                              # cifar100-bayesncl and -ncl, random pixels
    python benchmarks/epoch.py --recipe imagenet100-bayesncl
    python benchmarks/epoch.py --conventional 4 16          # also torchvision transforms in 4 and 16 DataLoader workers

Ours is the step that `bayesncl train` runs: compiled and replayed as a CUDA graph on a GPU, as it is on a CPU.
Conventional is what most contrastive code does: Pillow images, torchvision transforms in worker processes, the two
views forwarded one after the other, an eager step under autocast. Both train the same model with the same batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.device import find_device
from bayesncl.method.backbones import norms
from bayesncl.method.encoder import build_model
from bayesncl.method.losses import info_nce
from bayesncl.paper.cost import cost
from bayesncl.recipes import Recipe, change, named
from bayesncl.training.compile import capture, changing_tensors, choose_parts
from bayesncl.training.log import Meter
from bayesncl.training.loop import assemble, make_optimizer
from bayesncl.training.step import Batch, forward

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet100": 126_689, "scenes": 6_000}
CEILING = 790.0  # TFLOP/s of a large bf16 product on one H200, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["cifar100-bayesncl", "cifar100-ncl"])
    parser.add_argument("--set", nargs="*", default=[], dest="changes", metavar="PART.FIELD=VALUE")
    parser.add_argument("--steps", type=int, default=100, help="steps per timed block")
    parser.add_argument("--conventional", type=int, nargs="*", default=[], metavar="WORKERS")
    parser.add_argument("--parts", action="store_true", help="also the shares of views, forward, backward, optimizer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = find_device()
    rows: list[dict[str, Any]] = []
    for name in options.recipe:
        recipe = change(named(name), options.changes)
        rows.append(time_ours(recipe, device, options.steps, options.parts))
        print_row(rows[-1])
    first = change(named(options.recipe[0]), options.changes)
    for workers in options.conventional:
        rows.append(time_conventional(first, device, options.steps, workers))
        rows[-1]["ratio"] = rows[-1]["epoch_s"] / rows[0]["epoch_s"]
        print_row(rows[-1])
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "device": str(torch.cuda.get_device_name() if device.type == "cuda" else "CPU"),
                    "torch": torch.__version__,
                    "rows": rows,
                },
                indent=2,
            )
            + "\n"
        )


def print_row(row: dict[str, Any]) -> None:
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def time_ours(recipe: Recipe, device: torch.device, steps: int, parts: bool) -> dict[str, Any]:
    """Seconds of an epoch with the whole set on the device."""
    n, batch, side = IMAGES[recipe.data.name], recipe.run.batch, recipe.data.size
    pixels = torch.randint(0, 256, (min(n, 20_000), 3, side, side), dtype=torch.uint8, device=device)
    model, optimizer, meter, step = assemble(recipe, pixels, device)
    rates = torch.full((len(optimizer.param_groups),), 0.01, device=device)
    order = torch.randperm(len(pixels), device=device)

    def block(count: int) -> None:
        for i in range(count):
            index = order[(i * batch) % (len(pixels) - batch) :][:batch]
            step(pixels.index_select(0, index), index, 0, rates)
        wait(device)

    began = time.perf_counter()
    block(1)
    ready = time.perf_counter() - began
    seconds = measure(lambda: block(steps)) / steps
    row: dict[str, Any] = {
        "what": recipe.name,
        "step_ms": 1000 * seconds,
        "epoch_s": seconds * (n // batch),
        "ready_s": ready,
    }
    flops = cost(recipe)["flops_per_step"]
    row |= {"tflops": flops / seconds / 1e12, "of_ceiling": flops / seconds / 1e12 / CEILING}
    if device.type == "cuda":
        row["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if parts:
            row |= time_parts(recipe, model, optimizer, meter, pixels[:batch], order[:batch])
    return row


def time_parts(
    recipe: Recipe, model: Any, optimizer: Any, meter: Meter, pixels: torch.Tensor, index: torch.Tensor
) -> dict[str, float]:
    """Milliseconds of views, forward, backward and optimizer, from graphs that each do one thing more."""
    epoch = torch.zeros((), dtype=torch.int64, device=pixels.device)
    seed, parts = torch.zeros_like(epoch), choose_parts(model, pixels)

    def views() -> None:
        parts.draw(model, pixels, index, epoch, seed)

    def loss() -> torch.Tensor:
        loss, averages, active = forward(model, Batch(pixels, index, epoch, torch.bfloat16), parts)
        meter.add(averages, active)
        return loss

    def backward() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()

    def everything() -> None:
        backward()
        optimizer.step()

    state = changing_tensors(model, optimizer, meter)
    times = []
    for body in (views, loss, backward, everything):
        replay = capture(body, state)  # type: ignore[arg-type]

        def fifty(replay: Callable[[], object] = replay) -> None:
            for _ in range(50):
                replay()
            torch.cuda.synchronize()

        times.append(20 * measure(fifty))
    return dict(
        zip(
            ("views_ms", "forward_ms", "backward_ms", "optimizer_ms"),
            [times[0], *(b - a for a, b in zip(times, times[1:]))],
        )
    )


def time_conventional(recipe: Recipe, device: torch.device, steps: int, workers: int) -> dict[str, Any]:
    """Seconds of an epoch with Pillow transforms in worker processes and an eager step."""
    try:
        from torch.utils.data import DataLoader
        from torchvision import transforms
    except (ImportError, RuntimeError) as error:
        return {"what": f"conventional, {workers} workers", "epoch_s": float("nan"), "left_out": str(error)}
    v = recipe.views
    jitter = transforms.ColorJitter(v.brightness, v.contrast, v.saturation, v.hue)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(v.size, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.RandomApply([jitter], v.jitter),
            transforms.RandomGrayscale(v.grayscale),
            transforms.RandomApply([PillowBlur(v.blur_sigma)], v.blur),
            transforms.RandomHorizontalFlip(v.flip),
            transforms.ToTensor(),
            transforms.Normalize(recipe.data.mean, recipe.data.std),
        ]
    )
    n, batch = IMAGES[recipe.data.name], recipe.run.batch
    loader = DataLoader(
        TwoViews(n, recipe.data.size, transform),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    model = build_model(recipe).to(device, memory_format=torch.channels_last).train()
    for layer in norms(model):
        layer.views = 1  # of each forward pass
    optimizer = make_optimizer(model, device)
    for group in optimizer.param_groups:
        group["lr"].fill_(0.01)

    def step(both: list[torch.Tensor]) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            z = torch.cat(
                [model(x.to(device, non_blocking=True, memory_format=torch.channels_last)).gated for x in both]
            )
        optimizer.zero_grad(set_to_none=True)
        info_nce(z, recipe.objective.temperature).backward()
        optimizer.step()

    stream: Iterator[list[torch.Tensor]] = iter(loader)
    for _ in range(10):
        step(next(stream))
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step(next(stream))
    wait(device)
    seconds = (time.perf_counter() - began) / steps
    return {"what": f"conventional, {workers} workers", "step_ms": 1000 * seconds, "epoch_s": seconds * (n // batch)}


class PillowBlur:
    """Pillow's Gaussian blur with a random radius, as SimCLR code has it."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, image: Any) -> Any:
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(float(torch.empty(1).uniform_(*self.sigma))))


class TwoViews:
    """Random pixels as Pillow images, two views each."""

    def __init__(self, n: int, side: int, transform: Callable[[Any], torch.Tensor]) -> None:
        self.n, self.side, self.transform = n, side, transform
        self.pixels = torch.randint(0, 256, (min(n, 5000), side, side, 3), dtype=torch.uint8).numpy()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        from PIL import Image

        image = Image.fromarray(self.pixels[i % len(self.pixels)])
        return [self.transform(image), self.transform(image)]


def measure(function: Callable[[], None], repeats: int = 3) -> float:
    """Median seconds of a call, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
