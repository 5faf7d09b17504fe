"""The folder that `bayesncl fit` writes: codes, the embeddings they were read from, and what is known of each row.

    codes.json          where the rows come from, which encoder, checksums of the two files below
    embeddings.npy      float32 [N, F], memory-mapped; rows held out for judging come last
    rows.json           a name a row, labels, how many are held out; size and time of each photo
    codes.safetensors   the fitted ReadableCodes
    verdict.json        what was found
    evaluation.json     every measure, after `bayesncl evaluate`
    embeddings.part*    photos embedded so far, while a fit is under way
    fit.checkpoint      the state of a long fit

Such folders come from strangers too: nothing in them is run, followed out of the folder or believed without a check.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import __version__
from .arrays import check_room, crc32, npy_header, read_arrays
from .codes import ReadableCodes
from .data.archive import safe_name
from .encoders import RUNS_CODE, PhotoEncoder, Request, find_kind, open_encoder
from .errors import InputError, or_refuse, printable
from .files import CODES, EMBEDDINGS, ROWS, digest, read_regular, write_together
from .names import FINGERPRINT
from .objective import check_keep
from .pixels import Pictures, as_batch, read_picture
from .run import Folder

FORMAT = "bayesncl-codes-folder-1"
KINDS = ("photos", "array", "run")
MOST_JSON = 1 << 30
ALWAYS_CHECKED = 1 << 30  # bytes of embeddings; of more the checksum is not taken each time


@dataclass(frozen=True)
class Rows:
    """What is known of the N rows."""

    names: tuple[str, ...]  # relative to the folder of the images where they are files
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] | None = None  # by label
    held: int = 0  # so many, the last, are kept for judging
    marks: tuple[tuple[int, int], ...] | None = None  # size and time of each photo
    broken: tuple[tuple[str, int, int, str], ...] = ()  # name, size, time of photos that could not be used, and why

    def __len__(self) -> int:
        return len(self.names)

    def to_json(self) -> str:
        """As rows.json holds it."""
        return json.dumps(vars(self) | {"labels": None if self.labels is None else self.labels.tolist()})

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> Rows:
        """What `to_json` wrote; ValueError, KeyError or TypeError for anything else."""
        names = tuple(_of(tree["names"], str))
        labels = None if tree["labels"] is None else np.array(_of(tree["labels"], int), np.int64)
        classes = None if tree["class_names"] is None else tuple(_of(tree["class_names"], str))
        marks = None if tree["marks"] is None else tuple((int(size), int(time)) for size, time in tree["marks"])
        broken = tuple((str(name), int(size), int(time), str(why)) for name, size, time, why in tree["broken"])
        for column in (labels, marks):
            if column is not None and len(column) != len(names):
                raise ValueError("columns differ in length")
        if labels is not None and (classes is None or labels.min() < 0 or labels.max() >= len(classes)):
            raise ValueError("labels without names")
        if not 0 <= int(tree["held"]) < len(names):
            raise ValueError("held out")
        return cls(names, labels, classes, int(tree["held"]), marks, broken)


@dataclass(frozen=True)
class About:
    """codes.json: where the rows come from. Paths are relative to the folder."""

    kind: str  # photos, array or run
    source: str
    images: str | None = None  # the folder of images, if there is one
    encoder: dict[str, Any] | None = None  # what `open_encoder` takes, and the fingerprint; None for arrays
    recipe: dict[str, Any] | None = None  # of a run, whose data set has the images
    mark: str = ""  # what must be the same for the embeddings to be those of the source
    embeddings: dict[str, Any] = field(default_factory=dict)  # rows, features, checksum, and the hash of rows.json

    @property
    def fingerprint(self) -> str | None:
        """Of the encoder."""
        return (self.encoder or {}).get("fingerprint")


class CodesFolder(Folder):
    """A folder of codes: where its files are and what they say."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.about_file = self.folder / CODES
        self.codes_file = self.folder / "codes.safetensors"
        self.embeddings_file = self.folder / EMBEDDINGS
        self.rows_file = self.folder / ROWS
        self.verdict_file = self.folder / "verdict.json"
        self.log = self.folder / "embeddings.part"
        self.log_index = self.folder / "embeddings.part.jsonl"
        self.checkpoint = self.folder / "fit.checkpoint"

    def about(self) -> About:
        """What codes.json says."""
        tree = self._read_object(self.about_file)
        try:
            if tree.pop("format") != FORMAT:
                raise ValueError
            tree.pop("bayesncl", None)
            about = About(**tree)
            texts = isinstance(about.source, str) and isinstance(about.images, str | None)
            objects = isinstance(about.encoder, dict | None) and isinstance(about.recipe, dict | None)
            if about.kind not in KINDS or not texts or not objects or not isinstance(about.embeddings, dict):
                raise ValueError
            return about
        except (KeyError, ValueError, TypeError):
            raise self.damaged(self.about_file) from None

    def rows(self, about: About | None = None) -> Rows:
        """What rows.json says."""
        about = about or self.about()
        tree = self._read_object(self.rows_file, about.embeddings.get("names"))
        try:
            rows = Rows.from_dict(tree)
            if len(rows) != about.embeddings.get("rows"):
                raise ValueError("not as many as codes.json says")
        except (KeyError, ValueError, TypeError, OverflowError):
            raise self.damaged(self.rows_file) from None
        return rows

    def embeddings(self, about: About | None = None) -> np.ndarray:
        """The embeddings, memory-mapped [N, F]."""
        about = about or self.about()
        found = read_arrays(self._own(self.embeddings_file), ("z",), ("z",))["z"]
        shape = (about.embeddings.get("rows"), about.embeddings.get("features"))
        right = found.shape == shape and found.dtype.kind == "f"
        if not right or (found.nbytes <= ALWAYS_CHECKED and crc32(found) != about.embeddings.get("crc32")):
            raise self.damaged(self.embeddings_file)
        return found

    def codes(self, device: str = "auto") -> ReadableCodes:
        """The fitted codes."""
        about = self.about()
        if not self.codes_file.is_file():
            raise InputError(f"{self} is not finished: run bayesncl fit again, it resumes from here")
        codes = ReadableCodes.load(self.codes_file, device)
        if codes.n_features_in_ != about.embeddings.get("features"):
            raise InputError(f"{self.codes_file} is of other embeddings than {self.embeddings_file.name} beside it")
        return codes

    def verdict(self) -> dict[str, Any] | None:
        """What verdict.json says; None where there is none that can be read."""
        try:
            return self._read_object(self.verdict_file)
        except InputError:
            return None

    def fingerprint(self) -> str:
        """Says which codes these are, so that names given to dimensions find them again."""
        codes = self.codes("cpu")
        return digest({**codes.head_.state_dict(), **codes.moments_._asdict()})[:FINGERPRINT]

    def model(self, device: torch.device | str = "cpu", encoder: str | None = None) -> PhotoCodes:
        """Codes with their encoder, ready to encode photos; the encoder is opened when it is first used."""
        return PhotoCodes(self, self.codes(str(device)), device, encoder)

    def open_encoder(
        self, device: torch.device | str = "cpu", named: str | None = None, **changes: Any
    ) -> PhotoEncoder:
        """The encoder the embeddings were made with, or with `changes` of how it was asked for.

        One that is code of somebody's is run only when a person names it: `named` is what was given to `fit`.
        """
        about = self.about()
        if about.encoder is None:
            raise InputError(f"{self} was fitted on an array: it takes embeddings of the same kind, not photos")
        try:
            known = {"mirror": False} | about.encoder  # of codes from before there was a choice
            fingerprint = known.pop("fingerprint")
            request = replace(Request(**known), **changes)
            kind = find_kind(request.spec)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise self.damaged(self.about_file) from None
        if kind in RUNS_CODE and named != request.spec:
            spec = printable(request.spec)
            how = f"to run it, say so with --encoder {spec} (in Python encoder={spec!r})"
            raise InputError(f"{self} needs the encoder {spec}, which is code: {how}")
        if named not in (None, request.spec):
            raise InputError(f"{self} was fitted with the encoder {printable(request.spec)}, not {named}")
        encoder = open_encoder(request, device)
        if not changes and encoder.fingerprint != fingerprint:
            raise InputError(f"encoder {encoder.name} has changed since {self} was fitted: run bayesncl fit again")
        return encoder

    def put_rows(
        self, about: About, rows: Rows, blocks: Iterable[np.ndarray], features: int, gone: Iterable[Path] = ()
    ) -> None:
        """Write embeddings.npy, rows.json and codes.json together; a kill costs the cache, never its truth.

        Files `gone` are of other embeddings: they go when these come.
        """
        text = rows.to_json().encode()
        known: dict[str, Any] = {"rows": len(rows), "features": features, "crc32": 0, "names": _hash(text)}
        about = replace(about, embeddings=known)

        def array() -> Iterator[bytes]:
            yield npy_header((len(rows), features), "<f4")
            for block in blocks:
                data = np.ascontiguousarray(block, "<f4").tobytes()
                known["crc32"] = zlib.crc32(data, known["crc32"])
                yield data

        def said() -> Iterator[bytes]:  # written last, when the checksum is known
            yield json.dumps({"format": FORMAT, "bayesncl": __version__, **vars(about)}, indent=2).encode() + b"\n"

        files = {self.embeddings_file: array(), self.rows_file: [text], self.about_file: said()}
        with or_refuse(f"cannot write to {self}"):
            write_together({self.inside(path): parts for path, parts in files.items()}, map(self.inside, gone))

    def relative(self, path: Path) -> str:
        """A path as codes.json holds it: relative to this folder, so that both can move together."""
        return os.path.relpath(os.path.abspath(path), os.path.abspath(self.folder))

    def place(self, path: str) -> Path:
        """A path that codes.json holds, from here."""
        return Path(os.path.normpath(Path(os.path.abspath(self.folder)) / path))

    def photo_paths(self, rows: Rows, chosen: Iterable[int], root: Path | str | None = None) -> list[Path | None]:
        """The files of some rows, None where one is gone; `root` where the images lie now, if they moved.

        Without `root` this folder, which may be a stranger's, says where they are: a file is one of them only if it has
        the size that the photo had, so that no picture is shown that the stranger did not have.
        """
        about = self.about()
        if about.images is None and root is None:
            raise InputError(f"{self} knows of no images: fit again with --images DIR, the folder they lie in")
        if root is None and rows.marks is None:
            raise InputError(f"{self} does not say how large its images are: --data DIR says where they are")
        base = Path(root).expanduser() if root is not None else self.place(about.images or "")
        shown = printable(str(base), 300)
        if not os.path.isdir(base):  # which takes names of any length, as Path.is_dir does not
            raise InputError(f"no folder of images {shown}: --data DIR says where they are now")
        marks = rows.marks if root is None else None
        paths: list[Path | None] = []
        for i in chosen:
            path = base / (safe_name(rows.names[i]) or "")
            paths.append(path if os.path.isfile(path) and (not marks or mark(path)[0] == marks[i][0]) else None)
        if not any(paths):
            raise InputError(f"{shown}: none of the {len(paths):,} images is there: --data DIR says where they are now")
        return paths

    def damaged(self, path: Path) -> InputError:
        """What to say of a file that is not what it should be."""
        return InputError(f"{path} is damaged: run bayesncl fit again, it is made anew")

    def _own(self, path: Path) -> Path:
        if not path.is_file():
            raise InputError(f"{self} lacks {path.name}: run bayesncl fit again, it is made anew")
        return path

    def _read_object(self, path: Path, known: str | None = None) -> dict[str, Any]:
        """A JSON file; with `known` its hash must be that."""
        if path == self.about_file and not path.is_file():
            raise InputError(f"{self} was not written by bayesncl fit: it has no {path.name}")
        check_room(20 * self._own(path).stat().st_size, f"{path} as read")  # lists of small things are that much larger
        try:
            data = read_regular(path, MOST_JSON)
            tree = json.loads(data)
        except (OSError, ValueError, RecursionError):
            raise self.damaged(path) from None
        if not isinstance(tree, dict) or (path == self.rows_file and _hash(data) != known):
            raise self.damaged(path)
        return tree


