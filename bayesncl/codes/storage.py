"""Files of ReadableCodes: safetensors with options and a checksum in the metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from bayesncl.codes.preprocess import Moments
from bayesncl.errors import InputError, as_input_error, import_extra
from bayesncl.io import digest, read_tensors, tensor_bytes
from bayesncl.method.heads import HEADS

if TYPE_CHECKING:
    from bayesncl.codes.estimator import ReadableCodes

FORMAT = "bayesncl-codes-2"
WEIGHTS, CONFIG = "model.safetensors", "config.json"  # on the Hugging Face hub
FITTED = ("n_components_", "n_features_in_", "n_iter_", "loss_", "recall_", "interrupted_")
Codes = TypeVar("Codes", bound="ReadableCodes")


def pack(codes: ReadableCodes) -> tuple[bytes, str]:
    """The bytes of a file, and the configuration in it as JSON."""
    params = codes.get_params(deep=False) | {"method": codes.method_}  # it may have been set since
    del params["device"]
    params = {name: int(v) if isinstance(v, np.integer) else v for name, v in params.items()}
    if not isinstance(params["random_state"], int):
        params["random_state"] = None
    fitted = {name: getattr(codes, name) for name in FITTED}
    config: dict[str, Any] = {"format": FORMAT, "params": params, "fitted": fitted}
    if hasattr(codes, "feature_names_in_"):
        config["feature_names"] = [str(name) for name in codes.feature_names_in_]
    text = json.dumps(config, sort_keys=True)
    tensors = {f"head.{name}": t for name, t in codes.head_.state_dict().items()}
    tensors |= codes.moments_._asdict()
    return tensor_bytes(tensors, {"config": text, "sha256": digest(tensors, text)}), text


def find_folder(name: Path | str) -> Path:
    """A local folder, or one from the Hugging Face hub."""
    if Path(name).is_dir():
        return Path(name)
    hint = "to load from the Hugging Face hub: pip install huggingface_hub"
    hub = import_extra("huggingface_hub", f"{name}: no such folder; {hint}")
    # network, permission, name: the library raises many types
    with as_input_error(f"{name}: no such folder, and not on the hub", Exception):
        return Path(hub.snapshot_download(str(name), allow_patterns=[WEIGHTS, CONFIG]))


def load(cls: type[Codes], path: Path) -> Codes:
    """Read one file; InputError if it is damaged or not from this version."""
    tensors, metadata = read_tensors(path)
    text = metadata.get("config", "")
    if FORMAT not in text:
        raise InputError(f"{path} is not a file of readable codes of this version ({FORMAT})")
    if digest(tensors, text) != metadata.get("sha256"):
        raise InputError(f"{path} is damaged: its checksum does not match")
    if bad := [name for name, t in tensors.items() if not bool(t.isfinite().all())]:
        raise InputError(f"{path} cannot be used: {bad[0]} contains NaN or infinity")
    with as_input_error(f"{path} is not a file of readable codes", Exception):
        config = json.loads(text)
        codes = cls(**config["params"])
        codes.check_options()
        vars(codes).update({name: config["fitted"][name] for name in FITTED})
        if "feature_names" in config:
            codes.feature_names_in_ = np.array(config["feature_names"], dtype=object)
        mean, scale = (tensors.pop(name).double() for name in Moments._fields)
        if not mean.shape == scale.shape == (codes.n_features_in_,):
            raise ValueError("mean or scale has the wrong length")
        codes.moments_ = Moments(mean, scale)
        with torch.device("meta"):  # load_state_dict compares shapes before anything is allocated
            head = HEADS[codes.method](codes.moments_.width, codes.n_components_)
        weights = {name.removeprefix("head."): t for name, t in tensors.items()}
        head.load_state_dict(weights, assign=True)
        codes.head_, codes.method_ = head.float().eval().requires_grad_(True), codes.method
    return codes
