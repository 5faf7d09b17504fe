"""Images per second out of tar shards: the first time (decoding into the cache) and every epoch after (shuffled).

python benchmarks/shards.py [--images 4000] [--side 256] [--batch 256]
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayesncl import data
from bayesncl.recipes import Data
from bayesncl.training.loader import batches

SHARD = 1000  # images per shard


def write_shards(folder: Path, images: int, side: int) -> int:
    """Shards of JPEG files; returns their bytes."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(50):  # blurred noise compresses like a photograph
        small = Image.fromarray(rng.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8))
        out = io.BytesIO()
        small.resize((side, side), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        pictures.append(out.getvalue())
    for start in range(0, images, SHARD):
        with tarfile.open(folder / f"{start // SHARD:05d}.tar", "w") as tar:
            for i in range(start, min(start + SHARD, images)):
                for suffix, body in (("jpg", pictures[i % 50]), ("cls", str(i % 100).encode())):
                    info = tarfile.TarInfo(f"{i:08d}.{suffix}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        os.environ["BAYESNCL_CACHE"] = f"{top}/cache"
        shards = Path(top) / "shards"
        shards.mkdir()
        size = write_shards(shards, args.images, args.side)
        print(f"{args.images} images of {args.side} px in {size >> 20} MiB of shards, {os.cpu_count()} cores")
        source = Data(name="shards", root=str(shards), size=args.side, holdout=0.0)
        for what in ("decoding into the cache", "finding the cache"):
            began = time.perf_counter()
            images = data.load(source, "train")
            seconds = time.perf_counter() - began
            print(f"{what:28} {len(images) / seconds:10.0f} images/s  {seconds:6.2f} s")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for epoch in range(2):
            began, count = time.perf_counter(), 0
            for part, _ in batches(images.pixels, args.batch, 0, epoch, 0, device):
                count += len(part)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            rate = count * images.pixels[0].nbytes / seconds / 2**20
            print(
                f"{f'epoch {epoch}, shuffled':28} {count / seconds:10.0f} images/s  {seconds:6.2f} s  {rate:.0f} MiB/s"
            )


if __name__ == "__main__":
    main()
