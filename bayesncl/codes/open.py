"""Open a trained model or fitted codes from a path."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from bayesncl.codes.folder import CodesFolder, PhotoCodes
from bayesncl.errors import InputError
from bayesncl.io import is_codes
from bayesncl.method.encoder import Encoder
from bayesncl.training.checkpoint import open_model


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
        return CodesFolder(path).model(device, encoder)
    if encoder is not None:
        raise InputError(f"{path} is not a folder of codes, so it takes no encoder")
    model, note = open_model(Path(path), device)
    if note:
        warnings.warn(note, stacklevel=2)
    return model
