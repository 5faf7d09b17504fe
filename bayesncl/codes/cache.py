"""Embeddings of images, each computed once: a killed fit continues, a refit embeds what is new."""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import torch

from bayesncl.codes.encoders import PhotoEncoder, same_signature
from bayesncl.codes.folder import CodesFolder
from bayesncl.data.cache import Entry, map_in_threads
from bayesncl.data.decode import Undecodable
from bayesncl.data.images import Progress
from bayesncl.errors import InputError, as_input_error, first_line, printable
from bayesncl.io import write_saved

BATCH_SIZE = {"cpu": 16, "cuda": 256}
LOG_SECONDS = 5.0  # of work that a kill may lose

Key = tuple[str, int, int]  # name, size and time of an image; size and time are 0 for a dataset
# embeddings [m, F] of n images, and for each image None, or why it has no embedding
Batches = Iterable[tuple[np.ndarray, list[str | None]]]


class EmbeddingCache:
    """Embeddings of images: from an earlier fit, from the log of a killed fit, or new.

    `rows` has the embedding [F] of each image. Only embeddings by an encoder with the same
    signature count, of images with the same name, size and time, and of a dataset with the same
    `stamp`. The log is a folder with one file for every few seconds of work.
    """

    def __init__(self, encoder: PhotoEncoder, folder: CodesFolder, stamp: str = "") -> None:
        self.encoder, self.log, self.stamp = encoder, folder.log, stamp
        self.rows: dict[Key, np.ndarray] = {}
        if folder.about_file.exists():
            try:
                self._add_fit(folder)
            except InputError as error:
                warnings.warn(f"embedding again, since {error}", stacklevel=2)
        for path in sorted(self.log.glob("*.npz")):
            # NumPy raises many types over damaged files
            with suppress(Exception), np.load(path, allow_pickle=False) as part:
                signature, stamp, keys = json.loads(str(part["about"]))
                if self._same(signature, stamp):
                    self.rows |= zip(map(tuple, keys), part["rows"])

    def _same(self, signature: dict[str, object], stamp: str) -> bool:
        return stamp == self.stamp and same_signature(signature, self.encoder.signature)

    def _add_fit(self, folder: CodesFolder) -> None:
        about = folder.about()
        if about.encoder is not None and self._same(about.encoder["signature"], about.stamp):
            rows, x = folder.rows(), np.asarray(folder.embeddings())
            stats = rows.stats or ((0, 0),) * len(rows)
            self.rows |= zip(((name, *stat) for name, stat in zip(rows.names, stats)), x)

    def embed(self, keys: Sequence[Key], batches: Batches, progress: Progress) -> list[str]:
        """Add and log the embeddings of images, batch by batch; returns those that failed."""
        done, failed = 0, []
        new: dict[Key, np.ndarray] = {}
        began = time.monotonic()
        for rows, reasons in batches:
            given = keys[done : done + len(reasons)]
            done += len(reasons)
            new |= zip((key for key, why in zip(given, reasons) if why is None), rows)
            failed += [f"{printable(key[0])} ({why})" for key, why in zip(given, reasons) if why]
            if new and (time.monotonic() - began > LOG_SECONDS or done == len(keys)):
                self._write_part(new)
                self.rows |= new
                new, began = {}, time.monotonic()
            progress(done, len(keys), "embedding images")
        self.rows |= new
        return failed

    def _write_part(self, rows: dict[Key, np.ndarray]) -> None:
        about = json.dumps([self.encoder.signature, self.stamp, list(rows)])
        with as_input_error(f"cannot write to {self.log}"):
            self.log.mkdir(exist_ok=True)
            path = self.log / f"{len(list(self.log.iterdir())):06}.npz"
            write_saved(path, np.savez, about=about, rows=np.stack(list(rows.values())))


def embed_entries(entries: Sequence[Entry], encoder: PhotoEncoder) -> Batches:
    """Embeddings of image files, batch by batch, and the reasons where there are none."""
    size = BATCH_SIZE.get(torch.device(encoder.device).type, BATCH_SIZE["cpu"])

    def read(entry: Entry) -> np.ndarray | str:
        try:
            return encoder.read(entry.read())
        except (Undecodable, OSError) as error:
            return first_line(error)

    images = map_in_threads(read, entries, ahead=2 * size)
    while batch := list(itertools.islice(images, size)):
        reasons = [x if isinstance(x, str) else None for x in batch]
        good = [x for x in batch if not isinstance(x, str)]
        rows = np.empty((0, encoder.features), np.float32)
        if good:
            with as_input_error(f"encoder {encoder.name} prepares images unequally", ValueError):
                rows = encoder.embed(np.stack(good))
        finite = np.isfinite(rows).all(1)
        for i in np.flatnonzero([why is None for why in reasons])[~finite]:
            reasons[i] = "its embedding is not finite"
        yield rows[finite], reasons
