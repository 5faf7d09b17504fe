"""The paper's two galleries as static figures: high-entropy dimensions, and those the gates suppress most."""

from __future__ import annotations

from pathlib import Path

from ..data.images import Images
from ..measure.dimensions import Dimensions, describe, most_mixed, most_suppressed
from ..report.plots import plot_sheet
from .contents import AtlasRun, prepare
from .telling import factorise
from .vectors import top_images


def galleries(run: AtlasRun, images: Images, out_dir: Path, rows: int = 6, columns: int = 12) -> list[Path]:
    """Write `high-entropy.png` and, where there are gates, `most-suppressed.png`.

    Each row is a dimension with the images that activate it most before gating. Returns the files written.
    """
    run = prepare(run, images)
    labels = factorise("labels", images.labels, images.class_names)
    names = None if labels is None else labels.names
    dims = describe(run.z, None if labels is None else labels.index, open=run.open)
    picked = {"high-entropy": most_mixed(dims)[:rows]}
    if run.open is not None:
        picked["most-suppressed"] = most_suppressed(dims)[:rows]
    files: list[Path] = []
    for name, order in picked.items():
        if not len(order):
            continue
        index, value = top_images(run.z[:, order], columns)
        strongest = [images.pixels[row[above > 0]] for row, above in zip(index, value)]
        captions = [_caption(int(k), dims, names) for k in order]
        files.append(plot_sheet(dict(zip(captions, strongest)), Path(out_dir) / f"{name}.png"))
    return files


def _caption(k: int, dims: Dimensions, names: list[str] | None) -> str:
    lines = [f"Dimension {k}", f"fires on {dims.support[k] / dims.images:.0%} of images"]
    if dims.consistency is not None and dims.best_class is not None and names is not None and dims.best_class[k] >= 0:
        label = names[dims.best_class[k]]
        lines.append(f"{dims.consistency[k]:.0f}% {label if len(label) <= 18 else label[:17] + '…'}")
    if dims.closed_rate is not None:
        lines.append(f"gate closes {dims.closed_rate[k]:.0f}%")
    return "\n".join(lines)
