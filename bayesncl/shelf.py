"""Readable codes on disk: safetensors with options and checksum, folders as on the hub, checkpoints of a fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import distributed
from .arrays import DAMAGE
from .errors import InputError, first_line, import_extra, or_refuse
from .files import check_place, digest, read_regular, read_tensors, tensor_bytes, write_atomic
from .heads import HEADS, Head
from .model import LARGEST
from .rows import Moments

if TYPE_CHECKING:
    from .codes import ReadableCodes

FORMAT = "bayesncl-codes-1"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
MAX_BYTES, MOST_CONFIG = 16 << 30, 64 << 20
MAX_WIDTH = 1 << 20  # of embeddings and of codes
FITTED = {"dim_": int, "n_features_in_": int, "n_iter_": int, "loss_": float, "recall_": float, "interrupted_": bool}
Codes = TypeVar("Codes", bound="ReadableCodes")


def save(codes: ReadableCodes, path: Path) -> None:
    """Write one file."""
    check_place(path)
    write_atomic(path, _pack(codes)[0])


def save_folder(codes: ReadableCodes, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    weights, config = _pack(codes)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file, expected a folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / WEIGHTS, weights)
    write_atomic(folder / CONFIG, json.dumps(json.loads(config), indent=2, sort_keys=True) + "\n")


def load_folder(cls: type[Codes], name: Path | str) -> Codes:
    """Read a folder, or one of the hub."""
    folder = Path(name) if Path(name).is_dir() else _download(str(name))
    codes, config = load(cls, folder / WEIGHTS)
    with or_refuse(f"cannot read {folder / CONFIG}", OSError, ValueError, RecursionError):
        beside = json.loads(read_regular(folder / CONFIG, MOST_CONFIG))
    if beside != config:
        raise InputError(f"{folder / CONFIG} is not of the same codes as {WEIGHTS} beside it")
    return codes


def _download(name: str) -> Path:
    missing = f"{name}: no such folder; to read it from the hub, pip install 'bayesncl[hub]'"
    hub = import_extra("huggingface_hub", missing)
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[WEIGHTS, CONFIG]))
    except Exception as error:  # network, permission, name: the library has many
        raise InputError(f"{name}: no such folder, and not found on the hub ({type(error).__name__})") from None


def _pack(codes: ReadableCodes) -> tuple[bytes, str]:
    """The bytes of a file and its configuration as JSON."""
    params = codes.get_params(deep=False)
    state = params["random_state"]
    params["random_state"] = int(state) if isinstance(state, int | np.integer) else None
    params = {name: int(v) if isinstance(v, np.integer) else v for name, v in params.items() if name != "device"}
    fitted = {name: getattr(codes, name) for name in FITTED}
    config: dict[str, Any] = {"format": FORMAT, "params": params, "fitted": fitted}
    if hasattr(codes, "feature_names_in_"):
        config["feature_names"] = [str(name) for name in codes.feature_names_in_]
    text = json.dumps(config, sort_keys=True)
    tensors = {f"head.{name}": t for name, t in codes.head_.state_dict().items()} | codes.moments_._asdict()
    return tensor_bytes(tensors, {"config": text, "sha256": digest(tensors, text)}), text


def load(cls: type[Codes], path: Path) -> tuple[Codes, dict[str, Any]]:
    """Read one file: the codes, and their configuration."""
    with or_refuse(f"cannot read {path}"):
        size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputError(f"{path} is larger than any codes: {size} bytes")
    tensors, metadata = read_tensors(path)
    text = metadata.get("config", "")
    if FORMAT not in text:
        raise InputError(f"{path} does not hold readable codes of this version ({FORMAT})")
    if digest(tensors, text) != metadata.get("sha256"):
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:
        return _build(cls, json.loads(text), tensors), json.loads(text)
    except DAMAGE as error:
        raise InputError(f"{path} does not hold readable codes: {first_line(error)}") from None


def _build(cls: type[Codes], config: dict[str, Any], tensors: dict[str, Tensor]) -> Codes:
    codes = cls(**config["params"])
    codes._check_options()
    for name, kind in FITTED.items():
        setattr(codes, name, kind(config["fitted"][name]))
    dim, width = codes.dim_, codes.n_features_in_
    if not (1 <= dim <= MAX_WIDTH and 1 <= width <= MAX_WIDTH):
        raise InputError(f"codes of {dim} dimensions from {width} features")
    for name, t in tensors.items():
        if not bool((t.abs() <= LARGEST).all()):
            raise InputError(f"{name} holds NaN, infinity or a number above {LARGEST:g}")
    if "feature_names" in config:
        codes.feature_names_in_ = np.array(config["feature_names"], dtype=object)
    moments = codes.moments_ = Moments(tensors["mean"], tensors["scale"])
    if any(t.shape != (width,) or t.dtype != torch.float64 for t in moments):
        raise InputError("the mean or the scale does not fit")
    if not bool((moments.scale >= 0).all()):  # 0 for a column that is constant
        raise InputError("the scale is negative")
    with torch.device("meta"):  # shapes are compared before anything of that size is made
        head = HEADS[codes.method](moments.width, dim).float()
    weights = {name.removeprefix("head."): t for name, t in tensors.items() if name.startswith("head.")}
    for name, t in head.state_dict().items():
        if weights[name].dtype != t.dtype:
            raise InputError(f"{name} is {weights[name].dtype}")
    head.load_state_dict(weights, assign=True)
    codes.head_, codes.method_ = head.eval().requires_grad_(True), codes.method
    return codes


class BadCheckpoint(InputError):
    """A checkpoint of a fit that is damaged, or of another fit."""


class State:
    """A fit between two steps: weights, moments of the optimiser, step, losses of the `recent` steps, and the `recall`
    of its search for neighbours. Batches and draws follow from the step."""

    def __init__(
        self, head: Head, optimiser: torch.optim.Optimizer, fingerprint: dict[str, Any], recent: Tensor
    ) -> None:
        self.head, self.optimiser, self.step, self.recent, self.recall = head, optimiser, 0, recent, 1.0
        self.fingerprint = json.dumps(fingerprint, sort_keys=True)

    def write(self, path: Path, partners: Tensor) -> None:
        """Save after `step` steps; process 0 alone does."""
        if distributed.rank() != 0:
            return
        tensors = {f"head.{name}": t for name, t in self.head.state_dict().items()}
        for name, p in self.head.named_parameters():
            tensors |= {f"{key}.{name}": t for key, t in self.optimiser.state[p].items()}
        tensors |= {"partners": partners, "recent": self.recent}
        text = json.dumps({"fingerprint": self.fingerprint, "step": self.step, "recall": self.recall})
        write_atomic(path, tensor_bytes(tensors, {"fit": text, "sha256": digest(tensors, text)}))

    def read(self, path: Path, count: int) -> Tensor | None:
        """Go on from a file, if there is one; the partners [N, K] it holds, each one of `count` rows."""
        check_place(path)
        if not path.exists():
            return None
        try:
            tensors, metadata = read_tensors(path)
            text = metadata.get("fit", "")
            if digest(tensors, text) != metadata.get("sha256"):
                raise BadCheckpoint(f"{path} is damaged: its checksum does not match; remove it to begin anew")
            found = json.loads(text)
            if found["fingerprint"] != self.fingerprint:
                raise BadCheckpoint(f"{path} is of a fit of other rows or options; remove it to begin anew")
            return self._restore(int(found["step"]), float(found["recall"]), tensors, count)
        except BadCheckpoint:
            raise
        except DAMAGE:
            raise BadCheckpoint(f"{path} is not a checkpoint of a fit; remove it to begin anew") from None

    def _restore(self, step: int, recall: float, tensors: dict[str, Tensor], count: int) -> Tensor:
        """Take everything in once all of it is checked; ValueError where it does not fit."""
        head = {name: tensors[f"head.{name}"] for name in self.head.state_dict()}
        moments = {
            p: {key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            for name, p in self.head.named_parameters()
            if f"step.{name}" in tensors
        }
        partners, recent = tensors["partners"], tensors["recent"]
        every = [*head.values(), *(t for each in moments.values() for t in each.values()), recent]
        sound = (
            (0 <= step < 2**53 and 0 <= recall <= 1 and recent.shape == self.recent.shape)
            and all(t.dtype == torch.float32 and bool((t.abs() <= LARGEST).all()) for t in every)
            and all(m["exp_avg"].shape == m["exp_avg_sq"].shape == p.shape for p, m in moments.items())
            and all(m["step"].shape == () and 0 <= float(m["step"]) < 2**53 for m in moments.values())
            and all(bool((m["exp_avg_sq"] >= 0).all()) for m in moments.values())
            and (partners.dtype == torch.int64 and partners.ndim == 2 and len(partners) == count)
            and (partners.numel() > 0 and 0 <= int(partners.min()) <= int(partners.max()) < count)
        )
        if not sound:
            raise ValueError("not of a fit")
        self.head.load_state_dict(head)
        for p, each in moments.items():
            self.optimiser.state[p].update({key: t.to(p.device) for key, t in each.items()})
        self.recent.copy_(recent)
        self.step, self.recall = step, recall
        return partners
