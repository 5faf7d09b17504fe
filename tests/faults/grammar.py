"""What spoilt files are made of: values, trees, headers and tensors, nearly right."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

ATOMS: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**80, 10**400, -1.5, 1e308, 1e400, float("nan"), "", "x", "\0",
    "../../x", "[red]", "\x1b[2J", "<b>", "9" * 5000, "\ud800", "٣", [], {}, "1",
)  # fmt: skip
DESCRS = (
    "<f4", "<f8", ">f4", "<f2", "<i8", ">i2", "|b1", "|u1", "<U3", ">U2", "|S4", "<c8", "<M8[s]", "|O", "|V0", "<U0",
    "|V8", "<f16", "x", "<f4,<f4", [("a", "<f4")], "<U999999999",
)  # fmt: skip
SHAPES = ((6,), (6, 3), (6, 4, 4, 3), (6, 3, 4, 4), (0,), (0, 3), (), (6, 0), (-1, 3), (2**40, 3), (10**17,), (2**63,))


def value(rng: random.Random, depth: int = 3) -> Any:
    """Any JSON value."""
    if depth == 0 or rng.random() < 0.6:
        return rng.choice(ATOMS)
    if rng.random() < 0.5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {str(rng.choice(ATOMS)): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def bend(tree: Any, rng: random.Random) -> Any:
    """The tree with a few nodes replaced, dropped, doubled or added."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        node, last = tree, None
        while isinstance(node, dict | list) and node and rng.random() < 0.85:
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            last, node = (node, key), node[key]
        if last is None:
            tree = value(rng) if rng.random() < 0.2 else tree
            continue
        parent, key = last
        match rng.randrange(4):
            case 0 | 1:
                parent[key] = value(rng)
            case 2:
                del parent[key]
            case 3 if isinstance(parent, dict):
                parent[str(rng.choice(ATOMS))] = value(rng)
            case 3:
                parent += parent[: rng.randint(1, 100)]
    return tree


def spoil(data: bytes, rng: random.Random, often: float = 0.3) -> bytes:
    """Sometimes: bytes changed, taken out, put in, or cut off."""
    if rng.random() > often or not data:
        return data
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(spoilt) + 1)
        match rng.randrange(4):
            case 0:
                spoilt[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del spoilt[place : place + rng.randint(1, 40)]
            case 2:
                spoilt[place:place] = rng.randbytes(rng.randint(1, 8))
            case 3 if rng.random() < 0.3:
                del spoilt[place:]
    return bytes(spoilt)


def text_of(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def npy(rng: random.Random) -> bytes:
    """A header and a body that need not belong together."""
    descr, shape = rng.choice(DESCRS), rng.choice(SHAPES)
    if rng.random() < 0.6:  # one that is sound
        made = np.array(rng.choices(range(5), k=int(np.prod(s := rng.choice(SHAPES[:4])))))
        out = io.BytesIO()
        np.save(out, made.reshape(s).astype(rng.choice(("<f4", "<i8", "|u1", "<U3", ">f8"))))
        return spoil(out.getvalue(), rng, 0.2)
    fields = {"descr": descr, "fortran_order": rng.random() < 0.3, "shape": shape}
    header = repr(fields).encode() if rng.random() < 0.9 else spoil(repr(fields).encode(), rng, 1)
    header += b" " * rng.choice((0, 1, 20_000 if rng.random() < 0.05 else 3)) + b"\n"
    length = struct.pack("<H", min(len(header), 65535) if rng.random() < 0.9 else rng.randrange(65536))
    version = rng.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\7\1"))
    return b"\x93NUMPY" + version + length + header + rng.randbytes(rng.choice((0, 24, 288, 1200)))


def bend_tensors(tensors: dict[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
    """Now and then one with other values, another shape or type, one less, or one more."""
    tensors = dict(tensors)
    for name in rng.sample(sorted(tensors), rng.choice((0, 0, 1, 2))):
        t = tensors[name]
        match rng.randrange(5):
            case 0:
                tensors[name] = torch.full_like(t, rng.choice((1e38, -1e38, float("nan"), float("inf"), 0.0))) if (
                    t.is_floating_point()) else torch.full_like(t, -1)  # fmt: skip
            case 1:
                tensors[name] = t.to(rng.choice((torch.float16, torch.float64, torch.int64, torch.bfloat16)))
            case 2:
                tensors[name] = t.reshape(-1)[: rng.randint(0, 3)].clone()
            case 3:
                del tensors[name]
            case 4:
                tensors[f"{name}x"] = t.clone()
    return tensors


def make_json(tree: Any, rng: random.Random, path: Path) -> None:
    path.write_bytes(spoil(text_of(bend(tree, rng)), rng, 0.15))
