"""Views per second: ours against kornia and torchvision on the same images, device and recipe.

    python benchmarks/augmentation.py [--device cuda] [--size 32] [--batch 256] [--json augmentation.json]

Every contender makes two views of each image of a batch of uint8 pixels: random resized crop, color jitter,
grayscale, blur, flip, with parameters drawn per image. A library that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayesncl.method.augment import make_views
from bayesncl.recipes import Views

Contender = Callable[[Tensor], Tensor]


def ours(views: Views, batch: int, device: str, compiled: bool) -> Contender:
    make = make_views
    if compiled:
        if device == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            raise RuntimeError("torch.compile needs a C++ compiler on a CPU and none was found")
        mode = "default" if device == "cpu" else "reduce-overhead"  # the latter replays a CUDA graph
        make = torch.compile(make_views, fullgraph=True, mode=mode)
    index, epoch = torch.arange(batch, device=device), torch.zeros((), dtype=torch.int64, device=device)

    def run(pixels: Tensor) -> Tensor:
        epoch.add_(1)
        return make(pixels, index, epoch, 0, views)

    return run


def kornia(views: Views) -> Contender:
    import kornia.augmentation as K

    spread = [(1 - s, 1 + s) for s in (views.brightness, views.contrast, views.saturation)]
    window = 2 * round(3 * views.blur_sigma[1]) + 1
    transform = K.AugmentationSequential(
        K.RandomResizedCrop(
            (views.size, views.size), views.crop_scale, views.crop_ratio, resample=views.interpolation.upper()
        ),
        K.ColorJitter(*spread, hue=views.hue, p=views.jitter),
        K.RandomGrayscale(p=views.grayscale),
        K.RandomGaussianBlur((window, window), views.blur_sigma, p=views.blur),
        K.RandomHorizontalFlip(p=views.flip),
        same_on_batch=False,
    )
    return lambda pixels: transform(torch.cat([pixels, pixels]).float() / 255)


def torchvision(views: Views, on_pillow: bool) -> Contender:
    """The conventional pipeline, one image after the other in one process: its operations draw once per call."""
    from PIL import Image
    from torchvision.transforms import v2

    window = 2 * round(3 * views.blur_sigma[1]) + 1
    jitter = v2.ColorJitter(views.brightness, views.contrast, views.saturation, views.hue)
    transform = v2.Compose([
        v2.RandomResizedCrop(
            views.size, views.crop_scale, views.crop_ratio, v2.InterpolationMode(views.interpolation), antialias=True
        ),
        v2.RandomApply([jitter], views.jitter),
        v2.RandomGrayscale(views.grayscale),
        v2.RandomApply([v2.GaussianBlur(window, views.blur_sigma)], views.blur),
        v2.RandomHorizontalFlip(views.flip),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ])  # fmt: skip

    def run(pixels: Tensor) -> Tensor:
        images: list[Any] = list(pixels)
        if on_pillow:
            images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
        return torch.stack([transform(image) for _ in range(2) for image in images])

    return run


def measure(contender: Contender, pixels: Tensor, seconds: float) -> dict[str, float]:
    """Median time of a call, over at least three calls and about `seconds` seconds."""

    def timed() -> float:
        start = time.perf_counter()
        result = contender(pixels)
        if pixels.is_cuda:
            torch.cuda.synchronize()
        assert result.shape[0] == 2 * len(pixels)
        return time.perf_counter() - start

    first = timed()
    times: list[float] = []
    timed()
    while len(times) < 3 or sum(times) < seconds:
        times.append(timed())
    median = statistics.median(times)
    rate = 2 * len(pixels) / median
    return {"views_per_second": rate, "ms": 1e3 * median, "first_call_s": first, "calls": len(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--size", type=int, default=32, help="side of images and views, pixels")
    parser.add_argument("--batch", type=int, default=256, help="images per call, two views each")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each contender is timed")
    parser.add_argument("--json", type=Path, default=Path("augmentation.json"), help="where the figures go")
    args = parser.parse_args()

    views = Views(size=args.size)
    pixels = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8, device=args.device)
    contenders: dict[str, Callable[[], Contender]] = {
        "bayesncl": lambda: ours(views, args.batch, args.device, compiled=False),
        "bayesncl, compiled": lambda: ours(views, args.batch, args.device, compiled=True),
        "kornia": lambda: kornia(views),
        "torchvision v2, tensors": lambda: torchvision(views, on_pillow=False),
    }
    if args.device == "cpu":
        contenders["torchvision v2, Pillow"] = lambda: torchvision(views, on_pillow=True)

    results: dict[str, dict[str, Any]] = {}
    for name, build in contenders.items():
        try:
            contender = build()
        except (ImportError, RuntimeError) as problem:  # RuntimeError: torchvision built for another torch
            results[name] = {"left_out": str(problem).splitlines()[0]}
            continue
        with torch.no_grad():
            results[name] = measure(contender, pixels, args.seconds)

    machine = platform.machine() if args.device == "cpu" else torch.cuda.get_device_name()
    report = {
        "machine": machine, "threads": torch.get_num_threads(), "torch": torch.__version__,
        "device": args.device, "size": args.size, "batch": args.batch, "results": results,
    }  # fmt: skip
    args.json.write_text(json.dumps(report, indent=2) + "\n")

    print(f"two views of {args.batch} images at {args.size} px, {machine}, {report['threads']} CPU threads")
    print(f"{'':26}{'views/s':>12}{'ms/batch':>12}{'first call, s':>16}{'ours is':>10}")
    best = max(r.get("views_per_second", 0.0) for name, r in results.items() if name.startswith("bayesncl"))
    for name, r in results.items():
        if "left_out" in r:
            print(f"{name:26}left out: {r['left_out']}")
        else:
            ratio = best / r["views_per_second"]
            print(f"{name:26}{r['views_per_second']:12,.0f}{r['ms']:12.2f}{r['first_call_s']:16.1f}{ratio:9.1f}x")
    print(f"written to {args.json}")


if __name__ == "__main__":
    main()
