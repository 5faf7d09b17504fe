"""The encoder: a backbone h = f(x) and a head that turns h into codes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesncl.data.decode import Pictures, Square, as_pixels
from bayesncl.method.backbones import build_backbone, update_running_statistics
from bayesncl.method.heads import Features, Projector, build_head
from bayesncl.method.losses import check_n_active, keep_strongest
from bayesncl.recipes import Recipe


class Encoder(nn.Module):
    """A backbone h = f(x) with the head that turns h into codes.

    Parameters
    ----------
    recipe : `model`, `gate` and `objective` define the modules; `data.mean` and `data.std`
        normalize the pixels.
    backbone : replaces the recipe's backbone: maps [N, 3, H, W] to [N, F] and has `.features` = F.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Recipe, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        self.backbone = backbone or build_backbone(recipe.model)
        features = int(self.backbone.features)  # type: ignore[arg-type]
        self.head = build_head(features, recipe.model, recipe.gate, recipe.objective)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(recipe.data, name)).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    @property
    def projector(self) -> nn.Module:
        """The layers from h to z; of another head than the paper's, the head."""
        return self.head.projector if isinstance(self.head, Projector) else self.head

    @property
    def gate(self) -> nn.Module | None:
        """The layers to the gate logits; None without gates."""
        return self.head.gate if isinstance(self.head, Projector) else None

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of normalized pixels x [N, 3, H, W]; noisy gates take `uniform` [N, D]."""
        return self.head(self.embed(x), uniform)

    def embed(self, x: Tensor) -> Tensor:
        """h [N, F] of normalized pixels x [N, 3, H, W]; in training, updates running statistics."""
        h: Tensor = self.backbone(x)
        if self.training:
            update_running_statistics(self.backbone)
        return h

    def normalize_pixels(self, x: Tensor) -> Tensor:
        """Convert uint8 pixels, or floats in [0, 1], to the input of `forward`."""
        if x.dtype == torch.uint8:
            x = x.float() / 255
        return (x - self.mean) / self.std

    @torch.inference_mode()
    def encode(
        self, images: Pictures, gated: bool = True, n_active: int | None = None, batch: int = 256
    ) -> Tensor:
        """Compute the codes of images in eval mode.

        Parameters
        ----------
        images : one or many: uint8, or float in [0, 1], [N, 3, H, W] or [N, H, W, 3], gray with
            one channel; or PIL images or paths, resized and cropped as in training.
        gated : apply the gates, if the model has any.
        n_active : keep only the `n_active` strongest dimensions per image, renormalized.
        batch : images per forward pass.

        Returns
        -------
        [N, D] float32 on the CPU; rows have unit length, or are zero if every gate is closed.
        """
        pixels = as_pixels(images, Square(self.recipe.data.size, self.recipe.views.size))
        check_n_active(n_active, self.head.dim)
        rows = []
        with in_eval_mode(self):
            for part in pixels.split(batch):
                features = self(self.normalize_pixels(part.to(self.mean.device)))
                z = features.gated if gated else features.z
                rows.append(keep_strongest(z, n_active).cpu())
        return torch.cat(rows) if rows else torch.empty(0, self.head.dim)


def build_model(recipe: Recipe) -> Encoder:
    """Build an encoder whose initial weights depend only on the recipe and its seed."""
    with torch.random.fork_rng(devices=[]):
        # the CPU generator only: torch.manual_seed would also reset those of the GPUs
        torch.default_generator.manual_seed(recipe.run.seed)
        return Encoder(recipe)


@contextmanager
def in_eval_mode(model: object) -> Iterator[None]:
    """Put a module in eval mode, then restore every submodule's mode; ignore other callables."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
