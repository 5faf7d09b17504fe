"""Screenshots of an atlas for the docs; dimension DIMENSION gets the name NAME.

    python benchmarks/screenshots.py ATLAS_FOLDER OUT_FOLDER NAME [DIMENSION IMAGE IMAGE]
"""

from __future__ import annotations

import argparse
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.atlas.browser import open_chromium

SHOTS = {  # name: address, width, height, dark
    "overview": ("#/", 1280, 985, False),
    "dimension": ("#/dim/{k}", 1280, 800, False),
    "pair": ("#/pair/{i}/{j}", 1280, 1000, True),
    "quiz": ("#/quiz", 1280, 660, False),
    "phone": ("#/", 390, 844, False),
}


def take_screenshots(index: Path, out: Path, name: str, k: int = 0, i: int = 0, j: int = 1) -> None:
    """Views for the docs; dimension `k` gets the name `name`, the pair is images `i` and `j`."""
    out.mkdir(parents=True, exist_ok=True)
    for view, (address, width, height, dark) in SHOTS.items():
        with open_chromium(width, height, dark) as driver:
            driver.visit(index, f"#/dim/{k}", 60)
            driver.type("name", name)
            driver.execute_script("document.activeElement.blur()")
            driver.press("1")  # marks it readable; a click would leave the pointer on the page
            driver.visit(index, address.format(k=k, i=i, j=j), 60)
            with Image.open(BytesIO(driver.get_screenshot_as_png())) as shot:
                # 128 colors take a third of the bytes; without k-means links turn gray
                small = shot.convert("RGB").quantize(128, kmeans=2)
                small.save(out / f"atlas-{view}.png", optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Screenshots of an atlas for the docs.")
    parser.add_argument("atlas", type=Path, help="its folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("name", help="for the dimension")
    parser.add_argument("numbers", type=int, nargs="*", help="dimension, and a pair of images")
    options = parser.parse_args()
    index = options.atlas / "index.html"
    take_screenshots(index, options.out, options.name, *options.numbers)
