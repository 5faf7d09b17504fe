"""The encoder: backbone, projector, gating head; and how its weights travel."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbones import build_backbone, settle_statistics
from .errors import InputError
from .files import tensor_bytes, write_atomic
from .gates import at_least_float32, open_gates, rectify, top_k_mask
from .objective import keep_strongest, normalise
from .recipes import Recipe, recipe_from_json

if TYPE_CHECKING:
    from PIL.Image import Image

WEIGHTS = "model.safetensors"


class Features(NamedTuple):
    """What the encoder says of N images."""

    h: Tensor  # [N, F] backbone feature
    z: Tensor  # [N, D] rectified, unit length; no gate
    logits: Tensor | None  # [N, D] of the gates
    mask: Tensor | None  # [N, D] what multiplied z
    gated: Tensor  # [N, D] normalise(z * mask); z itself where there is no gate


class Encoder(nn.Module):
    """Backbone h = f(x), features z = normalise(rectify(p(h))), gates m from g(h), gated features normalise(z m).

    Parameters
    ----------
    recipe : its `model` and `gate` parts are built; `data.mean` and `data.std` normalise the pixels.
    backbone : any module that maps [N, 3, H, W] to [N, F] and has `.features` = F, instead of the recipe's.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Recipe, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        model, gate = recipe.model, recipe.gate
        self.backbone = backbone or build_backbone(model)
        features = int(self.backbone.features)  # type: ignore[arg-type]
        self.projector = mlp(features, model.hidden, model.dim, depth=2)
        self.gate = (
            mlp(features, gate.hidden or model.hidden, model.dim, depth=gate.depth) if gate.kind != "none" else None
        )
        self.register_buffer("mean", torch.tensor(recipe.data.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(recipe.data.std).view(1, 3, 1, 1), persistent=False)

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of normalised pixels x [N, 3, H, W]; `uniform` [N, D] feeds Gumbel gates their noise in training."""
        h = self.backbone(x)
        if self.training:
            settle_statistics(self.backbone)
        z = self.projector(h)
        if self.recipe.model.layer_norm:
            z = F.layer_norm(at_least_float32(z), z.shape[1:])
        z = rectify(z, self.recipe.model.rectifier)
        if self.recipe.model.top_k:
            z = z * top_k_mask(z, self.recipe.model.top_k)
        z = normalise(z)
        if self.gate is None:
            return Features(h, z, None, None, z)
        gate = self.recipe.gate
        logits = self.gate(h.detach() if gate.detach else h)
        # without noise the Gumbel gates are straight-through gates; evaluation never draws noise
        kind = "ste" if gate.kind.startswith("gumbel") and not self.training else gate.kind
        mask = open_gates(logits, kind, gate.threshold, gate.temperature, uniform=uniform)
        return Features(h, z, logits, mask, normalise(z * mask))

    def normalise_pixels(self, x: Tensor) -> Tensor:
        """uint8, or float in [0, 1], to what `forward` takes."""
        if x.dtype == torch.uint8:
            x = x.float() / 255
        return (x - self.mean) / self.std

    @torch.inference_mode()
    def encode(
        self,
        images: Tensor | np.ndarray | Sequence[Image],
        gated: bool = True,
        keep: int | None = None,
        batch: int = 256,
    ) -> Tensor:
        """Features of images, in eval mode.

        Parameters
        ----------
        images : uint8, or float in [0, 1], [N, 3, H, W]; or a list of PIL images, resized and cropped as in training.
        gated : apply the gates, if the model has them.
        keep : keep only each image's `keep` strongest dimensions, renormalised.
        batch : images at a time.

        Returns
        -------
        [N, D] float32 on the CPU, rows of unit length (all zero where every gate is closed).
        """
        pixels = as_pixels(images, self.recipe)
        was_training = self.training
        self.eval()
        try:
            device = self.mean.device
            rows = []
            for part in pixels.split(batch):
                features = self(self.normalise_pixels(part.to(device)))
                z = features.gated if gated else features.z
                rows.append(keep_strongest(z, keep).cpu())
            return torch.cat(rows) if rows else torch.empty(0, self.recipe.model.dim)
        finally:
            self.train(was_training)


def mlp(inputs: int, hidden: int, outputs: int, *, depth: int) -> nn.Sequential:
    """Linear layers with ReLU between: inputs, hidden, (hidden / 2,) outputs for depth 1, 2, 3."""
    widths = [inputs, *[hidden, max(hidden // 2, 1)][: depth - 1], outputs]
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build_model(recipe: Recipe) -> Encoder:
    """A fresh encoder whose weights depend on the recipe and its seed alone."""
    if recipe.model.top_k > recipe.model.dim:
        raise InputError(f"model.top_k = {recipe.model.top_k} is more than model.dim = {recipe.model.dim}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.run.seed)  # the CPU's: torch.manual_seed would reset the GPU's too
        return Encoder(recipe)


def as_pixels(images: Tensor | np.ndarray | Sequence[Image], recipe: Recipe) -> Tensor:
    """Whatever a person hands to `encode` as uint8 or float [N, 3, H, W]."""
    if isinstance(images, list | tuple):
        from PIL.Image import Image as PillowImage

        from .data.decode import fit, to_rgb

        if strange := [type(image).__name__ for image in images if not isinstance(image, PillowImage)]:
            raise InputError(f"a list must hold PIL images, got {strange[0]}; arrays go in as one [N, 3, H, W]")
        arrays = [np.asarray(fit(to_rgb(image), recipe.data.size, recipe.views.size)) for image in images]
        if not arrays:
            return torch.empty(0, 3, recipe.views.size, recipe.views.size, dtype=torch.uint8)
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    if not isinstance(images, Tensor | np.ndarray):
        raise InputError(f"images must be a tensor, an array or a list of PIL images, got {type(images).__name__}")
    try:
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))  # a copy: any strides
    except TypeError:
        raise InputError(f"images must be uint8 or float in [0, 1], got {images.dtype}") from None
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape[2:]:
        raise InputError(f"images must be [N, 3, H, W], got {list(pixels.shape)}")
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point():
        raise InputError(f"images must be uint8 or float in [0, 1], got {pixels.dtype}")
    if len(pixels) and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise InputError(f"float images must lie in [0, 1], got [{pixels.min():.3g}, {pixels.max():.3g}]")
    return pixels.float()


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, shapes and bytes, to tell a damaged file."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save_model(model: Encoder, path: Path) -> None:
    """Write weights as safetensors, with the recipe and a checksum in the metadata."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    recipe = model.recipe.to_dict()
    recipe["data"]["root"] = ""  # where the images lay is nobody else's business
    metadata = {"format": "bayesncl-1", "recipe": json.dumps(recipe), "sha256": digest(tensors)}
    write_atomic(path, tensor_bytes(tensors, metadata))


def load(path: str | Path, device: str | torch.device = "cpu") -> Encoder:
    """Load a trained model, ready to encode.

    Parameters
    ----------
    path : a run folder or a .safetensors file.
    device : where to put it.

    Returns
    -------
    Encoder in eval mode. Nothing is unpickled; a damaged file raises InputError.
    """
    path = folder = Path(path)
    if path.is_dir():
        if not (path / WEIGHTS).exists() and (path / "recipe.json").exists():
            raise InputError(f"{path} is not finished: bayesncl resume {path}")
        path = path / WEIGHTS
    if not path.is_file():
        raise InputError(f"no trained model at {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file that can be read: {error}") from None
    if "recipe" not in metadata:
        raise InputError(f"{path} carries no recipe, so it was not written by bayesncl")
    if metadata.get("sha256") != digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    recipe = recipe_from_json(metadata["recipe"], str(path))
    if (folder / "recipe.json").is_file():  # a run's own folder knows where its images are; the weights do not
        own = recipe_from_json((folder / "recipe.json").read_text(errors="replace"), str(folder / "recipe.json"))
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=own.data.root))
    with torch.device("meta"):  # shapes alone: a stranger's recipe must not take memory that its tensors do not fill
        wanted = {name: tensor.shape for name, tensor in build_model(recipe).state_dict().items()}
    if wanted != {name: tensor.shape for name, tensor in tensors.items()}:
        raise InputError(f"{path} does not fit its own recipe: names or shapes of its tensors differ")
    model = build_model(recipe)
    model.load_state_dict(tensors)
    return model.eval().to(device)
