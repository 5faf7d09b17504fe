"""What maps a backbone's h to codes, and the loss that trains it.

A head is a module with a width `dim`, a `forward` from h to `Features` and a `loss` of those features. Rows of codes
have unit length, and in evaluation a row's code depends on that row of h alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import distributed
from .errors import InputError
from .gates import GATES, RECTIFIERS, GateKind, at_least_float32, bernoulli_kl, gate_probability, top_k_mask
from .objective import balanced_assignment, info_nce_sum, normalise, swapped_cross_entropy
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
    zeros = True  # whether entries of its codes are exactly 0

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of h [N, F]; `uniform` [N, D] feeds noisy gates their noise in training."""
        raise NotImplementedError

    def loss(self, features: Features) -> Terms:
        """The terms of the loss of 2B rows of features."""
        raise NotImplementedError

    def start(self, h: Tensor) -> None:
        """Begin from some rows of frozen h [N, F], if the head can; always in the same place for the same rows."""


class Projector(Head):
    """z = normalise(rectify(p(h))), gates m from g(h), codes normalise(z m); loss InfoNCE + lambda KL.

    Plain and non-negative contrastive learning, with or without top-k, are this head without a gate.
    `features` is F, the width of h, and `depth` counts the layers of p; the rest are parts of a recipe.
    """

    def __init__(self, features: int, model: Model, gate: Gate, objective: Objective, depth: int = 2) -> None:
        super().__init__()
        if model.top_k > model.dim:
            raise InputError(f"model.top_k = {model.top_k} is more than model.dim = {model.dim}")
        self.dim = model.dim
        self.options, self.gate_options, self.objective = model, gate, objective
        self.kind = GATES.get(gate.kind)  # a recipe without gates says none
        self.projector = mlp(features, model.hidden, model.dim, depth=depth)
        self.gate = mlp(features, gate.hidden or model.hidden, model.dim, depth=gate.depth) if self.kind else None

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        raw = self.projector(h)  # [N, D]
        if self.options.layer_norm:
            raw = F.layer_norm(at_least_float32(raw), raw.shape[1:])
        z = RECTIFIERS[self.options.rectifier](raw)
        if self.options.top_k:
            z = z * top_k_mask(z, self.options.top_k)
        z = normalise(z)
        if self.kind is None or self.gate is None:
            return Features(h, z, None, None, z, raw)
        gate = self.gate_options
        logits = self.gate(h.detach() if gate.detach else h)
        if not self.training:
            uniform = None  # evaluation never draws noise
        elif self.kind.noise is not None and uniform is None:
            uniform = torch.rand_like(at_least_float32(logits))
        mask = self.kind.mask(logits, gate.threshold, gate.temperature, uniform)
        return Features(h, z, logits, mask, normalise(z * mask), raw)

    def loss(self, features: Features) -> Terms:
        z, gate, world = features.gated, self.gate_options, distributed.world_size()
        everyone, own, partner = gather_partners(z)
        how = self.objective
        nce = info_nce_sum(z, everyone, own, partner, how.temperature, how.block, how.decoupled) / len(everyone)
        kl, opened = torch.zeros_like(nce), torch.ones_like(nce)
        if features.logits is not None and features.mask is not None:
            kl = bernoulli_kl(gate_probability(features.logits, gate.temperature), gate.prior) / world
            opened = (features.mask > gate.threshold).float().mean()
        return Terms(nce + gate.weight * kl, nce, kl, opened / world)


class Prototypes(Head):
    """Codes are a row's likeness to D prototypes, which share all rows equally among them.

    p = normalise(W h + b), scores s = p c with unit prototypes c, codes normalise(softmax(s / softness)).
    Loss: cross-entropy between the balanced assignment of a row and the prediction softmax(s / temperature) of its
    partner, both ways; it has no negatives, and the balance keeps every prototype in use.

    Parameters
    ----------
    width : of p; at most F.
    temperature : of the prediction.
    rounds : of balancing. Fewer leave prototypes free to gather where rows are dense: each is read better, and together
        they tell less of a row.
    """

    zeros = False
    sharpness = 0.05  # temperature of the assignment, below that of the prediction
    softness = 0.15  # temperature of the codes

    def __init__(
        self, features: int, dim: int, *, width: int = 128, temperature: float = 0.1, rounds: int = 2
    ) -> None:
        super().__init__()
        self.dim, self.temperature, self.rounds = dim, temperature, rounds
        width = min(width, features)
        self.projection = nn.Linear(features, width)
        self.prototypes = nn.Parameter(unit_rows(dim, width))
        if not self.projection.weight.is_meta:
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(features))
        nn.init.zeros_(self.projection.bias)

    @torch.no_grad()
    def start(self, h: Tensor) -> None:
        """W begins as the principal axes of h; prototypes in random directions, the same ones every time.

        Prototypes that begin on rows, or on the centres of k-means, stay narrow: their classes are read less well.
        """
        generator = torch.Generator().manual_seed(0)
        count = min(self.projection.out_features, len(h))
        axes = torch.randn(h.shape[1], count, generator=generator, dtype=torch.float32).to(h)
        for _ in range(6):  # subspace iteration: towards the principal axes, up to a turn that no cosine sees
            axes = torch.linalg.qr(h.T @ (h @ axes))[0]  # [F, count]
        self.projection.weight[:count] = axes.T
        directions = torch.randn(self.prototypes.shape, generator=generator, dtype=torch.float32)
        self.prototypes.copy_(normalise(directions))

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        s = normalise(self.projection(h)) @ normalise(self.prototypes).T  # [N, D]
        if self.training:  # the loss reads scores alone, and codes would cost a fifth of the step
            return Features(h, s, None, None, s, s)
        z = F.normalize((s / self.softness).softmax(1))
        return Features(h, z, None, None, z, s)

    def loss(self, features: Features) -> Terms:
        assert features.aux is not None
        s = features.aux.unflatten(0, (2, -1))  # [2, B, D]
        targets = balanced_assignment(s, self.sharpness, self.rounds, distributed.all_reduce_sum)
        loss = swapped_cross_entropy(s, targets, self.temperature) / (len(features.aux) * distributed.world_size())
        return Terms(loss, loss.detach(), torch.zeros_like(loss), torch.ones_like(loss) / distributed.world_size())


