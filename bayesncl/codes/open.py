"""Open a trained model or fitted codes from a path: `load`, and the PhotoCodes it returns."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesncl.codes.encoders import PhotoEncoder
from bayesncl.codes.folder import CodesFolder, Rows
from bayesncl.codes.novelty import Novelty
from bayesncl.data.decode import Pictures, as_batch, read_picture
from bayesncl.data.images import spread_evenly
from bayesncl.device import find_device
from bayesncl.errors import InputError, printable
from bayesncl.io import is_codes
from bayesncl.measure.rows import slices
from bayesncl.measure.verdict import render_html
from bayesncl.method.encoder import Encoder
from bayesncl.method.losses import check_n_active
from bayesncl.training.checkpoint import open_model

MAX_SHOWN_ROWS = 50_000  # fitted rows among which `show` looks for images
SIDE = 96  # pixels of the longer side of a picture in a notebook
CELL = "display:inline-block;width:100px;margin:2px;vertical-align:top;overflow-wrap:anywhere"
TEXT = "font-size:11px;line-height:1.2"

Cell = tuple[Image.Image | Path | None, str]  # a picture, if there is one, and its caption


def load(
    path: str | Path, device: str | torch.device = "cpu", *, encoder: str | None = None
) -> Encoder | PhotoCodes:
    """Load a trained model, or codes that `bayesncl fit` wrote.

    Parameters
    ----------
    path : a run folder, a .safetensors file, or a folder of codes. An unfinished run gives the
        model of its newest checkpoint, with a warning.
    device : where to put it.
    encoder : the MODULE:FUNCTION that was given to `fit`, if any: such code runs only if named.

    Returns
    -------
    Encoder or PhotoCodes; both have `encode`. Nothing is unpickled; a damaged file raises
    InputError.
    """
    if is_codes(path):
        return PhotoCodes(path, device, encoder)
    if encoder is not None:
        raise InputError(f"{path} is not a folder of codes, so it takes no encoder")
    model, note = open_model(Path(path), find_device(device))
    if note:
        warnings.warn(note, stacklevel=2)
    return model


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook shows; `html` is its source."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


class PhotoCodes:
    """Codes of images: an encoder trained by others, and the head that `fit` trained on it.

    `bayesncl.load` returns it for a folder that `bayesncl fit` wrote.

    Attributes
    ----------
    folder : the CodesFolder from which it was loaded.
    codes : the ReadableCodes, from embeddings to codes.
    device : where both run.
    named : the encoder as given to `load`; needed if it is Python code.
    """

    def __init__(
        self, folder: str | os.PathLike[str], device: torch.device | str = "cpu",
        named: str | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.device, self.named = CodesFolder(folder), find_device(device), named
        self.codes = self.folder.codes(str(device))

    @cached_property
    def rows(self) -> Rows:
        """Names and labels of the images that the codes were fitted on."""
        return self.folder.rows()

    @cached_property
    def embeddings(self) -> np.ndarray:
        """Embeddings [N, F] of these images, memory-mapped."""
        return self.folder.embeddings()

    @cached_property
    def encoder(self) -> PhotoEncoder:
        """From images to embeddings, opened at first use; InputError for codes of an array."""
        return self.folder.open_encoder(self.device, self.named)

    @cached_property
    def novelty(self) -> Novelty:
        """A function that returns how novel embeddings are; made from the fitted rows."""
        return Novelty(self.codes, self.embeddings, self.rows.held)

    def encode(
        self, images: Pictures, gated: bool = True, n_active: int | None = None, batch: int = 64
    ) -> Tensor:
        """Codes of images.

        Parameters
        ----------
        images : one or many: uint8, or float in [0, 1], [N, 3, H, W] or [N, H, W, 3], gray with
            one channel; or PIL images or paths. They are resized and cropped for the encoder.
        gated : False is refused for codes with gates (``bayesncl``), which have no other form.
        n_active : keep only the `n_active` strongest dimensions per image.
        batch : images per forward pass.

        Returns
        -------
        [N, D] float32 on the CPU, non-negative, rows of unit length.
        """
        if not gated and self.codes.method == "bayesncl":
            raise InputError("gated=False applies to trained runs; codes by bayesncl are gated")
        check_n_active(n_active, self.codes.n_components_)
        return torch.from_numpy(self.transform(self.embed(images, batch), n_active))

    def embed(self, images: Pictures, batch: int = 64) -> np.ndarray:
        """Embeddings of images (see `encode`), float32 [N, F]."""
        encoder, given = self.encoder, as_batch(images)
        parts = [np.empty((0, encoder.features), np.float32)]
        for part in slices(len(given), batch):
            pictures = as_pictures(given[part])
            ready = [read_picture(p, encoder.prepare, encoder.min_side) for p in pictures]
            parts.append(encoder.embed(np.stack(ready)))
        return np.concatenate(parts)

    def transform(self, X: Any, n_active: int | None = None) -> np.ndarray:
        """Codes [N, D] of embeddings [N, F]."""
        if len(X) == 0:
            return np.empty((0, self.codes.n_components_), np.float32)
        return self.codes.with_options(n_active=n_active or self.codes.n_active).transform(X)

    def show(self, dimension: int | str, n: int = 12) -> Html:
        """Show in a notebook the `n` fitted images on which a dimension is strongest.

        `dimension` is its number or its name; all that have this name are shown.
        """
        width = self.codes.n_components_
        if isinstance(dimension, str):
            found = self.folder.names(self.codes).find(dimension)
        elif isinstance(dimension, int | np.integer) and 0 <= dimension < width:
            found = [int(dimension)]
        else:
            raise InputError(f"no dimension {dimension}: expected 0 to {width - 1}, or a name")
        return Html("\n".join(self._gallery(k, n) for k in found))

    def show_image(self, image: Pictures, n_active: int = 5, n: int = 6) -> Html:
        """Show in a notebook an image and `n` fitted images for each of its strongest dimensions.

        `image` is one as for `encode`; of several the first is shown.
        """
        picture = as_pictures(as_batch(image)[:1])[0]
        z = self.encode(picture, n_active=min(n_active, self.codes.n_components_))[0]
        parts = [gallery("", [(picture, picture.name if isinstance(picture, Path) else "")])]
        for k in z.argsort(descending=True)[: int((z > 0).sum())].tolist():
            parts.append(self._gallery(k, n, f": {z[k]:.2f}"))
        return Html("\n".join(parts))

    def __repr__(self) -> str:
        return f"PhotoCodes({str(self.folder)!r}, {self.codes.n_components_} dimensions)"

    def _repr_html_(self) -> str:
        """The verdict, as a notebook shows it."""
        tree = self.folder.verdict()
        return f"<pre>{escape(str(self.folder))}</pre>" if tree is None else render_html(tree)

    def _gallery(self, k: int, n: int, note: str = "") -> str:
        """HTML of the fitted images on which dimension k is strongest, with their labels."""
        name = str(self.codes.get_feature_names_out()[k])
        title = f"dimension {k}" + ("" if name == f"z{k}" else f", {name}") + note
        rows, (chosen, z) = self.rows, self._fitted
        order = np.argsort(-z[:, k], kind="stable")[:n]
        order = order[z[order, k] > 0]
        index, texts = chosen[order], rows.texts() or rows.names
        paths: list[Path | None] = [None] * len(index)
        with suppress(InputError):  # fitted on an array, or the images were moved
            paths = self.folder.photo_paths(rows, index)
        captions = [f"{texts[i]} {v:.2f}" for i, v in zip(index, z[order, k])]
        return gallery(title, list(zip(paths, captions)))

    @cached_property
    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """At most 50,000 fitted rows, spread evenly, and their codes."""
        chosen = spread_evenly(len(self.rows), MAX_SHOWN_ROWS)
        return chosen, self.transform(self.embeddings[chosen])


def as_pictures(batch: Tensor | list[Image.Image | Path]) -> list[Image.Image | Path]:
    """PIL images and paths; pixels [n, 3, H, W] become PIL images."""
    if not isinstance(batch, Tensor):
        return batch
    pixels = batch if batch.dtype == torch.uint8 else (batch * 255).round().to(torch.uint8)
    return [Image.fromarray(x.permute(1, 2, 0).cpu().numpy()) for x in pixels]


def small_jpeg(image: Image.Image) -> str:
    """The image in a notebook's size, as a URI."""
    small, buffer = image.copy(), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def gallery(title: str, cells: Sequence[Cell]) -> str:
    """HTML of a title over pictures with captions; pictures that cannot be read are left out."""
    parts = [f"<div><b>{escape(printable(title, 200))}</b></div>"]
    for picture, caption in cells:
        image = ""
        if picture is not None:
            with suppress(InputError):
                image = f'<img src="{read_picture(picture, small_jpeg, SIDE)}" alt=""><br>'
        text = escape(printable(caption, 200))
        parts.append(f'<div style="{CELL}">{image}<span style="{TEXT}">{text}</span></div>')
    return "\n".join(parts)
