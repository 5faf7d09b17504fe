"""The paper's two galleries as static figures: high-entropy dimensions, and those the gates suppress most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..data.images import Images
from ..files import write_saved
from ..measure.dimensions import Dimensions, describe, most_mixed, most_suppressed
from .contents import AtlasRun, prepare
from .telling import factorise
from .vectors import top_images


def galleries(run: AtlasRun, images: Images, out_dir: Path, rows: int = 6, columns: int = 12) -> list[Path]:
    """Write `high-entropy.png` and, where there are gates, `most-suppressed.png`.

    Each row is a dimension with the images that activate it most before gating. Returns the files written.
    """
    features = prepare(run, images)
    z = features.z
    labels = factorise("labels", images.labels, images.class_names)
    names = None if labels is None else labels.names
    dims = describe(z, None if labels is None else labels.index, open=features.open)
    picked = {"high-entropy": most_mixed(dims)[:rows]}
    if features.open is not None:
        picked["most-suppressed"] = most_suppressed(dims)[:rows]
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, order in picked.items():
        if not len(order):
            continue
        index, value = top_images(z[:, order], columns)
        captions = [_caption(int(k), dims, names) for k in order]
        path = Path(out_dir) / f"{name}.png"
        figure = _draw(images.pixels, index, value, captions)
        write_saved(path, figure.savefig, format="png", dpi=160, facecolor="white")
        files.append(path)
    return files


def _caption(k: int, dims: Dimensions, names: list[str] | None) -> str:
    lines = [f"Dimension {k}", f"fires on {dims.support[k] / dims.images:.0%} of images"]
    if dims.consistency is not None and dims.best_class is not None and names is not None and dims.best_class[k] >= 0:
        label = names[dims.best_class[k]]
        lines.append(f"{dims.consistency[k]:.0f}% {label if len(label) <= 18 else label[:17] + '…'}")
    if dims.closed_rate is not None:
        lines.append(f"gate closes {dims.closed_rate[k]:.0f}%")
    return "\n".join(lines)


def _draw(pixels: np.ndarray, index: np.ndarray, value: np.ndarray, captions: list[str]) -> Figure:
    rows, columns = index.shape
    figure = Figure(figsize=(2.1 + 0.75 * columns, 0.8 * rows + 0.1))
    left = 2.0 / (2.1 + 0.75 * columns)
    grid = figure.subplots(
        rows, columns, squeeze=False,
        gridspec_kw={"left": left, "right": 0.99, "top": 0.98, "bottom": 0.02, "wspace": 0.06, "hspace": 0.08},
    )
    for i in range(rows):
        for j in range(columns):
            grid[i, j].set_axis_off()
            if value[i, j] > 0:
                grid[i, j].imshow(pixels[index[i, j]].transpose(1, 2, 0), interpolation="nearest")
        box = grid[i, 0].get_position()
        # parse_math off: class names are a stranger's text, and "$" would be read as a formula
        middle = (box.y0 + box.y1) / 2
        figure.text(left - 0.01, middle, captions[i], ha="right", va="center", fontsize=7, parse_math=False)
    return figure
