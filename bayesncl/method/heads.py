"""Heads: modules that map a backbone's h to codes, each with the loss that trains it.

A head has a width `dim`, a `forward` from h to `Features` and a `loss` of those features. Codes
have rows of unit length; in evaluation, a row's code depends only on that row of h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesncl import distributed
from bayesncl.errors import InputError
from bayesncl.method import gates, losses, rng
from bayesncl.method.losses import unit_rows
from bayesncl.recipes import Gate, Model, Objective, check_known

COARSE = 16  # prototypes of the group that sees what the others do not
NEW_SHARE = 0.01  # of a step in the running prevalence, which so spans about 100 steps


class Features(NamedTuple):
    """Output of a head for N rows."""

    h: Tensor  # [N, F]
    z: Tensor  # [N, D] unit rows before the gate
    logits: Tensor | None  # [N, D] of the gates
    mask: Tensor | None  # [N, D] factor of z
    gated: Tensor  # [N, D] the codes: unit_rows(z * mask), or z without a gate
    aux: Tensor | None = None  # further input of the head's loss


class Terms(NamedTuple):
    """The loss of 2B rows, where rows i and i + B are partners, and its parts.

    With several processes, these are this process's shares; they add up to the global values.
    """

    loss: Tensor
    nce: Tensor
    kl: Tensor
    opened: Tensor  # share of open gates


class Head(nn.Module):
    """Base class of heads."""

    dim: int
    kind: gates.GateKind | None = None  # of its gates
    zeros = True  # whether its codes contain exact zeros
    thins = False  # whether `fit` may drop dimensions that duplicate another

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of h [N, F]; in training, noisy gates derive their noise from `uniform`."""
        raise NotImplementedError

    def loss(self, features: Features) -> Terms:
        """The loss of 2B rows of features; for the paper's methods, see `Projector.loss`."""
        raise NotImplementedError

    def start(self, h: Tensor) -> None:
        """Initialize from rows of frozen h [N, F], deterministically; by default do nothing."""

    def parts(self, rows: Tensor) -> list[tuple[Head, Tensor]]:
        """The heads to fit one after the other, each with the rows [N, F] it sees."""
        return [(self, rows)]

    def thin(self, kept: Tensor) -> None:
        """Train on with these dimensions [K] alone; only where `thins`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called once after all parts are fitted; by default do nothing."""

    def draw_uniform(self, index: Tensor, epoch: Tensor, seed: Tensor) -> Tensor | None:
        """Numbers [2B, D] in [0, 1) for the noisy gates of images `index` [B]; None without."""
        if self.kind is None or self.kind.noise is None:
            return None
        keys = rng.make_key(seed, epoch, torch.cat([index, index + 2**40]), stream=7)
        return rng.uniform(keys, self.dim)


