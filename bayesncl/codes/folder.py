"""The folder that `bayesncl fit` writes.

    codes.json              source of the rows, encoder, and checksums of the next three files
    embeddings.npy          float32 [N, F]; held-out rows come last
    rows.json               name, label, size and time of each row, and how many are held out
    codes.safetensors       the fitted ReadableCodes
    verdict.json            the verdict on them
    names.json              names of the dimensions, of these codes and of earlier ones
    evaluation.json         every measure, after `bayesncl evaluate`
    JOB.json                result of the last audit, compare or explain, for the atlas
    embeddings.part/        photos embedded so far, during a fit
    neighbors.npz           neighbors that took more than a minute to find
    .new/                   the next codes, while they are fitted

A fit builds a complete folder in `.new` and then moves its files up, so the old codes stay valid
until the new ones are safe. codes.json identifies rows, codes and verdict: files that do not match
it are not used. Folders may come from strangers: nothing in them is run or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bayesncl import __version__
from bayesncl.codes import encoders
from bayesncl.codes.encoders import PhotoEncoder, Request
from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.names import Annotations, fingerprint, merge_names, read_names, write_names
from bayesncl.data.folder import safe_name
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import CODES, EMBEDDINGS, ROWS, read_object, write_atomic, write_npy
from bayesncl.measure.result import rounded, to_json
from bayesncl.training.run_folder import Folder

FORMAT = "bayesncl-codes-folder-4"
HEAD, VERDICT = "codes.safetensors", "verdict.json"
STAGED = ".new"  # the subfolder in which the next codes are fitted
PUBLISHED = (EMBEDDINGS, ROWS, HEAD, VERDICT, CODES)  # in this order
MAX_CHECKED_BYTES = 1 << 30  # the checksum of a larger file is not computed at each use
UNUSABLE = "cannot be used, rerun `bayesncl fit`"


class Key(NamedTuple):
    """Tells whether an image is one that was embedded before."""

    name: str
    size: int = 0  # of the file; 0 without one, as in a dataset
    time: int = 0  # of its last change


@dataclass(frozen=True)
class Rows:
    """rows.json: names and labels of the N rows."""

    names: tuple[str, ...]  # of images: paths relative to their folder
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] | None = None  # by label
    held: int = 0  # number of held-out rows, the last ones
    stats: tuple[tuple[int, int], ...] | None = None  # size and time of each image file

    def __len__(self) -> int:
        return len(self.names)

    @property
    def fitted(self) -> int:
        """Number of rows that are not held out, the first ones."""
        return len(self) - self.held

    @property
    def index(self) -> dict[str, int]:
        """Each row by its name."""
        return {name: i for i, name in enumerate(self.names)}

    def keys(self) -> list[Key]:
        """Name, size and time of each image."""
        stats = self.stats or [()] * len(self)
        return [Key(name, *stat) for name, stat in zip(self.names, stats)]

    def texts(self) -> list[str] | None:
        """The class name of each row; None without labels."""
        if self.labels is None or self.class_names is None:
            return None
        return [self.class_names[label] for label in self.labels]

    def to_json(self) -> str:
        """The text of rows.json."""
        return json.dumps(vars(self), default=np.ndarray.tolist)

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> Rows:
        """Inverse of `to_json`."""
        labels = tree.pop("labels")
        tree = {name: tuple(v) if isinstance(v, list) else v for name, v in tree.items()}
        return cls(**tree, labels=None if labels is None else np.array(labels, np.int64))


@dataclass(frozen=True)
class About:
    """codes.json: where the rows come from. Paths are relative to the folder."""

    kind: str  # photos, array or run
    source: str
    images: str | None = None  # folder of the images, if there is one
    encoder: Request | None = None  # None for arrays
    recipe: dict[str, Any] | None = None  # of a run
    stamp: str = ""  # changes with the content of a run's dataset
    files: dict[str, str] = field(default_factory=dict)  # checksums of embeddings, rows and codes
    columns: list[str] | None = None  # names of the embeddings' columns, if the file had any

    @property
    def has_images(self) -> bool:
        return self.kind != "array" or self.images is not None

    def to_json(self) -> str:
        """The text of codes.json."""
        tree = {"format": FORMAT, "bayesncl": __version__, **asdict(self)}
        return json.dumps(tree | {"checksum": hash_tree(tree)}, indent=2) + "\n"


class CodesFolder(Folder):
    """Paths and contents of a folder of codes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self.about_file = self.folder / CODES
        self.embeddings_file = self.folder / EMBEDDINGS
        self.names_file = self.folder / "names.json"
        self.log = self.folder / "embeddings.part"
        self.neighbors_file = self.folder / "neighbors.npz"

    def about(self) -> About:
        """Contents of codes.json."""
        if not self.about_file.is_file():
            raise InputError(f"{self} was not written by bayesncl fit: it has no {CODES}")
        with as_input_error(f"{self.about_file} {UNUSABLE}", Exception):
            tree = dict(json.loads(self.about_file.read_bytes()))
            if tree.get("format") != FORMAT:
                raise InputError(f"{self} is of another version of bayesncl: rerun `bayesncl fit`")
            if tree.pop("checksum") != hash_tree(tree):
                raise ValueError("wrong checksum")
            tree.setdefault("columns", None)  # older folders lack it
            found = About(**{name: tree[name] for name in About.__dataclass_fields__})
            return replace(found, encoder=tree["encoder"] and Request(**tree["encoder"]))

    def identity(self) -> str:
        """Identifies rows and codes together; empty where there are none that can be used."""
        with suppress(InputError):
            return hash_tree(self.about().files)
        return ""

    def rows(self) -> Rows:
        """Contents of rows.json."""
        with self._verified(ROWS) as path:
            return Rows.from_dict(json.loads(path.read_bytes()))

    def embeddings(self) -> np.ndarray:
        """The embeddings [N, F], memory-mapped."""
        with self._verified(EMBEDDINGS) as path:
            return np.load(path, mmap_mode="r", allow_pickle=False)

    def codes(self, device: str = "auto") -> ReadableCodes:
        """The fitted codes."""
        with self._verified(HEAD) as path:
            codes = ReadableCodes.load(path, device)
        if self.names_file.is_file():
            codes.names_ = self.names(codes).columns(codes.n_components_)
        return codes

    def load_result(self, job: str) -> dict[str, Any] | None:
        """The content of JOB.json; None if there is none or it is of other codes."""
        tree = read_object(self.folder / f"{job}.json")
        return tree if tree.pop("identity", None) == self.identity() else None

    def save_result(self, job: str, result: dict[str, Any]) -> None:
        """Write JOB.json, a result for the present codes."""
        tree = {"identity": self.identity(), **rounded(result)}
        write_atomic(self.folder / f"{job}.json", to_json(tree))

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on these codes; None if there is none."""
        return self.load_result("verdict")

    def all_names(self) -> list[Annotations]:
        """Contents of names.json: names of these codes and of those they replaced."""
        return read_names(self.names_file) if self.names_file.is_file() else []

    def names(self, codes: ReadableCodes | None = None) -> Annotations:
        """Names of the dimensions of these codes; empty if nobody named any."""
        codes = codes or self.codes("cpu")
        tensors = {**codes.head_.state_dict(), **codes.moments_._asdict()}
        key = fingerprint(tensors), codes.n_components_
        same = (each for each in self.all_names() if (each.fingerprint, each.dims) == key)
        lasting = self.folder.parent if self.folder.name == STAGED else self.folder
        return next(same, Annotations(key[0], lasting.name, key[1]))

    def fingerprint(self) -> str:
        """Identifies the dimensions, so that names given to them can be found again."""
        return self.names().fingerprint

    def save_names(self, own: Annotations) -> None:
        """Replace the names of one set of codes in names.json; those of others stay."""
        others = [each for each in self.all_names() if each.fingerprint != own.fingerprint]
        write_names(self.names_file, merge_names([*others, own]))

    def encoder_request(self) -> Request:
        """How the encoder of the embeddings was opened."""
        if (encoder := self.about().encoder) is None:
            raise InputError(
                f"{self} was fitted on an array and has no encoder for images: use "
                "`bayesncl embed` or, in Python, codes.transform on embeddings"
            )
        return encoder

    def open_encoder(
        self, device: torch.device | str = "cpu", named: str | None = None, check: bool = True,
        **changes: Any,
    ) -> PhotoEncoder:  # fmt: skip
        """The encoder of the embeddings, with `changes` to its request.

        An encoder that is Python code runs only if a person names it: `named` must be the name
        given to `fit`. With `check`, the encoder must still do what it did then.
        """
        made = self.encoder_request()
        request = replace(made, **changes)
        spec = printable(request.spec)
        if encoders.find_kind(request.spec) in encoders.RUNS_CODE and named != request.spec:
            how = f'to run it, add --encoder {spec} (in Python, encoder="{spec}")'
            raise InputError(f"{self} needs the encoder {spec}, which is code: {how}")
        if named not in (None, request.spec):
            raise InputError(f"{self} was fitted with the encoder {spec}, not {named}")
        encoder = encoders.open_encoder(request, device)
        if check and not encoders.same_signature(made.signature, encoder.request.signature):
            changed = f"encoder {encoder.name} has changed since {self} was fitted"
            raise InputError(f"{changed}: rerun `bayesncl fit`")
        return encoder

    @property
    def staged(self) -> CodesFolder:
        """The folder in which the next codes are fitted."""
        return CodesFolder(self.folder / STAGED)

    def write_rows(self, rows: Rows, blocks: Iterable[np.ndarray]) -> np.ndarray:
        """Empty the folder and write rows.json and embeddings.npy; returns these, memory-mapped."""
        with as_input_error(f"cannot write to {self}"):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            write_atomic(self.folder / ROWS, rows.to_json())
            return write_npy(self.embeddings_file, blocks)

    def write_codes(self, about: About, codes: ReadableCodes, verdict: dict[str, Any]) -> None:
        """Write codes.safetensors, verdict.json and, at the end, codes.json."""
        codes.save(self.folder / HEAD)
        files = {name: checksum(self.folder / name) for name in (EMBEDDINGS, ROWS, HEAD)}
        tree = {"identity": hash_tree(files), **verdict}
        write_atomic(self.folder / VERDICT, to_json(tree))
        write_atomic(self.about_file, replace(about, files=files).to_json())

    def publish(self) -> None:
        """Move the files in `.new` up, codes.json last. If this is killed, call it again."""
        staged = self.staged
        if self.identity() != staged.identity():
            self.evaluation_file.unlink(missing_ok=True)
        for name in PUBLISHED:
            if (staged.folder / name).exists():
                os.replace(staged.folder / name, self.folder / name)
        shutil.rmtree(staged.folder)

    def relative(self, path: Path) -> str:
        """A path as codes.json stores it: relative to this folder, so both can move together."""
        return os.path.relpath(path, self.folder)

    def place(self, path: str) -> Path:
        """Inverse of `relative`."""
        return Path(os.path.abspath(self.folder / path))

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

    @contextmanager
    def _verified(self, name: str) -> Iterator[Path]:
        """The path of a file whose checksum is that in codes.json."""
        path = self.folder / name
        with as_input_error(f"{path} {UNUSABLE}", Exception):
            known, small = self.about().files[name], path.stat().st_size <= MAX_CHECKED_BYTES
            if small and checksum(path) != known:
                raise ValueError("damaged, or it does not match codes.json")
            yield path


def file_stat(path: Path) -> tuple[int, int]:
    """Size and modification time of a file; (-1, -1) if it cannot be read."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return (-1, -1)
    return found.st_size, found.st_mtime_ns


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tree(tree: Any) -> str:
    """A short hash of JSON data."""
    return hashlib.blake2b(json.dumps(tree).encode(), digest_size=16).hexdigest()