class SparseAutoencoder(Head):
    """a = E (h - b) + e, codes are the k largest positive a of a row, h is read back as b + codes x unit columns.

    InfoNCE over the codes of partners is added with the weight `contrast`: contrastive sparse representations (CSR).
    A dimension that has not fired for `patience` steps learns to explain what the others leave over.
    """

    idle: Tensor
    temperature = 0.2  # of InfoNCE
    patience = 20  # steps without firing after which a dimension counts as dead
    revival = 1 / 32  # weight of what the dead learn from

    def __init__(self, features: int, dim: int, *, k: int = 32, contrast: float = 0.0) -> None:
        super().__init__()
        self.dim, self.k, self.contrast = dim, min(k, dim), contrast
        self.encoder = nn.Linear(features, dim)
        self.decoder = nn.Parameter(unit_rows(dim, features))
        self.bias = nn.Parameter(torch.zeros(features))
        nn.init.zeros_(self.encoder.bias)
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder)
        self.register_buffer("idle", torch.zeros(dim))  # steps since each dimension fired

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        raw = self.encoder(h - self.bias)
        positive = raw.relu()
        mask = top_k_mask(positive, self.k)
        return Features(h, normalise(positive), None, mask, normalise(positive * mask), raw)

    def decode(self, codes: Tensor) -> Tensor:
        """[N, F] from codes [N, D] before they are brought to unit length."""
        return codes @ F.normalize(self.decoder, dim=1)

    def loss(self, features: Features) -> Terms:
        raw, mask, h = features.aux, features.mask, features.h
        assert raw is not None and mask is not None
        numbers = h.numel() * distributed.world_size()
        fired = raw.relu() * mask
        rest = h - self.bias - self.decode(fired)  # [2B, F]
        squares = rest.square().sum() / numbers
        loss = squares + self.revival * self._revive(raw, rest.detach(), fired.detach()) / numbers
        if self.contrast:
            everyone, own, partner = gather_partners(features.gated)
            nce = info_nce_sum(features.gated, everyone, own, partner, self.temperature) / len(everyone)
            loss = loss + self.contrast * nce
        opened = (fired.detach() > 0).float().mean() / distributed.world_size()
        return Terms(loss, squares.detach(), torch.zeros_like(loss), opened)

    def _revive(self, raw: Tensor, rest: Tensor, fired: Tensor) -> Tensor:
        """How badly the k strongest of the dead dimensions explain what is left over; counts who is dead first."""
        counts = distributed.all_reduce_sum((fired > 0).float().sum(0))
        with torch.no_grad():
            self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + 1))
        dead = self.idle >= self.patience
        strength = torch.where(dead, raw, -torch.inf)
        chosen = top_k_mask(strength, self.k) * dead
        return (self.decode(raw.relu() * chosen) - rest).square().sum() * dead.any()


def gather_partners(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all processes [world * 2B, D]; for each of our rows z [2B, D], where it and its partner are there."""
    n = len(z)
    rows = torch.arange(n, device=z.device)
    everyone = distributed.all_gather_rows(z)
    offset = distributed.rank() * n
    return everyone, rows + offset, (rows + n // 2) % n + offset


def unit_rows(rows: int, width: int) -> Tensor:
    """Random rows of unit length; on the meta device no more than their shape, for which torch would import sympy."""
    empty = torch.empty(rows, width)
    return empty if empty.is_meta else F.normalize(torch.randn(rows, width))


def mlp(inputs: int, hidden: int, outputs: int, *, depth: int) -> nn.Sequential:
    """Linear layers with ReLU between: inputs, hidden, (hidden / 2,) outputs for depth 1, 2, 3."""
    widths = [inputs, *[hidden, max(hidden // 2, 1)][: depth - 1], outputs]
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# what `ReadableCodes` offers by name: (F, D) to a head
HEADS: dict[str, Callable[[int, int], Head]] = {
    "prototypes": Prototypes,
    "ncl": lambda features, dim: Projector(features, Model(dim=dim), Gate(kind="none"), Objective(), depth=1),
    "bayesncl": lambda features, dim: Projector(features, Model(dim=dim), Gate(depth=1), Objective(), depth=1),
    "sae": SparseAutoencoder,
    "csr": lambda features, dim: SparseAutoencoder(features, dim, k=16, contrast=1.0),
}
