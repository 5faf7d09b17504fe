"""Numbers at their limits: training stays finite and sane, or stops and says what is not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

import bayesncl.train as loop
from bayesncl import info_nce
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.evaluate import evaluate
from bayesncl.gates import bernoulli_kl, open_gates
from bayesncl.model import Encoder
from bayesncl.objective import normalise
from tests.conftest import tiny_images, tiny_recipe
from tests.faults.harness import Outcome, run

SANE = 1e3  # no weight of a tiny model comes near this in three epochs


def numbers(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Each case in a child of its own."""
    outcome = Outcome("numbers at their limits")
    flat = Images(np.full((40, 3, 16, 16), 128, np.uint8))
    half = Images(np.repeat(tiny_images(20).pixels, 2, 0))
    cases: dict[str, tuple[list[str], Images]] = {
        "temperature 0.01": (["objective.temperature=0.01"], tiny_images()),
        "temperature 0.001": (["objective.temperature=0.001"], tiny_images()),
        "batch of 2": (["run.batch=2"], tiny_images(9)),
        "constant images": ([], flat),
        "every image twice": ([], half),
        "all gates closed": (["gate.threshold=1.0"], tiny_images()),
        "nearly all gates closed": (["gate.threshold=0.53"], tiny_images()),
        "one dimension": (["model.dim=1"], tiny_images()),
        "gate temperature 0.001": (["gate.temperature=0.001"], tiny_images()),
        "gate rate 100": (["gate.lr=100"], tiny_images()),
        "exp overflows": (["model.rectifier=exp", "optimiser.lr=1e6", "optimiser.clip=false"], tiny_images()),
        "rate 1e20": (["optimiser.lr=1e20", "optimiser.clip=false"], tiny_images()),
    }
    for what, (changes, images) in cases.items():
        may_stop = "rate" in what or "overflows" in what

        def work() -> None:
            try:
                model = loop.train(tiny_recipe("bayesncl", *changes), images, folder / what)  # noqa: B023
            except InputError as stop:
                assert may_stop, stop  # noqa: B023
                assert "is not finite at step" in str(stop)
                assert "checkpoint" in str(stop)
                return
            largest = max(float(p.detach().abs().max()) for p in model.parameters())
            assert largest < SANE or (may_stop and np.isfinite(largest)), largest  # noqa: B023
            lines = (folder / what / "metrics.jsonl").read_text()  # noqa: B023
            assert "NaN" not in lines and "Infinity" not in lines

        ended = run(work, folder)
        outcome.check(ended.status == 0, f"{what}: {ended.text[-400:]}")
    for what, work in (("half precision", half_precision), ("zero rows", zero_rows), ("one class", one_class)):
        ended = run(work, folder)
        outcome.check(ended.status == 0, f"{what}: {ended.text[-400:]}")
    return outcome


def half_precision() -> None:
    """The largest float16 and bfloat16 numbers go through normalisation, InfoNCE and KL without overflow."""
    for dtype in (torch.float16, torch.bfloat16):
        z = (torch.rand(8, 6) + 0.5).to(dtype) * (torch.finfo(dtype).max / 2 if dtype == torch.float16 else 1e18)
        rows = normalise(z)
        logits = torch.linspace(-1, 1, 48).view(8, 6).to(dtype) * 6e4
        assert rows.norm(dim=1).allclose(torch.ones(8))
        assert info_nce(rows, 0.01).isfinite()
        assert bernoulli_kl(torch.sigmoid(logits.float()), 0.8).isfinite()
        assert open_gates(logits, "ste").isfinite().all()


def zero_rows() -> None:
    """A row whose gates are all closed stays zero and sends no gradient worth the name."""
    z = torch.rand(6, 4, requires_grad=True)
    mask = torch.ones(6, 4)
    mask[2] = 0
    mask.requires_grad_()
    loss = info_nce(normalise(normalise(z) * mask), 0.2)
    loss.backward()
    assert loss.isfinite()
    for g in (z.grad, mask.grad):
        assert g is not None
        assert float(g.abs().max()) < 1e3, float(g.abs().max())


def one_class() -> None:
    images = tiny_images(20)
    single = Images(images.pixels, np.zeros(20, np.int64), class_names=("only",))
    try:
        evaluate(Encoder(tiny_recipe()), single, single)
    except InputError as error:
        assert "one class only" in str(error)
    else:
        raise AssertionError("no refusal")
