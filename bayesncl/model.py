"""The encoder: a backbone and a head; and how its weights travel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .backbones import build_backbone, update_running_statistics
from .data.decode import Square
from .errors import InputError
from .files import digest, is_codes, read_tensors, tensor_bytes
from .heads import Features, Projector
from .objective import check_keep, keep_strongest
from .pixels import as_pixels
from .recipes import Recipe, recipe_from_json, replace_fields
from .run import Run

if TYPE_CHECKING:
    from .codes_folder import PhotoCodes
    from .pixels import Pictures

LARGEST = 1e30  # weight; two of them overflow a product in float32


class Encoder(nn.Module):
    """Backbone h = f(x) and the head that makes codes of h.

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
        self.backbone = backbone or build_backbone(recipe.model)
        features = int(self.backbone.features)  # type: ignore[arg-type]
        self.head = Projector(features, recipe.model, recipe.gate, recipe.objective)
        self.register_buffer("mean", torch.tensor(recipe.data.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(recipe.data.std).view(1, 3, 1, 1), persistent=False)

    @property
    def projector(self) -> nn.Sequential:
        """The layers from h to z."""
        return self.head.projector

    @property
    def gate(self) -> nn.Sequential | None:
        """The layers from h to the logits of the gates, if there are gates."""
        return self.head.gate

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of normalised pixels x [N, 3, H, W]; `uniform` [N, D] feeds noisy gates their noise in training."""
        return self.head(self.embed(x), uniform)

    def embed(self, x: Tensor) -> Tensor:
        """h [N, F] of normalised pixels x [N, 3, H, W]."""
        h: Tensor = self.backbone(x)
        if self.training:
            update_running_statistics(self.backbone)
        return h

    def normalise_pixels(self, x: Tensor) -> Tensor:
        """uint8, or float in [0, 1], to what `forward` takes."""
        if x.dtype == torch.uint8:
            x = x.float() / 255
        return (x - self.mean) / self.std

    @torch.inference_mode()
    def encode(self, images: Pictures, gated: bool = True, keep: int | None = None, batch: int = 256) -> Tensor:
        """Features of images, in eval mode.

        Parameters
        ----------
        images : uint8, or float in [0, 1], [N, 3, H, W] or [N, H, W, 3], grey with one channel; or PIL images or paths
            of files, resized and cropped as in training. One or many.
        gated : apply the gates, if the model has them.
        keep : keep only each image's `keep` strongest dimensions, renormalised.
        batch : images at a time.

        Returns
        -------
        [N, D] float32 on the CPU, rows of unit length (all zero where every gate is closed).
        """
        pixels = as_pixels(images, Square(self.recipe.data.size, self.recipe.views.size))
        check_keep(keep, self.head.dim)
        rows = []
        with in_eval_mode(self):
            for part in pixels.split(batch):
                features = self(self.normalise_pixels(part.to(self.mean.device)))
                z = features.gated if gated else features.z
                rows.append(keep_strongest(z, keep).cpu())
        return torch.cat(rows) if rows else torch.empty(0, self.head.dim)


def build_model(recipe: Recipe) -> Encoder:
    """A fresh encoder whose weights depend on the recipe and its seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.run.seed)  # the CPU's: torch.manual_seed would reset the GPU's too
        return Encoder(recipe)


@contextmanager
def in_eval_mode(model: object) -> Iterator[None]:
    """Eval mode inside, every submodule's own mode again afterwards; a plain function has none."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


HEAD = "head."  # files name the tensors of a head without it, those of a backbone as they are


def stored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of an encoder as files hold them: on the CPU, under the names that files use."""
    return {name.removeprefix(HEAD): t.detach().cpu().contiguous() for name, t in tensors.items()}


def restored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors from a file under the names that they have in an encoder."""
    return {name if name.startswith("backbone.") else HEAD + name: t for name, t in tensors.items()}


def model_bytes(model: Encoder) -> bytes:
    """The weights as a safetensors file, with the recipe and a checksum in the metadata."""
    tensors = stored(model.state_dict())
    recipe = model.recipe.to_dict()
    recipe["data"]["root"] = ""  # where the images lay is nobody else's business
    metadata = {"format": "bayesncl-1", "recipe": json.dumps(recipe), "sha256": digest(tensors)}
    return tensor_bytes(tensors, metadata)


def load(path: str | Path, device: str | torch.device = "cpu", *, encoder: str | None = None) -> Encoder | PhotoCodes:
    """Load a trained model, or the codes of photos that `bayesncl fit` wrote, ready to encode.

    Parameters
    ----------
    path : a run folder, a .safetensors file, or a folder of codes.
    device : where to put it.
    encoder : the MODULE:FUNCTION that was given to `fit`, if it was one: such code is run only when it is named.

    Returns
    -------
    Encoder in eval mode, or PhotoCodes; both have `encode`. Nothing is unpickled; a damaged file, or one with absurd
    weights, raises InputError.
    """
    if is_codes(path):
        from .codes_folder import CodesFolder

        return CodesFolder(path).model(device, encoder)
    if encoder is not None:
        raise InputError(f"{path} is not a folder of codes, so it takes no encoder")
    return load_run(path, device)


def load_run(path: str | Path, device: str | torch.device = "cpu") -> Encoder:
    """Load a trained model from a run folder or a .safetensors file; see `load`."""
    path, run = Path(path), Run(path)
    if path.is_dir():
        if not run.weights.exists() and run.recipe_file.exists():
            raise InputError(f"{path} is not finished: bayesncl resume {path}")
        path = run.weights
    if not path.is_file():
        raise InputError(f"no trained model at {path}")
    if path.suffix.lower() in (".npy", ".npz", ".csv", ".parquet"):
        raise InputError(f"{path} is an array, expected a run or codes: measure, fit and atlas --features take arrays")
    tensors, metadata = read_tensors(path)
    if "recipe" not in metadata:
        raise InputError(f"{path} carries no recipe: it is no trained model; codes are opened by their folder")
    if metadata.get("sha256") != digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    recipe = recipe_from_json(metadata["recipe"], str(path))
    if run.recipe_file.is_file():  # a run's own folder knows where its images are; the weights do not
        recipe = replace_fields(recipe, data={"root": run.recipe().data.root})
    return fill_model(recipe, restored(tensors), path).eval().to(device)


def fill_model(recipe: Recipe, tensors: dict[str, Tensor], path: Path) -> Encoder:
    """The model of a recipe with these weights, both checked first; `path` says in messages where they come from."""
    with torch.device("meta"):  # shapes alone: a stranger's recipe must not take memory that its tensors do not fill
        wanted = {name: tensor.shape for name, tensor in build_model(recipe).state_dict().items()}
    if wanted != {name: tensor.shape for name, tensor in tensors.items()}:
        raise InputError(f"{path} does not fit its own recipe: names or shapes of its tensors differ")
    check_weights(tensors, path)
    model = build_model(recipe)  # backbones of others have buffers that no file holds
    model.load_state_dict(tensors)
    return model


def check_weights(tensors: dict[str, Tensor], source: Path) -> None:
    """InputError for weights that no training leaves and that make NaN of every image."""
    for name, tensor in stored(tensors).items():
        if not bool((tensor.float().abs() <= LARGEST).all()):
            raise InputError(f"{source} cannot be used: {name} holds NaN, infinity or a number above {LARGEST:g}")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise InputError(f"{source} cannot be used: {name} holds a negative variance")
