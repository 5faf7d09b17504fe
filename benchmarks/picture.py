"""The picture of the README: dimensions of the demonstration, a row each, with the test crops each fires on most.

    bayesncl demo --no-open --out runs/demo
    python benchmarks/picture.py runs/demo -o docs/images/dimensions.png

Everything in it is cut from photographs that scikit-image carries and that may be published (docs/log/demo.md). The
clearest dimension of each photograph is taken, and of these the ones whose crops have most contrast; none is picked by
hand.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import bayesncl
from bayesncl.codes.folder import CodesFolder
from bayesncl.data import load

TILE, GAP, MARGIN, SHOWN = 72, 4, 190, 8


def choose(z: np.ndarray, labels: np.ndarray, pixels: np.ndarray, count: int) -> list[tuple[int, int, np.ndarray]]:
    """(dimension, label, its strongest images) of `count` dimensions, one a label: the clearest, then by contrast."""
    best: dict[int, tuple[float, float, int, np.ndarray]] = {}
    for k in range(z.shape[1]):
        strongest = np.argsort(-z[:, k], kind="stable")[:SHOWN]
        label, votes = max(zip(*np.unique(labels[strongest], return_counts=True)), key=lambda pair: pair[1])
        clear = (votes / SHOWN, float(z[strongest, k].mean()), k, strongest)
        if int(label) not in best or clear[:2] > best[int(label)][:2]:
            best[int(label)] = clear
    contrast = {label: float(pixels[found[3]].std((2, 3)).mean()) for label, found in best.items()}
    ranked = sorted(best.items(), key=lambda item: (item[1][0], contrast[item[0]]), reverse=True)[:count]
    return [(k, label, strongest) for label, (_, _, k, strongest) in ranked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="the folder of the demonstration")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/images/dimensions.png"))
    parser.add_argument("--rows", type=int, default=6)
    options = parser.parse_args()

    data = bayesncl.load(options.demo / "encoder").recipe.data
    test, large = load(data, "test"), load(dataclasses.replace(data, size=TILE), "test")
    folder = CodesFolder(options.demo / "codes")
    z = folder.codes().transform(folder.embeddings()[-len(test) :])  # the test crops come last
    assert test.labels is not None and test.class_names is not None
    chosen = choose(z, test.labels, test.pixels, options.rows)

    sheet = Image.new("RGB", (MARGIN + SHOWN * (TILE + GAP), len(chosen) * (TILE + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(17)
    for row, (k, label, strongest) in enumerate(chosen):
        top = GAP + row * (TILE + GAP)
        same = int((test.labels[strongest] == label).sum())
        draw.text((10, top + 12), f"dimension {k}", fill="black", font=font)
        draw.text((10, top + 36), f"{same} of {SHOWN}: {test.class_names[label]}", fill="#666666", font=font)
        for column, i in enumerate(strongest):
            tile = Image.fromarray(large.pixels[i].transpose(1, 2, 0))
            sheet.paste(tile, (MARGIN + column * (TILE + GAP), top))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(256, kmeans=2).save(options.out, optimize=True)  # 256 colors: a third of the bytes
    print(f"wrote {options.out}: {', '.join(test.class_names[label] for _, label, _ in chosen)}")


if __name__ == "__main__":
    main()
