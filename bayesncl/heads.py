"""What maps a backbone's h to codes, and the loss that trains it.

A head is a module with a width `dim`, a `forward` from h to `Features` and a `loss` of those features. Rows of codes
have unit length, and in evaluation a row's code depends on that row of h alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import distributed
from .errors import InputError
from .gates import (
    GATES,
    GateKind,
    at_least_float32,
    bernoulli_kl,
    draw_uniform,
    gate_probability,
    rectify,
    top_k_mask,
)
from .objective import info_nce_sum, normalise
from .recipes import Gate, Model, Objective


class Features(NamedTuple):
    """What a head says of N rows."""

    h: Tensor  # [N, F]
    z: Tensor  # [N, D] unit length; no gate
    logits: Tensor | None  # [N, D] of the gates
    mask: Tensor | None  # [N, D] what multiplied z
    gated: Tensor  # [N, D] the codes: normalise(z * mask); z itself where there is no gate
    aux: Tensor | None = None  # what else the head's loss reads


class Terms(NamedTuple):
    """The loss of a batch of 2B rows, row i and row i + B partners.

    With several processes these are the shares of this one, which add up to those of the global batch.
    """

    loss: Tensor
    nce: Tensor
    kl: Tensor
    opened: Tensor  # share of open gates


class Head(nn.Module):
    """Maps h to codes. Heads differ in what they say and in what they learn from; this is what they share."""

    dim: int
    kind: GateKind | None = None  # of its gates, if it has any

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of h [N, F]; `uniform` [N, D] feeds noisy gates their noise in training."""
        raise NotImplementedError

    def loss(self, features: Features) -> Terms:
        """The terms of the loss of 2B rows of features."""
        raise NotImplementedError


class Projector(Head):
    """z = normalise(rectify(p(h))), gates m from g(h), codes normalise(z m); loss InfoNCE + lambda KL.

    Plain and non-negative contrastive learning, with or without top-k, are this head without a gate.

    Parameters
    ----------
    features : F, the width of h.
    model : hidden width, D, rectifier, layer norm and top-k of a recipe.
    gate : the gate of a recipe; of kind ``none`` there is none.
    objective : temperature and block of InfoNCE.
    """

    def __init__(self, features: int, model: Model, gate: Gate, objective: Objective) -> None:
        super().__init__()
        if model.top_k > model.dim:
            raise InputError(f"model.top_k = {model.top_k} is more than model.dim = {model.dim}")
        self.dim = model.dim
        self.options, self.gate_options, self.objective = model, gate, objective
        self.kind = GATES.get(gate.kind)  # a recipe without gates says none
        self.projector = mlp(features, model.hidden, model.dim, depth=2)
        self.gate = mlp(features, gate.hidden or model.hidden, model.dim, depth=gate.depth) if self.kind else None

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        z = self.projector(h)
        if self.options.layer_norm:
            z = F.layer_norm(at_least_float32(z), z.shape[1:])
        z = rectify(z, self.options.rectifier)
        if self.options.top_k:
            z = z * top_k_mask(z, self.options.top_k)
        z = normalise(z)
        if self.kind is None or self.gate is None:
            return Features(h, z, None, None, z)
        gate = self.gate_options
        logits = self.gate(h.detach() if gate.detach else h)
        if not self.training:
            uniform = None  # evaluation never draws noise
        elif self.kind.noisy and uniform is None:
            uniform = draw_uniform(logits)
        mask = self.kind.mask(logits, gate.threshold, gate.temperature, uniform)
        return Features(h, z, logits, mask, normalise(z * mask))

    def loss(self, features: Features) -> Terms:
        z, gate, world = features.gated, self.gate_options, distributed.world_size()
        everyone, own, partner = gather_partners(z)
        nce = info_nce_sum(z, everyone, own, partner, self.objective.temperature, self.objective.block) / len(everyone)
        kl, opened = torch.zeros_like(nce), torch.ones_like(nce)
        if features.logits is not None and features.mask is not None:
            kl = bernoulli_kl(gate_probability(features.logits, gate.temperature), gate.prior) / world
            opened = (features.mask > gate.threshold).float().mean()
        return Terms(nce + gate.weight * kl, nce, kl, opened / world)


def gather_partners(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all processes [world * 2B, D]; for each of our rows z [2B, D], where it and its partner are there."""
    n = len(z)
    rows = torch.arange(n, device=z.device)
    everyone = distributed.all_gather_rows(z)
    offset = distributed.rank() * n
    return everyone, rows + offset, (rows + n // 2) % n + offset


def mlp(inputs: int, hidden: int, outputs: int, *, depth: int) -> nn.Sequential:
    """Linear layers with ReLU between: inputs, hidden, (hidden / 2,) outputs for depth 1, 2, 3."""
    widths = [inputs, *[hidden, max(hidden // 2, 1)][: depth - 1], outputs]
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
