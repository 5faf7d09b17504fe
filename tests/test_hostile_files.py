"""Forged and damaged files: read, or refused with an InputError of one line; nothing is executed.

Hypothesis draws wrong tensors, changed bytes and, in files that people edit, wrong JSON.
"""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesncl import ReadableCodes
from bayesncl.atlas.quiz import join_quizzes, render_quiz
from bayesncl.codes.names import find_names, read_names, write_names
from bayesncl.errors import InputError
from bayesncl.io import digest, read_tensors, tensor_bytes
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.heads import HEADS
from bayesncl.recipes import PARTS, recipe_from_json
from bayesncl.training import checkpoint, run_folder
from tests.conftest import tiny_recipe

Draw = Callable[[st.SearchStrategy[Any]], Any]

INFINITE = (float("inf"), float("nan"))
NUMBERS = st.sampled_from([-1, 0, 1, 7, 2**31, 2**63, 10**400, -1.5, 1e308, *INFINITE])
TEXTS = st.sampled_from(["", "x", "\0", "../../x", "\x1b[2J", "<b>", "9" * 5000, "\ud800", "٣"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=6,
)


def bend(tree: Any, draw: Draw) -> Any:
    """A copy of a JSON tree with a few nodes replaced, removed or added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(0, 3))):
        node, parent, key = tree, None, None
        while isinstance(node, dict | list) and node and draw(st.integers(0, 6)):
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            parent, key = node, draw(st.sampled_from(keys))
            node = node[key]
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if parent is None:
            tree = draw(VALUES) if action == "replace" else tree
        elif action == "remove":
            del parent[key]
        elif action == "add" and isinstance(parent, dict):
            parent[draw(TEXTS)] = draw(VALUES)
        else:
            parent[key] = draw(VALUES)
    return tree


def bend_tensors(tensors: dict[str, torch.Tensor], draw: Draw) -> dict[str, torch.Tensor]:
    """Tensors of which some have other values, another shape or type, or are missing."""
    tensors = dict(tensors)
    for name in draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        t = tensors.pop(name)
        how = draw(st.sampled_from(["fill", "type", "cut", "drop", "rename"]))
        if how == "fill":
            number = draw(st.sampled_from([1e38, float("nan"), float("inf"), 0.0]))
            tensors[name] = torch.full_like(t, number if t.is_floating_point() else -1)
        elif how == "type":
            tensors[name] = t.to(draw(st.sampled_from([torch.float16, torch.float64, torch.int64])))
        elif how == "cut":
            tensors[name] = t.reshape(-1)[: draw(st.integers(0, 3))].clone()
        elif how == "rename":
            tensors[f"{name}x"] = t
    return tensors


def damage(raw: bytes, draw: Draw) -> bytes:
    """Mostly the same bytes; sometimes a piece is changed, cut or added."""
    data = bytearray(raw)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        at, piece = draw(st.integers(0, len(data))), draw(st.binary(max_size=6))
        data[at : at + draw(st.sampled_from([0, len(piece), 40, len(data)]))] = piece
    return bytes(data)


# For each kind of file: forge it in a folder, then use it as the package does.


@cache
def good_model() -> Encoder:
    return build_model(tiny_recipe())


def forge_model(folder: Path, draw: Draw) -> None:
    tensors = bend_tensors(run_folder.to_file_names(good_model().state_dict()), draw)
    recipe = json.dumps(bend(good_model().recipe.to_dict(), draw))
    metadata = {"format": "bayesncl-1", "recipe": recipe, "sha256": digest(tensors)}
    (folder / "model.safetensors").write_bytes(damage(tensor_bytes(tensors, metadata), draw))
    model = run_folder.load_weights(folder / "model.safetensors")
    if model.recipe.views.size <= 64:
        model.encode(np.zeros((1, 3, 16, 16), np.uint8))


def forge_checkpoint(folder: Path, draw: Draw) -> None:
    tensors = run_folder.to_file_names(good_model().state_dict())
    tensors = bend_tensors({f"model.{name}": t for name, t in tensors.items()}, draw)
    step = draw(st.sampled_from(["4", "-1", "x", "9" * 30, "9" * 5000, ""]))
    recipe = bend(good_model().recipe.to_dict(), draw)
    text = json.dumps({"step": step, "recipe": recipe, "images": ["", ""]})
    metadata = {"state": text, "sha256": digest(tensors, text)}
    path = folder / "step-4.ckpt"
    path.write_bytes(damage(tensor_bytes(tensors, metadata), draw))
    use_checkpoint(path)


def use_checkpoint(path: Path) -> None:
    found = checkpoint.read(path)
    run_folder.fill_model(found.recipe, found.part("model"), path)


@cache
def good_codes(method: str) -> ReadableCodes:
    x = np.random.default_rng(0).normal(size=(40, 5))
    return ReadableCodes(6, method=method, max_iter=2, batch_size=8, device="cpu").fit(x)


def forge_codes(folder: Path, draw: Draw) -> None:
    codes = good_codes(draw(st.sampled_from(sorted(HEADS))))
    path = folder / "codes.safetensors"
    codes.save(path)
    saved, metadata = read_tensors(path)
    tensors = bend_tensors(saved, draw)
    metadata["sha256"] = digest(tensors, metadata["config"])
    path.write_bytes(damage(tensor_bytes(tensors, metadata), draw))
    loaded = ReadableCodes.load(path)
    z = loaded.transform(np.zeros((2, loaded.n_features_in_)))
    z = z.toarray() if hasattr(z, "toarray") else np.asarray(z)
    assert np.isfinite(z).all() and (z >= 0).all()


ENTRY = {"name": "autumn", "note": "", "mark": "readable", "author": "Ann"}
ENTRY |= {"time": "2026-05-01T10:00:00.000Z"}
CODES = {"fingerprint": "9f8e", "run": "NCL", "dims": 8, "dimensions": {"1": [ENTRY, ENTRY]}}
NAMES = {"format": "bayesncl-names-1", "codes": [CODES, CODES | {"fingerprint": "aaaa"}]}
ANSWER = {"codes": "9f8e", "run": "NCL", "dim": 7, "images": [3, 8, 21, 40, 5], "intruder": 2}
ANSWER |= {"chosen": 2, "seconds": 3.1, "time": "2026-05-01T10:00:00.000Z"}
QUIZ = {"format": "bayesncl-quiz-1", "atlas": "x", "author": "Ann", "answers": [ANSWER, ANSWER]}


def forge_names(folder: Path, draw: Draw) -> None:
    (folder / "names.json").write_bytes(damage(json.dumps(bend(NAMES, draw)).encode(), draw))
    codes = read_names(folder / "names.json")
    write_names(folder / "again.json", codes)
    again = read_names(folder / "again.json")
    assert [(c.fingerprint, c.dims) for c in again] == [(c.fingerprint, c.dims) for c in codes]
    for each in codes:
        columns = each.columns(min(each.dims, 50))
        assert len(set(columns)) == len(columns)
        assert all(name.isprintable() for name in columns)
    find_names(codes, "9f8e", 8)


def forge_quiz(folder: Path, draw: Draw) -> None:
    (folder / "quiz.json").write_bytes(damage(json.dumps(bend(QUIZ, draw)).encode(), draw))
    joined = join_quizzes([folder / "quiz.json"])
    json.dumps(joined, allow_nan=False)
    assert all(line.isprintable() for line in render_quiz(joined).splitlines())


def forge_recipe(folder: Path, draw: Draw) -> None:
    tree = bend(tiny_recipe().to_dict(), draw)
    part = draw(st.sampled_from(sorted(PARTS)))
    if isinstance(tree, dict) and isinstance(tree.get(part), dict):
        field = draw(st.sampled_from([field.name for field in fields(PARTS[part])]))
        tree[part][field] = draw(VALUES)
    text = damage(json.dumps(tree).encode(), draw).decode(errors="replace")
    recipe = recipe_from_json(text, "x.json")
    assert recipe_from_json(recipe.to_json()) == recipe


FORGERIES = [forge_model, forge_checkpoint, forge_codes, forge_names, forge_quiz, forge_recipe]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("forge", FORGERIES)
@settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_forged_files_are_read_or_refused(
    forge, drawn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        forge(tmp_path_factory.mktemp("forged"), drawn.draw)
    except InputError as error:
        assert "\n" not in str(error)


class Exploit:
    """Unpickling this would leave a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_pickles_in_place_of_weights_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.BytesIO()
    torch.save(Exploit(), out)
    endless = struct.pack("<Q", 2**60) + b"{}"  # the length of a header
    tensors = {"x": torch.zeros(2)}
    no_recipe = {"recipe": "[" * 10_000, "sha256": digest(tensors)}
    other = {"recipe": tiny_recipe().to_json(), "sha256": digest(tensors)}
    forged = [pickle.dumps(Exploit()), out.getvalue(), b"", endless, tensor_bytes(tensors, {})]
    forged += [tensor_bytes(tensors, no_recipe), tensor_bytes(tensors, other)]
    for raw in forged:
        for name in ("model.safetensors", "codes.safetensors", "step-00000004.ckpt"):
            (tmp_path / name).write_bytes(raw)
        with pytest.raises(InputError):
            run_folder.load_weights(tmp_path / "model.safetensors")
        with pytest.raises(InputError):
            ReadableCodes.load(tmp_path / "codes.safetensors")
        with pytest.raises(InputError):
            use_checkpoint(tmp_path / "step-00000004.ckpt")
    assert not (tmp_path / "executed").exists()
