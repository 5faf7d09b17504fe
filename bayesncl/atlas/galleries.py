"""The two galleries of the paper as image files: mixed dimensions, and the most suppressed ones."""

from __future__ import annotations

from pathlib import Path

from bayesncl.atlas.page_data import AtlasRun, prepare
from bayesncl.atlas.pictures import Photos, picture_size, read_pictures, thumbnail_side
from bayesncl.atlas.ranking import STRONGEST_IMAGES, mixed_dimensions, number_labels
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import Dimensions, describe, most_suppressed
from bayesncl.measure.vectors import top_images
from bayesncl.report.plots import plot_sheet


def galleries(
    run: AtlasRun, images: Images | Photos, out_dir: Path, rows: int = 6, columns: int = 12
) -> list[Path]:
    """Write `high-entropy.png` and, if there are gates, `most-suppressed.png`.

    Each of the `rows` shows a dimension and its strongest images before gating, up to `columns`.
    Returns the files written; a gallery without dimensions is not.
    """
    run = prepare(run, images)
    labels = number_labels(images.labels, images.class_names)
    y, names = (None, None) if labels is None else (labels.index, labels.names)
    dims = describe(run.z, y, open=run.open)
    index, value = top = top_images(run.z, max(columns, STRONGEST_IMAGES))
    chosen = {"high-entropy": mixed_dimensions(dims, top, labels)}
    if run.open is not None:
        chosen["most-suppressed"] = most_suppressed(dims)
    height, width = picture_size(images)
    if isinstance(images, Photos):
        height = width = thumbnail_side(0)
    files: list[Path] = []
    for name, order in chosen.items():
        sheet = {}
        for k in order[:rows]:
            firing = index[k, :columns][value[k, :columns] > 0]
            pictures = read_pictures(images, firing, height, width)
            sheet[_caption(int(k), dims, names)] = [x.transpose(2, 0, 1) for x in pictures]
        if sheet:
            files.append(plot_sheet(sheet, Path(out_dir) / f"{name}.png"))
    return files


def _caption(k: int, dims: Dimensions, names: list[str] | None) -> str:
    lines = [f"Dimension {k}", f"fires on {dims.support[k] / dims.images:.0%} of images"]
    if names and dims.consistency is not None and dims.best_class is not None:
        lines.append(f"{dims.consistency[k]:.0f}% {names[dims.best_class[k]]:.18}")
    if dims.closed_rate is not None:
        lines.append(f"gate closes {dims.closed_rate[k]:.0f}%")
    return "\n".join(lines)
