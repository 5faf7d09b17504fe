"""A folder of photos, through an encoder of your own, to a table of named codes.

    python examples/photos.py --out photos-example

The photos are crops of the two photographs that scikit-learn carries; the encoder, defined below, has no weights and
gives 112 numbers a photo. For your own photos: bayesncl fit PHOTOS/ -o DIR, with --encoder for any other model.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import bayesncl
from bayesncl.names import Codes, Entry

REGIONS = {  # photograph, top, bottom, left, right
    "sky": (0, 0, 130, 330, 640),
    "roofs": (0, 90, 330, 100, 325),
    "petals": (1, 125, 320, 205, 410),
    "leaves": (1, 0, 330, 0, 160),
}
ENCODER = "photos:encoder"  # MODULE:FUNCTION, as bayesncl fit --encoder takes it


class ColourAndTexture(torch.nn.Module):
    """Mean and spread of the colours, and the mean slope, in each cell of a 4 x 4 grid: 16 x 7 numbers."""

    def __init__(self):
        super().__init__()
        self.preprocess = {"size": 64}  # how photos are cut before they come here

    def forward(self, x):  # [N, 3, 64, 64]
        mean = torch.nn.functional.avg_pool2d(x, 16)
        spread = torch.nn.functional.avg_pool2d(x**2, 16) - mean**2
        slope = (x[..., 1:, 1:] - x[..., :-1, :-1]).abs().mean(1, keepdim=True)
        return torch.cat([mean, spread, torch.nn.functional.avg_pool2d(slope, 15)[..., :4, :4]], 1).flatten(1)


def encoder():
    return ColourAndTexture()


def take_photos(folder, count):
    """Some crops of each region, in a subfolder each: subfolders are read as labels, which only judge."""
    rng = np.random.default_rng(0)
    for name, (photo, top, bottom, left, right) in REGIONS.items():
        whole = Image.fromarray(load_sample_images().images[photo])
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            x, y = rng.integers(left, right - 64), rng.integers(top, bottom - 64)
            whole.crop((x, y, x + 64, y + 64)).save(folder / name / f"{i:03}.jpg")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("photos-example"))
    parser.add_argument("--count", type=int, default=100, help="photos of each region")
    parser.add_argument("--dim", type=int, default=16)
    options = parser.parse_args()
    photos, folder = options.out / "photos", options.out / "codes"
    take_photos(photos, options.count)

    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "bayesncl", "fit", str(photos), "-o", str(folder), "--encoder", ENCODER]
    subprocess.run([*command, "--dim", str(options.dim)], env=here, check=True)
    table = options.out / "codes.csv"
    command = [sys.executable, "-m", "bayesncl", "embed", str(folder), str(photos), "-o", str(table), "--keep", "3"]
    subprocess.run([*command, "--encoder", ENCODER], env=here, check=True)

    with open(table) as file:
        rows = list(csv.DictReader(file))
    z = np.array([[float(row[f"z{k}"]) for k in range(options.dim)] for row in rows])
    names = Codes("", dims=options.dim)
    for k in range(options.dim):  # in the atlas a person does this; here the folder of the strongest photos does
        top = [rows[i]["label"] for i in np.argsort(-z[:, k])[:10]]
        best = max(set(top), key=top.count)
        if top.count(best) >= 8:
            names.dimensions[k] = [Entry(name=best)]
    columns = names.columns(options.dim)
    for i in range(0, len(rows), max(1, len(rows) // 6)):
        strongest = ", ".join(f"{columns[k]} {z[i, k]:.2f}" for k in np.argsort(-z[i])[:3])
        print(f"{rows[i]['name']:16} {strongest}")
    print(f"{len(names.dimensions)} of {options.dim} dimensions have a name (bayesncl {bayesncl.__version__})")


if __name__ == "__main__":
    main()
