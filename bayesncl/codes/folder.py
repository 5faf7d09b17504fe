"""The folder that `bayesncl fit` writes.

    codes.json              source of the rows, encoder, and checksums of the files below
    embeddings.npy          float32 [N, F]; held-out rows come last
    rows.json               name, label, size and time of each row, and how many are held out
    codes.safetensors       the fitted ReadableCodes
    verdict.json            the verdict on them
    names.json              names of the dimensions, of these codes and of earlier ones
    evaluation.json         every measure, after `bayesncl evaluate`
    explain.json            a classifier on these codes, after `bayesncl explain`
    embeddings.part/        photos embedded so far, during a fit
    neighbors.npz           neighbors that took more than a minute to find
    .new/                   the next codes, while they are fitted

A fit builds a complete folder in `.new` and then moves its files up, so the old codes stay valid
until the new ones are safe. codes.json identifies rows, codes and verdict: files that do not match
it are not used. Folders may come from strangers: nothing in them is run or unpickled.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesncl import __version__
from bayesncl.codes.encoders import (
    RUNS_CODE,
    PhotoEncoder,
    Request,
    find_kind,
    open_encoder,
    same_signature,
)
from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.names import FINGERPRINT_DIGITS, Annotations, read_names
from bayesncl.codes.notebook import Cell, Html, gallery
from bayesncl.codes.storage import DAMAGE, read_checksum
from bayesncl.data.folder import safe_name
from bayesncl.data.images import spread_evenly
from bayesncl.data.pixels import Pictures, as_batch, read_picture
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import CODES, EMBEDDINGS, ROWS, crc32, digest, npy_header, write_atomic
from bayesncl.measure.result import to_json
from bayesncl.measure.verdict import render_html
from bayesncl.method.losses import check_n_active
from bayesncl.training.run_folder import Folder

FORMAT = "bayesncl-codes-folder-3"
MAX_SHOWN_ROWS = 50_000  # fitted rows among which `show` looks for images
MAX_CHECKED_BYTES = 1 << 30  # the checksum of larger embeddings is not computed at each use
PUBLISHED = (EMBEDDINGS, ROWS, "codes.safetensors", "verdict.json", CODES)  # in this order


@dataclass(frozen=True)
class Rows:
    """rows.json: names and labels of the N rows."""

    names: tuple[str, ...]  # of images: paths relative to their folder
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] | None = None  # by label
    held: int = 0  # number of held-out rows, the last ones
    stats: tuple[tuple[int, int], ...] | None = None  # size and time of each image file
    broken: tuple[tuple[str, int, int, str], ...] = ()  # name, size, time, reason: undecodable

    def __len__(self) -> int:
        return len(self.names)

    def to_json(self) -> str:
        """The text of rows.json."""
        labels = None if self.labels is None else self.labels.tolist()
        return json.dumps(vars(self) | {"labels": labels})

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> Rows:
        """Inverse of `to_json`."""
        tree = {name: tuple(v) if isinstance(v, list) else v for name, v in tree.items()}
        if tree["labels"] is not None:
            tree["labels"] = np.array(tree["labels"], np.int64)
        return cls(**tree)


@dataclass(frozen=True)
class About:
    """codes.json: where the rows come from. Paths are relative to the folder."""

    kind: str  # photos, array or run
    source: str
    images: str | None = None  # folder of the images, if there is one
    encoder: dict[str, Any] | None = None  # fields of a Request, and the signature; None for arrays
    recipe: dict[str, Any] | None = None  # of a run
    stamp: str = ""  # changes with the content of a run's dataset
    embeddings: dict[str, Any] = field(default_factory=dict)  # rows, features, checksums
    codes: str = ""  # checksum of codes.safetensors

    def to_json(self) -> str:
        """The text of codes.json."""
        tree = {"format": FORMAT, "bayesncl": __version__, **vars(self)}
        return json.dumps(tree | {"checksum": hash_tree(tree)}, indent=2) + "\n"

    @property
    def identity(self) -> str:
        """Identifies rows and codes together."""
        return hash_tree([self.embeddings, self.codes])

    def same_encoder(self, encoder: dict[str, Any] | None) -> bool:
        """Whether the embeddings come from an encoder that does the same as this one."""
        if self.encoder is None or encoder is None:
            return self.encoder is encoder
        return same_signature(self.encoder["signature"], encoder["signature"])


class CodesFolder(Folder):
    """Paths and contents of a folder of codes."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.about_file = self.folder / CODES
        self.codes_file = self.folder / "codes.safetensors"
        self.embeddings_file = self.folder / EMBEDDINGS
        self.rows_file = self.folder / ROWS
        self.verdict_file = self.folder / "verdict.json"
        self.names_file = self.folder / "names.json"
        self.explain_file = self.folder / "explain.json"
        self.log = self.folder / "embeddings.part"
        self.neighbors_file = self.folder / "neighbors.npz"

    def about(self) -> About:
        """Contents of codes.json."""
        if not self.about_file.is_file():
            raise InputError(f"{self} was not written by bayesncl fit: it has no {CODES}")
        tree = self._read_json(self.about_file)
        with self._reading(self.about_file):
            if tree.get("format") != FORMAT:
                raise InputError(f"{self} is of another version of bayesncl: rerun `bayesncl fit`")
            if tree.pop("checksum") != hash_tree(tree):
                raise ValueError("wrong checksum")
            tree.pop("format")
            tree.pop("bayesncl")
            return About(**tree)

    def rows(self, about: About | None = None) -> Rows:
        """Contents of rows.json."""
        about = about or self.about()
        tree = self._read_json(self.rows_file, about.embeddings.get("names"))
        with self._reading(self.rows_file):
            return Rows.from_dict(tree)

    def embeddings(self, about: About | None = None) -> np.ndarray:
        """The embeddings [N, F], memory-mapped."""
        about = about or self.about()
        with self._reading(self.embeddings_file):
            x: np.ndarray = np.load(self.embeddings_file, mmap_mode="r", allow_pickle=False)
            if x.shape != (about.embeddings["rows"], about.embeddings["features"]):
                raise ValueError("wrong shape")
            if x.nbytes <= MAX_CHECKED_BYTES and crc32(x) != about.embeddings["crc32"]:
                raise ValueError("wrong checksum")
        return x

    def codes(self, device: str = "auto") -> ReadableCodes:
        """The fitted codes."""
        about = self.about()
        if not self.codes_file.is_file():
            raise InputError(f"{self} is not finished: rerun `bayesncl fit` to continue")
        codes = ReadableCodes.load(self.codes_file, device)
        if read_checksum(self.codes_file) != about.codes:
            raise InputError(f"{self}: codes and rows do not match: rerun `bayesncl fit`")
        if self.names_file.is_file():
            codes.names_ = self.names(codes).columns(codes.n_components_)
        return codes

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on these codes; None if there is none."""
        try:
            tree = self._read_json(self.verdict_file)
            return tree if tree.pop("identity", None) == self.about().identity else None
        except InputError:
            return None

    def fingerprint(self) -> str:
        """Identifies the dimensions, so that names given to them can be found again."""
        return fingerprint(self.codes("cpu"))

    def all_names(self) -> list[Annotations]:
        """Contents of names.json: names of these codes and of those they replaced."""
        return read_names(self.names_file) if self.names_file.is_file() else []

    def names(self, codes: ReadableCodes | None = None) -> Annotations:
        """Names of the dimensions of these codes; empty if nobody named any."""
        codes = codes or self.codes("cpu")
        own = Annotations(fingerprint(codes), self.folder.name, codes.n_components_)
        same = [each for each in self.all_names() if each.fingerprint == own.fingerprint]
        return same[0] if same and same[0].dims == own.dims else own

    def model(self, device: torch.device | str = "cpu", encoder: str | None = None) -> PhotoCodes:
        """The codes with their encoder."""
        return PhotoCodes(self, self.codes(str(device)), device, encoder)

    def encoder_request(self) -> Request:
        """How the encoder of the embeddings was opened."""
        about = self.about()
        if about.encoder is None:
            raise InputError(f"{self} was fitted on an array: it takes embeddings, not photos")
        with self._reading(self.about_file):
            options = {name: v for name, v in about.encoder.items() if name != "signature"}
            request = Request(**options)
            find_kind(request.spec)  # refuses an empty one
            return request

    def open_encoder(
        self, device: torch.device | str = "cpu", named: str | None = None, check: bool = True,
        **changes: Any,
    ) -> PhotoEncoder:  # fmt: skip
        """The encoder of the embeddings, with `changes` to its request.

        An encoder that is Python code runs only if a person names it: `named` must be the name
        given to `fit`. With `check`, the encoder must still do what it did then.
        """
        about, request = self.about(), replace(self.encoder_request(), **changes)
        spec, kind = printable(request.spec), find_kind(request.spec)
        if kind in RUNS_CODE and named != request.spec:
            how = f"to run it, name it with --encoder {spec}"
            raise InputError(f"{self} needs the encoder {spec}, which is code: {how}")
        if named not in (None, request.spec):
            raise InputError(f"{self} was fitted with the encoder {spec}, not {named}")
        encoder = open_encoder(request, device)
        if check and not about.same_encoder(encoder_dict(encoder)):
            changed = f"encoder {encoder.name} has changed since {self} was fitted"
            raise InputError(f"{changed}: rerun `bayesncl fit`")
        return encoder

    @property
    def staged(self) -> CodesFolder:
        """The folder in which the next codes are fitted."""
        return CodesFolder(self.folder / ".new")

    def write_rows(
        self, about: About, rows: Rows, blocks: Iterable[np.ndarray], features: int
    ) -> None:
        """Empty the folder, then write embeddings.npy, rows.json and codes.json."""
        text, crc = rows.to_json(), 0
        with as_input_error(f"cannot write to {self}"):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            with open(self.embeddings_file, "wb") as file:
                file.write(npy_header((len(rows), features), "<f4"))
                for block in blocks:
                    data = np.ascontiguousarray(block, "<f4").tobytes()
                    crc = zlib.crc32(data, crc)
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            write_atomic(self.rows_file, text)
            sizes = {"rows": len(rows), "features": features}
            known = sizes | {"crc32": crc, "names": hash_bytes(text.encode())}
            write_atomic(self.about_file, replace(about, embeddings=known).to_json())

    def write_verdict(self, verdict: dict[str, Any]) -> None:
        """Write verdict.json for the codes in this folder, and complete codes.json."""
        about = replace(self.about(), codes=read_checksum(self.codes_file))
        tree = {"identity": about.identity, **verdict}
        write_atomic(self.verdict_file, to_json(tree))
        write_atomic(self.about_file, about.to_json())

    @property
    def finished(self) -> bool:
        """Whether this is a complete folder of codes."""
        with suppress(InputError):
            return bool(self.about().codes)
        return False

    def publish(self) -> None:
        """Move the files in `.new` up, codes.json last. If this is killed, call it again."""
        staged = self.staged
        if not self.finished or self.about().identity != staged.about().identity:
            self.evaluation_file.unlink(missing_ok=True)
        for name in PUBLISHED:
            if (staged.folder / name).exists():
                os.replace(staged.folder / name, self.folder / name)
        shutil.rmtree(staged.folder)

    def relative(self, path: Path) -> str:
        """A path as codes.json stores it: relative to this folder, so both can move together."""
        return os.path.relpath(os.path.abspath(path), os.path.abspath(self.folder))

    def place(self, path: str) -> Path:
        """Inverse of `relative`."""
        return Path(os.path.normpath(Path(os.path.abspath(self.folder)) / path))

    def photo_paths(
        self, rows: Rows, chosen: Iterable[int], root: Path | str | None = None
    ) -> list[Path | None]:
        """Image files of some rows, None for missing ones; `root` is where the images are now.

        Without `root`, codes.json says where they are. It may come from a stranger, so only files
        of the recorded size count: no other picture is shown.
        """
        about = self.about()
        if root is None and (about.images is None or rows.stats is None):
            raise InputError(f"{self} has no images: use --data DIR, or fit with --images DIR")
        base = self.place(about.images or "") if root is None else Path(root).expanduser()
        paths: list[Path | None] = []
        for i in chosen:
            path = base / (safe_name(rows.names[i]) or "")
            same = root is not None or (rows.stats and file_stat(path)[0] == rows.stats[i][0])
            paths.append(path if same and os.path.isfile(path) else None)
        if not any(paths):
            shown = printable(str(base), 300)
            raise InputError(f"{shown}: none of {len(paths):,} images is there; use --data DIR")
        return paths

    def damaged(self, path: Path) -> InputError:
        """The error for a file with wrong contents."""
        return InputError(f"{path} is damaged: rerun `bayesncl fit` to rebuild it")

    def _reading(self, path: Path) -> AbstractContextManager[None]:
        return as_input_error(str(self.damaged(path)), *DAMAGE)

    def _read_json(self, path: Path, checksum: str | None = None) -> dict[str, Any]:
        with self._reading(path):
            data = path.read_bytes()
            if checksum is not None and hash_bytes(data) != checksum:
                raise ValueError("wrong checksum")
            return dict(json.loads(data))


@dataclass(eq=False)
class PhotoCodes:
    """Codes of images: an encoder trained by others, and the head that `fit` trained on it.

    `bayesncl.load` returns it for a folder that `bayesncl fit` wrote.

    Attributes
    ----------
    folder : the CodesFolder it was loaded from.
    codes : the ReadableCodes, from embeddings to codes.
    device : where both run.
    named : the encoder as given to `load`; needed if it is Python code.
    """

    folder: CodesFolder
    codes: ReadableCodes
    device: torch.device | str
    named: str | None = None

    @cached_property
    def encoder(self) -> PhotoEncoder:
        """From images to embeddings, opened at first use; InputError for codes of an array."""
        return self.folder.open_encoder(self.device, self.named)

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
        for start in range(0, len(given), batch):
            part = given[start : start + batch]
            if isinstance(part, Tensor):
                part = part if part.dtype == torch.uint8 else (part * 255).round().to(torch.uint8)
                part = [Image.fromarray(x.permute(1, 2, 0).cpu().numpy()) for x in part]
            ready = [read_picture(p, encoder.prepare, encoder.max_decoded_side) for p in part]
            parts.append(encoder.embed(np.stack(ready)))
        return np.concatenate(parts)

    def transform(self, X: Any, n_active: int | None = None) -> np.ndarray:
        """Codes [N, D] of embeddings [N, F]."""
        check_n_active(n_active, self.codes.n_components_)
        if len(X) == 0:
            return np.empty((0, self.codes.n_components_), np.float32)
        options = {"n_active": n_active or self.codes.n_active, "sparse_output": False}
        z: np.ndarray = copy.copy(self.codes).set_params(**options).transform(X)
        return z


    def show(self, dimension: int | str, n: int = 12) -> Html:
        """Show in a notebook the fitted images on which a dimension is strongest.

        Parameters
        ----------
        dimension : its number or its name.
        n : number of images.

        Returns
        -------
        Html, which a notebook displays.
        """
        k = self._find(dimension)
        return Html(gallery(self._title(k), self._strongest(k, n)))

    def show_image(self, image: Pictures, n_active: int = 5, n: int = 6) -> Html:
        """Show in a notebook an image and its strongest dimensions.

        Parameters
        ----------
        image : one image, as for `encode`; of a list the first.
        n_active : number of dimensions.
        n : number of fitted images per dimension.

        Returns
        -------
        Html, which a notebook displays.
        """
        z = self.encode(image, n_active=min(n_active, self.codes.n_components_))[0]
        picture = as_batch(image)[0]
        if isinstance(picture, Tensor):
            pixels = (255 * picture).round() if picture.is_floating_point() else picture
            picture = Image.fromarray(pixels.to(torch.uint8).permute(1, 2, 0).cpu().numpy())
        name = picture.name if isinstance(picture, Path) else ""
        parts = [gallery("", [(picture, name)])]
        for k in z.argsort(descending=True)[: int((z > 0).sum())].tolist():
            title = f"{self._title(k)}: {z[k]:.2f}"
            parts.append(gallery(title, self._strongest(k, n)))
        return Html("\n".join(parts))

    def _repr_html_(self) -> str:
        """The verdict, as a notebook shows it."""
        tree = self.folder.verdict()
        return f"<pre>{escape(str(self.folder))}</pre>" if tree is None else render_html(tree)

    def _find(self, dimension: int | str) -> int:
        """Number of a dimension from its number or name."""
        names = self.codes.get_feature_names_out().tolist()
        k = names.index(dimension) if dimension in names else dimension
        if not isinstance(k, int | np.integer) or not 0 <= k < len(names):
            known = f"0 to {len(names) - 1}, or a name"
            raise InputError(f"no dimension {printable(str(dimension))}: expected {known}")
        return int(k)

    def _title(self, k: int) -> str:
        name = str(self.codes.get_feature_names_out()[k])
        return f"dimension {k}" + ("" if name == f"z{k}" else f", {name}")

    def _strongest(self, k: int, n: int) -> list[Cell]:
        """The fitted images on which dimension k is strongest, with their labels."""
        rows, (chosen, z) = self.folder.rows(), self._fitted
        order = np.argsort(-z[:, k], kind="stable")[:n]
        order = order[z[order, k] > 0]
        index = chosen[order]
        paths: list[Path | None] = [None] * len(index)
        with suppress(InputError):  # fitted on an array, or the images were moved
            paths = self.folder.photo_paths(rows, index)
        texts: Sequence[str] = rows.names
        if rows.labels is not None and rows.class_names is not None:
            texts = [rows.class_names[c] for c in rows.labels]
        values = z[order, k]
        return [(path, f"{texts[i]} {v:.2f}") for path, i, v in zip(paths, index, values)]

    @cached_property
    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """At most 50,000 fitted rows, spread evenly, and their codes."""
        x = self.folder.embeddings()
        chosen = spread_evenly(len(x), MAX_SHOWN_ROWS)
        return chosen, self.transform(x[chosen])


def encoder_dict(encoder: PhotoEncoder) -> dict[str, Any]:
    """An encoder as codes.json stores it."""
    return asdict(encoder.request) | {"signature": encoder.signature}


def fingerprint(codes: ReadableCodes) -> str:
    """Identifies the dimensions of fitted codes."""
    tensors = {**codes.head_.state_dict(), **codes.moments_._asdict()}
    return digest(tensors)[:FINGERPRINT_DIGITS]


def file_stat(path: Path) -> tuple[int, int]:
    """Size and modification time of a file; (-1, -1) if it cannot be read."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return (-1, -1)
    return found.st_size, found.st_mtime_ns


def hash_tree(tree: Any) -> str:
    """A short hash of JSON data."""
    return hash_bytes(json.dumps(tree).encode())


def hash_bytes(data: bytes) -> str:
    """A short hash."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