class Projector(Head):
    """z = unit_rows(rectify(p(h))), codes unit_rows(z m) with gates m from g(h) or g(z).

    The loss is InfoNCE + lambda KL. Plain and non-negative contrastive learning, with or without
    top-k, are this head without a gate. `prevalence` [D], a running mean of the share of rows on
    which z_k fires, exists only where the loss needs it. `depth` is the number of layers of p.
    """

    prevalence: Tensor | None

    def __init__(
        self, features: int, model: Model, gate: Gate, objective: Objective, depth: int = 2
    ) -> None:
        super().__init__()
        if model.top_k > model.dim:
            raise InputError(f"model.top_k = {model.top_k} exceeds model.dim = {model.dim}")
        check_known("gate.kind", gate.kind, ["none", *gates.GATES])
        check_known("model.rectifier", model.rectifier, gates.RECTIFIERS)
        self.dim = model.dim
        self.options, self.gate_options, self.objective = model, gate, objective
        self.kind = gates.GATES.get(gate.kind)
        self.projector = mlp(features, model.hidden, model.dim, depth=depth)
        hidden = gate.hidden or model.hidden
        inputs = model.dim if gate.input == "z" else features
        self.gate = mlp(inputs, hidden, model.dim, depth=gate.depth) if self.kind else None
        counted = objective.similarity == "ipw" or (self.kind and gate.prior_kind == "prevalence")
        # ones: at first every dimension counts the same
        self.register_buffer("prevalence", torch.ones(model.dim) if counted else None)

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        raw = self.projector(h)  # [N, D]
        if self.options.layer_norm:
            raw = F.layer_norm(gates.at_least_float32(raw), raw.shape[1:])
        z = gates.RECTIFIERS[self.options.rectifier](raw)
        if self.options.top_k:
            z = z * gates.top_k_mask(z, self.options.top_k)
        z = unit_rows(z)
        if self.kind is None or self.gate is None:
            return Features(h, z, None, None, z, raw)
        gate = self.gate_options
        seen = z if gate.input == "z" else h
        logits = self.gate(seen.detach() if gate.detach else seen)
        if not self.training:
            uniform = None  # no noise in evaluation
        elif self.kind.noise is not None and uniform is None:
            uniform = torch.rand_like(gates.at_least_float32(logits))
        mask = self.kind.mask(logits, gate.threshold, gate.temperature, uniform)
        return Features(h, z, logits, mask, unit_rows(z * mask), raw)

    def prior(self) -> float | Tensor:
        """The prior of an open gate; [D] if it follows the prevalence."""
        gate = self.gate_options
        if gate.prior_kind == "fixed" or self.prevalence is None:
            return gate.prior
        return gate.prior * (1 - self.prevalence)

    def loss(self, features: Features) -> Terms:
        gate, o, world = self.gate_options, self.objective, distributed.world_size()
        z = features.gated
        if self.prevalence is not None:
            if self.training:
                with torch.no_grad():
                    fires = (features.z.abs() > losses.ACTIVE).to(self.prevalence.dtype).mean(0)
                    share = distributed.all_reduce_sum(fires) / world
                    self.prevalence.lerp_(share, NEW_SHARE)
            if o.similarity == "ipw":
                z = losses.ipw_rows(z, self.prevalence)
        nce = losses.info_nce_share(z, o.temperature, o.block, o.decoupled)
        kl, opened = torch.zeros_like(nce), torch.ones_like(nce)
        if self.kind is not None and features.logits is not None and features.mask is not None:
            q = self.kind.probability(features.logits, gate.temperature)
            kl = gates.bernoulli_kl(q, self.prior()) / world
            opened = (features.mask > gate.threshold).float().mean()
        return Terms(nce + gate.weight * kl, nce, kl, opened / world)


class Prototypes(Head):
    """Codes are the similarities of a row to D prototypes, which share all rows equally.

    p = unit_rows(W h + b), scores s = p c with unit prototypes c, codes
    unit_rows(softmax(s / softness)). The loss is the cross-entropy between the balanced assignment
    of a row and the prediction softmax(s / temperature) of its partner, both ways. It needs no
    negatives: the balance keeps every prototype in use. With fewer rounds of balancing, prototypes
    gather where rows are dense: each is easier to read, and together they carry less about a row.
    `width` is that of p, at most F.
    """

    zeros = False
    thins = True
    alive: Tensor | None = None  # [K] prototypes in use, until `finish` removes the others
    temperature = 0.1  # of the prediction
    sharpness = 0.05  # temperature of the assignment
    softness = 0.15  # temperature of the codes
    rounds = 2

    def __init__(self, features: int, dim: int, *, width: int = 128) -> None:
        super().__init__()
        self.dim, width = dim, min(width, features)
        self.projection = nn.Linear(features, width)
        self.prototypes = nn.Parameter(random_unit_rows(dim, width))
        if not self.projection.weight.is_meta:
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(features))
        nn.init.zeros_(self.projection.bias)

    @torch.no_grad()
    def start(self, h: Tensor) -> None:
        """Start W at the principal axes of h, prototypes at fixed random directions.

        Prototypes that start on rows or on centers of k-means stay narrow and are harder to read.
        """
        generator = torch.Generator().manual_seed(0)
        count = min(self.projection.out_features, len(h))
        axes = torch.randn(h.shape[1], count, generator=generator, dtype=torch.float32).to(h)
        for _ in range(6):  # subspace iteration: the span of the principal axes is enough
            axes = torch.linalg.qr(h.T @ (h @ axes))[0]  # [F, count]
        self.projection.weight[:count] = axes.T
        shape = self.prototypes.shape
        directions = torch.randn(shape, generator=generator, dtype=torch.float32)
        self.prototypes.copy_(unit_rows(directions))

    def thin(self, kept: Tensor) -> None:
        kept = kept.to(self.prototypes.device)
        self.alive = kept if self.alive is None else self.alive[kept]

    @torch.no_grad()
    def finish(self) -> None:
        """Remove the prototypes that were dropped."""
        if self.alive is not None:
            self.prototypes = nn.Parameter(self.prototypes[self.alive])
            self.dim, self.alive = len(self.prototypes), None

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        c = self.prototypes if self.alive is None else self.prototypes[self.alive]
        s = unit_rows(self.projection(h)) @ unit_rows(c).T  # [N, D]
        if self.training:  # the loss reads only scores; codes would take a fifth of the step
            return Features(h, s, None, None, s, s)
        z = F.normalize((s / self.softness).softmax(1))
        return Features(h, z, None, None, z, s)

    def loss(self, features: Features) -> Terms:
        assert features.aux is not None
        s = features.aux.unflatten(0, (2, -1))  # [2, B, D]
        total, world = distributed.all_reduce_sum, distributed.world_size()
        targets = losses.balanced_assignment(s, self.sharpness, self.rounds, total)
        loss = losses.swapped_cross_entropy(s, targets, self.temperature)
        loss = loss / (len(features.aux) * world)
        return Terms(loss, loss.detach(), torch.zeros_like(loss), torch.ones_like(loss) / world)


