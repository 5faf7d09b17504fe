"""A folder of photos, through an encoder of your own, to a table of named codes.

    python examples/photos.py --out photos-example

The photos are crops of scikit-learn's two sample photographs. The encoder defined below has no
weights and returns 112 numbers per photo. For your own photos, run `bayesncl fit PHOTOS/ -o DIR`,
with `--encoder` for another model.
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

from bayesncl.codes.names import Annotations, Entry

REGIONS = {  # photograph, top, bottom, left, right
    "sky": (0, 0, 130, 330, 640),
    "roofs": (0, 90, 330, 100, 325),
    "petals": (1, 125, 320, 205, 410),
    "leaves": (1, 0, 330, 0, 160),
}
ENCODER = "photos:encoder"  # MODULE:FUNCTION for `bayesncl fit --encoder`


class ColorAndTexture(torch.nn.Module):
    """Color means, color variances and mean slope per cell of a 4 x 4 grid: 16 x 7 numbers."""

    def __init__(self):
        super().__init__()
        self.preprocess = {"size": 64}  # side of the photos it takes

    def forward(self, x):  # [N, 3, 64, 64]
        mean = torch.nn.functional.avg_pool2d(x, 16)
        spread = torch.nn.functional.avg_pool2d(x**2, 16) - mean**2
        slope = (x[..., 1:, 1:] - x[..., :-1, :-1]).abs().mean(1, keepdim=True)
        slope = torch.nn.functional.avg_pool2d(slope, 15)[..., :4, :4]
        return torch.cat([mean, spread, slope], 1).flatten(1)


def encoder():
    return ColorAndTexture()


def write_photos(folder, count):
    """Write crops of each region into a folder of its own; folder names become labels."""
    rng = np.random.default_rng(0)
    for name, (photo, top, bottom, left, right) in REGIONS.items():
        whole = Image.fromarray(load_sample_images().images[photo])
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            x, y = rng.integers(left, right - 64), rng.integers(top, bottom - 64)
            whole.crop((x, y, x + 64, y + 64)).save(folder / name / f"{i:03}.jpg")


def run(*words):
    """Run a bayesncl command that can import this file."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "bayesncl", *map(str, words), "--encoder", ENCODER]
    subprocess.run(command, env=environment, check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("photos-example"))
    parser.add_argument("--count", type=int, default=100, help="photos per region")
    parser.add_argument("--components", type=int, default=16)
    options = parser.parse_args()
    photos, folder, table = (options.out / name for name in ("photos", "codes", "codes.csv"))
    write_photos(photos, options.count)
    run("fit", photos, "-o", folder, "--components", options.components)
    run("embed", folder, photos, "-o", table, "--active", 3)

    with open(table) as file:
        rows = list(csv.DictReader(file))
    dims = range(options.components)
    z = np.array([[float(row[f"z{k}"]) for k in dims] for row in rows])
    names = Annotations("", dims=options.components)
    for k in dims:  # in the atlas, a person names dimensions; here, folder names do
        top = [rows[i]["label"] for i in np.argsort(-z[:, k])[:10]]
        best = max(set(top), key=top.count)
        if top.count(best) >= 8:
            names.dimensions[k] = [Entry(name=best)]
    columns = names.columns(options.components)
    for i in range(0, len(rows), max(1, len(rows) // 6)):
        strongest = ", ".join(f"{columns[k]} {z[i, k]:.2f}" for k in np.argsort(-z[i])[:3])
        print(f"{rows[i]['name']:16} {strongest}")
    print(f"{len(names.dimensions)} of {options.components} dimensions have a name")


if __name__ == "__main__":
    main()