@dataclass(eq=False)
class PhotoCodes:
    """Readable codes of photos: an encoder that others trained, and what `fit` read from its embeddings."""

    folder: CodesFolder
    codes: ReadableCodes  # what `fit` made: from embeddings to codes
    device: torch.device | str
    named: str | None  # the encoder, where a person named it

    @cached_property
    def encoder(self) -> PhotoEncoder:
        """From photos to embeddings, opened when it is first used; InputError where the codes are of an array."""
        return self.folder.open_encoder(self.device, self.named)

    def encode(self, images: Pictures, gated: bool = True, keep: int | None = None, batch: int = 64) -> Tensor:
        """Codes of images.

        Parameters
        ----------
        images : uint8, or float in [0, 1], [N, 3, H, W] or [N, H, W, 3], grey with one channel; or PIL images or paths
            of files. One or many. All are cut and scaled as the encoder wants it.
        gated : codes are; False is refused where there are gates.
        keep : keep only each image's `keep` strongest dimensions.
        batch : images at a time.

        Returns
        -------
        [N, D] float32 on the CPU, non-negative, rows of unit length.
        """
        if not gated and self.codes.method == "bayesncl":
            raise InputError("codes by bayesncl are gated; gated=False is for models that were trained")
        check_keep(keep, self.codes.dim_)
        return torch.from_numpy(self.transform(self.embed(images, batch), keep))

    def embed(self, images: Pictures, batch: int = 64) -> np.ndarray:
        """Embeddings of images, float32 [N, F]."""
        encoder, given = self.encoder, as_batch(images)
        parts = []
        for start in range(0, len(given), batch):
            part = given[start : start + batch]
            if isinstance(part, Tensor):
                levels = part if part.dtype == torch.uint8 else (part * 255).round().to(torch.uint8)
                part = [Image.fromarray(each.permute(1, 2, 0).cpu().contiguous().numpy()) for each in levels]
            parts.append(encoder.embed(np.stack([read_picture(p, encoder.prepare, encoder.enough) for p in part])))
        return np.concatenate(parts) if parts else np.empty((0, encoder.features), np.float32)

    def transform(self, X: Any, keep: int | None = None) -> np.ndarray:
        """Codes [N, D] of embeddings [N, F]."""
        check_keep(keep, self.codes.dim_)
        if len(X) == 0:
            return np.empty((0, self.codes.dim_), np.float32)
        codes = copy.copy(self.codes).set_params(keep=keep or self.codes.keep, sparse_output=False)
        found: np.ndarray = codes.transform(X)
        return found


def encoder_dict(encoder: PhotoEncoder) -> dict[str, Any]:
    """An encoder as codes.json holds it."""
    return asdict(encoder.request) | {"fingerprint": encoder.fingerprint}


def mark(path: Path) -> tuple[int, int]:
    """Size and time of a file; what changes when it does."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return (-1, -1)
    return found.st_size, found.st_mtime_ns


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _of(values: Any, kind: type) -> list[Any]:
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise TypeError
    return values