class Factors(Head):
    """Groups of prototypes, so that an image of several things has dimensions for each of them.

    Codes by `Prototypes` are clusters: a gull over water gets one meaning, "gull over water". Here
    a small group of prototypes sees all of h, and the others see h without some axes, such as the
    one from land to water (`codes.factors` finds them). Codes are those of all groups, side by
    side, at unit length. Without axes this head is `Prototypes`.
    """

    zeros = False
    groups: Any  # ModuleList of Prototypes
    axes: Tensor | None = None  # [A, F] orthonormal, not seen by the last group

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.dim, self.features = dim, features
        self.make_groups([dim])

    def make_groups(self, sizes: Sequence[int]) -> None:
        """New groups with these numbers of prototypes."""
        self.groups = nn.ModuleList(Prototypes(self.features, size) for size in sizes)

    def divide(self, axes: Tensor, *, keep_groups: bool = False) -> None:
        """Make a first group of `COARSE` prototypes; the others will not see `axes` [A, F].

        With `keep_groups` there are as many groups as before.
        """
        coarse = min(COARSE, self.dim // 4)
        if len(axes) and coarse and not keep_groups:
            self.make_groups([coarse, self.dim - coarse])
        if len(axes) and len(self.groups) > 1:
            self.axes = axes

    def parts(self, rows: Tensor) -> list[tuple[Head, Tensor]]:
        last = rows if self.axes is None else without_axes(rows, self.axes)
        return list(zip(self.groups, [rows, last]))

    @torch.no_grad()
    def finish(self) -> None:
        """Fold the axes into the projection: W (h - A'A h) = (W - W A'A) h."""
        for group in self.groups:
            group.finish()
        self.dim = sum(group.dim for group in self.groups)
        if self.axes is not None:
            weight = self.groups[-1].projection.weight
            weight.copy_(without_axes(weight, self.axes))
            self.axes = None

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        parts: list[Features] = [group(h) for group in self.groups]
        if len(parts) == 1:
            return parts[0]
        z = unit_rows(torch.cat([part.gated for part in parts], 1))
        return Features(h, z, None, None, z)

    def loss(self, features: Features) -> Terms:
        """That of `Prototypes`, for one group; several are fitted one after the other."""
        (group,) = self.groups
        return group.loss(features)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Make the groups of the file, then load them."""
        names = sorted(name for name in state_dict if name.endswith(".prototypes"))
        sizes = [len(state_dict[name]) for name in names]
        if sum(sizes) == self.dim:  # else torch says which shapes differ
            with torch.device("meta"):
                self.make_groups(sizes)
        return super().load_state_dict(state_dict, strict, assign)


class SparseAutoencoder(Head):
    """a = E (h - b) + e; codes are the k largest positive a per row; h ~ b + codes x unit rows.

    With `contrast` > 0, InfoNCE over the codes of partners is added with that weight: contrastive
    sparse representations (CSR). A dimension that has not fired for `patience` steps is trained to
    explain the residual.
    """

    idle: Tensor
    temperature = 0.2  # of InfoNCE
    patience = 20  # steps without firing after which a dimension counts as dead
    revival = 1 / 32  # weight of the loss of dead dimensions

    def __init__(self, features: int, dim: int, *, k: int = 32, contrast: float = 0.0) -> None:
        super().__init__()
        self.dim, self.k, self.contrast = dim, min(k, dim), contrast
        self.encoder = nn.Linear(features, dim)
        self.decoder = nn.Parameter(random_unit_rows(dim, features))
        self.bias = nn.Parameter(torch.zeros(features))
        nn.init.zeros_(self.encoder.bias)
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder)
        self.register_buffer("idle", torch.zeros(dim))  # steps since each dimension fired

    def forward(self, h: Tensor, uniform: Tensor | None = None) -> Features:
        raw = self.encoder(h - self.bias)
        positive = raw.relu()
        mask = gates.top_k_mask(positive, self.k)
        return Features(h, unit_rows(positive), None, mask, unit_rows(positive * mask), raw)

    def decode(self, codes: Tensor) -> Tensor:
        """[N, F] from codes [N, D] before they are scaled to unit length."""
        return codes @ F.normalize(self.decoder, dim=1)

    def loss(self, features: Features) -> Terms:
        raw, mask, h = features.aux, features.mask, features.h
        assert raw is not None and mask is not None
        numbers = h.numel() * distributed.world_size()
        fired = raw.relu() * mask
        rest = h - self.bias - self.decode(fired)  # [2B, F]
        squares = rest.square().sum() / numbers
        dead = self.revival * self._dead_loss(raw, rest.detach(), fired.detach())
        loss = squares + dead / numbers
        if self.contrast:
            loss = loss + self.contrast * losses.info_nce_share(features.gated, self.temperature)
        opened = (fired.detach() > 0).float().mean() / distributed.world_size()
        return Terms(loss, squares.detach(), torch.zeros_like(loss), opened)

    def _dead_loss(self, raw: Tensor, rest: Tensor, fired: Tensor) -> Tensor:
        """Squared error of the k strongest dead dimensions, as an explanation of the residual."""
        counts = distributed.all_reduce_sum((fired > 0).float().sum(0))
        with torch.no_grad():
            self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + 1))
        dead = self.idle >= self.patience
        strength = torch.where(dead, raw, -torch.inf)
        chosen = gates.top_k_mask(strength, self.k) * dead
        return (self.decode(raw.relu() * chosen) - rest).square().sum() * dead.any()


def without_axes(rows: Tensor, axes: Tensor) -> Tensor:
    """Rows [N, F] without their components along orthonormal axes [A, F]."""
    return torch.addmm(rows, rows @ axes.T, axes, alpha=-1)


def random_unit_rows(rows: int, width: int) -> Tensor:
    """Random rows of unit length; empty on the meta device, where torch would import sympy."""
    empty = torch.empty(rows, width)
    return empty if empty.is_meta else F.normalize(torch.randn(rows, width))


def mlp(inputs: int, hidden: int, outputs: int, *, depth: int) -> nn.Sequential:
    """Linear layers with ReLU between; widths inputs, hidden, (hidden / 2,) outputs."""
    widths = [inputs, *[hidden, max(hidden // 2, 1)][: depth - 1], outputs]
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build_head(features: int, model: Model, gate: Gate, objective: Objective) -> Head:
    """The head of a recipe: the paper's projector with gates, or one of `HEADS`."""
    check_known("model.head", model.head, ["projector", *HEADS])
    if model.head == "projector":
        return Projector(features, model, gate, objective)
    return HEADS[model.head](features, model.dim)


# the methods of `ReadableCodes` and values of `model.head`: functions of (F, D) that build a head
HEADS: dict[str, Callable[[int, int], Head]] = {
    "prototypes": Prototypes,
    "factors": Factors,
    "ncl": lambda f, d: Projector(f, Model(dim=d), Gate(kind="none"), Objective(), depth=1),
    "bayesncl": lambda f, d: Projector(f, Model(dim=d), Gate(depth=1), Objective(), depth=1),
    "sae": SparseAutoencoder,
    "csr": lambda f, d: SparseAutoencoder(f, d, k=16, contrast=1.0),
}
