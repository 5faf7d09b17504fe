"""Weight files: the tensors of an encoder with its recipe and a checksum, as safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from bayesncl.errors import InputError, as_input_error
from bayesncl.io import digest, read_tensors, tensor_bytes
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.recipes import Recipe, recipe_from_json

ARRAY_SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
HEAD = "head."  # files name the tensors of the head without this prefix


def to_file_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of an encoder on the CPU, under their names in files."""
    return {name.removeprefix(HEAD): t.detach().cpu().contiguous() for name, t in tensors.items()}


def from_file_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors from a file under their names in an encoder."""
    return {name if name.startswith("backbone.") else HEAD + name: t for name, t in tensors.items()}


def model_bytes(model: Encoder) -> bytes:
    """The weights as a safetensors file, with the recipe and a checksum in the metadata."""
    tensors = to_file_names(model.state_dict())
    recipe = model.recipe.to_dict()
    recipe["data"]["root"] = ""  # the path of the images is private
    metadata = {
        "format": "bayesncl-1", "recipe": json.dumps(recipe), "sha256": digest(tensors)
    }
    return tensor_bytes(tensors, metadata)


def load_weights(path: Path) -> Encoder:
    """Load an encoder in eval mode from a weights file; nothing is unpickled."""
    if not path.is_file():
        raise InputError(f"no trained model at {path}")
    if path.suffix.lower() in ARRAY_SUFFIXES:
        raise InputError(
            f"{path} is an array, expected a run or codes; measure, fit and atlas read arrays"
        )
    tensors, metadata = read_tensors(path)
    if "recipe" not in metadata:
        raise InputError(f"{path} is not a trained model: it has no recipe")
    if metadata.get("sha256") != digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    recipe = recipe_from_json(metadata["recipe"], str(path))
    return fill_model(recipe, from_file_names(tensors), path)


def fill_model(recipe: Recipe, tensors: dict[str, Tensor], path: Path) -> Encoder:
    """Build the model of a recipe with these weights, in eval mode."""
    with as_input_error(f"{path} does not fit its recipe", RuntimeError):
        model = build_model(recipe)
        model.load_state_dict(tensors)
    return model.eval()
