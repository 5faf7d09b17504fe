"""The loop: deterministic, resumable after a kill, leaves cleanly, stops with a name on numbers that are not finite."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesncl.train as loop
from bayesncl import checkpoint, heads
from bayesncl.backbones import BasicBlock, Bottleneck, ViewBatchNorm2d, build_backbone, set_views
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.feed import ahead, batch_rows, batches, epoch_order
from bayesncl.model import Encoder, load
from bayesncl.progress import Display
from bayesncl.recipes import Model
from bayesncl.run import Run
from tests.conftest import TINY, Stopped, stop_after, tiny_images, tiny_recipe

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
CHANGES = [word for text in (*TINY, "data.train_images=64", "run.epochs=20") for word in ("--set", text)]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "BAYESNCL_REVISION": "tests"}


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]


def test_same_recipe_same_bytes_and_a_whole_folder(tmp_path: Path, images: Images) -> None:
    for name in "ab":
        loop.train(tiny_recipe(), images, tmp_path / name, device=CPU)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    loop.train(tiny_recipe("bayesncl", "run.seed=1"), images, tmp_path / "c", device=CPU)
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()
    assert {p.name for p in (tmp_path / "a").iterdir()} == {
        "checkpoints",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.json",
    }
    environment = json.loads((tmp_path / "a/environment.json").read_text())
    assert {"torch", "python", "device", "processes", "command", "date"} <= environment.keys()


def test_metrics(tmp_path: Path, images: Images) -> None:
    """70 images in batches of 16 are 4 steps an epoch, 12 in all; a report every 2."""
    model = loop.train(tiny_recipe(), images, tmp_path, device=CPU)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10, 12]
    assert [line["epoch"] for line in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    for line in found:
        assert line["loss"] == pytest.approx(line["nce"] + model.recipe.gate.weight * line["kl"], rel=1e-6)
        assert 0 <= line["open"] <= 1
        assert 0 <= line["near_dead"] <= line["active"] <= 12
        assert line["images_per_second"] > 0
    assert not model.training


@pytest.mark.parametrize("method", ["cl", "ncl", "ncl-topk", "bayesncl-gs", "bayesncl-soft", "bayesncl-nodetach"])
def test_every_method_trains(tmp_path: Path, images: Images, method: str) -> None:
    changes = ["model.top_k=5"] if method == "ncl-topk" else []
    trained = loop.train(tiny_recipe(method, "run.epochs=1", *changes), images, tmp_path, device=CPU)
    assert all(p.isfinite().all() for p in trained.parameters())
    torch.testing.assert_close(
        load(tmp_path).encode(images.pixels), trained.encode(images.pixels), rtol=1e-4, atol=1e-5
    )


def test_what_after_epoch_returns_is_recorded(tmp_path: Path, images: Images) -> None:
    loop.train(
        tiny_recipe(), images, tmp_path, device=CPU, after_epoch=lambda _, epoch: {"kind": "x"} if epoch == 2 else None
    )
    assert [line["step"] for line in lines(tmp_path) if "kind" in line] == [8]


def test_killed_process_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """A real process, SIGKILL twice at random moments after its first checkpoint, then resumed to the end."""
    first = [sys.executable, "-m", "bayesncl", "train", "scenes", "--quiet", *CHANGES]
    subprocess.run([*first, "--out", tmp_path / "a"], cwd=ROOT, env=ENVIRONMENT, check=True)
    again = [sys.executable, "-m", "bayesncl", "resume", str(tmp_path / "b"), "--quiet"]
    rng = random.Random(0)
    for command in ([*first, "--out", str(tmp_path / "b")], again):
        child = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT)
        while not checkpoint.listed(Run(tmp_path / "b")) and child.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        child.kill()
        child.wait()
    subprocess.run(again, cwd=ROOT, env=ENVIRONMENT, check=True)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert [line["step"] for line in lines(tmp_path / "b")] == list(range(2, 81, 2))


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_leaves_with_130(tmp_path: Path, sign: int) -> None:
    changes = [
        word
        for text in (*TINY, "data.train_images=64", "run.epochs=2000", "run.checkpoint_every=2000")
        for word in ("--set", text)
    ]
    command = [sys.executable, "-m", "bayesncl", "train", "scenes", "--out", str(tmp_path / "run"), *changes]
    child = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run/metrics.jsonl").exists() or not (tmp_path / "run/metrics.jsonl").read_text():
        time.sleep(0.01)
    child.send_signal(sign)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    found = re.search(r"stopped after (\d+) of 8000 steps; to continue: bayesncl resume", stderr)
    assert found
    assert [p.name for p in checkpoint.listed(Run(tmp_path / "run"))] == [f"step-{int(found[1]):08d}.ckpt"]
    assert not (tmp_path / "run/.lock").exists()
    assert not (tmp_path / "run/model.safetensors").exists()


def test_a_loss_that_is_not_finite_stops_by_name(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kl is NaN from step 6 (counted from 0) on; the checkpoint of step 4 is the last good one, also after a resume."""
    kl = heads.bernoulli_kl
    calls = 0

    def poisoned(*arguments: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return kl(*arguments) * (float("nan") if calls > 6 else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(heads, "bernoulli_kl", poisoned)
    message = r"kl is not finite at step {}; the last good checkpoint is .*step-{:08d}\.ckpt"
    with pytest.raises(InputError, match=message.format(6, 4)):
        loop.train(tiny_recipe(), images, tmp_path, device=CPU)
    calls = 2  # resumed at step 4: good in 4, 5, 6, 7; reported with the steps of the whole run
    with pytest.raises(InputError, match=message.format(8, 8)):
        loop.train(tiny_recipe("bayesncl", "run.log_every=2"), images, tmp_path, device=CPU)
    assert [p.name for p in checkpoint.listed(Run(tmp_path))] == ["step-00000004.ckpt", "step-00000008.ckpt"]


def test_bad_numbers_are_never_checkpointed(tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "info_nce_sum", lambda z, *_: z.sum() * float("inf"))
    with pytest.raises(InputError, match="nce is not finite at step 0; there is no checkpoint yet"):
        loop.train(tiny_recipe("bayesncl", "run.log_every=1000"), images, tmp_path, device=CPU)
    assert checkpoint.listed(Run(tmp_path)) == []


def test_out_of_memory_names_what_to_lower(tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "losses", exhausted)
    with pytest.raises(InputError, match=r"batch 16, 16 px, 12 dimensions: lower run\.batch"):
        loop.train(tiny_recipe(), images, tmp_path, device=CPU)


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_the_cpu_can_be_asked_for(name: str) -> None:
    assert loop.find_device(name).type == "cpu"


def test_locked_folder_and_another_recipe_are_refused(tmp_path: Path, images: Images) -> None:
    with Run(tmp_path).lock(), pytest.raises(InputError, match="is in use by another process"):
        loop.train(tiny_recipe(), images, tmp_path, device=CPU)
    loop.train(tiny_recipe(), images, tmp_path, device=CPU)
    with pytest.raises(InputError, match="of another recipe"):
        loop.train(tiny_recipe("bayesncl", "gate.prior=0.5"), images, tmp_path, device=CPU)


def test_a_run_goes_on_with_its_own_images(tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        loop.train(tiny_recipe(), images, tmp_path, device=CPU, after_epoch=stop_after(2))
    fewer = Images(images.pixels[:-3])
    with pytest.raises(
        InputError, match=r"was started with 70 images of 16 x 16, not 67 images of 16 x 16: give it"
    ):
        loop.train(tiny_recipe(), fewer, tmp_path, device=CPU)
    notes: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: notes.append(text))
    loop.train(tiny_recipe(), Images(255 - images.pixels), tmp_path, device=CPU)
    assert notes == [f"{tmp_path} was started with other images, or they decode differently here"]
    assert (tmp_path / "model.safetensors").exists()


def test_batches_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"9 images do not fill one batch of 16: --set run\.batch=8"):
        loop.train(tiny_recipe(), tiny_images(9), tmp_path, device=CPU)
    smaller, note = loop.fit_batch(tiny_recipe(), 9)
    assert smaller.run.batch == 8
    assert note == "only 9 training images: batch lowered from 16 to 8"
    assert loop.fit_batch(tiny_recipe(), 16) == (tiny_recipe(), None)
    assert loop.fit_batch(tiny_recipe("bayesncl", "run.batch=256"), 133)[0].run.batch == 32  # four steps an epoch
    with pytest.raises(InputError, match="at least 2 images, got 1"):
        loop.fit_batch(tiny_recipe(), 1)


def test_metrics_of_steps_to_come_again_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"step": 6}\n{"step": 8, "lo')
    Run(tmp_path).cut_metrics(4)
    assert path.read_text() == '{"step": 2}\n{"step": 4}\n'


class Plain(nn.BatchNorm2d):
    """torch's BatchNorm, then shortcut and ReLU."""

    relu = False

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x) + (0 if shortcut is None else shortcut)
        return y.relu() if self.relu else y


@pytest.mark.parametrize("kind", ["small", "basic", "bottleneck"])
def test_views_together_equal_views_one_after_the_other(kind: str) -> None:
    """Outputs, gradients and running statistics of per-view BatchNorm against plain BatchNorm fed view by view."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        blocks = {"basic": BasicBlock, "bottleneck": Bottleneck}
        module = blocks[kind](3, 6, 2) if kind in blocks else build_backbone(Model(backbone=kind))
        return module.double()

    together, plain = make(), make()
    for module in plain.modules():
        if isinstance(module, ViewBatchNorm2d):
            module.__class__ = Plain
    set_views(together, 2)
    for step in range(2):
        x = torch.randn(8, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        x[4:] *= 3  # views whose statistics differ
        both, parts = together(x), torch.cat([plain(x[:4]), plain(x[4:])])
        torch.testing.assert_close(both, parts, rtol=1e-10, atol=1e-12)
        for model, h in ((together, both), (plain, parts)):
            model.zero_grad()
            h.square().sum().backward()
    for (name, a), b in zip(together.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-10, msg=name)
    for (name, a), b in zip(together.named_buffers(), plain.buffers()):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=name)


def test_order_is_a_permutation_of_its_own_for_seed_and_epoch() -> None:
    orders = [tuple(epoch_order(seed, epoch, 50).tolist()) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] == tuple(epoch_order(0, 0, 50).tolist())


def test_batches_are_the_images_they_say() -> None:
    pixels = tiny_images(37).pixels
    seen = []
    for part, index in batches(pixels, 8, 3, 1, 0, CPU):
        assert np.array_equal(part.numpy(), pixels[index.numpy()])
        seen += index.tolist()
    assert seen == epoch_order(3, 1, 37)[:32].tolist(), "the rest is dropped"
    late = [index.tolist() for _, index in batches(pixels, 8, 3, 1, 2, CPU)]
    assert late == [batch_rows(epoch_order(3, 1, 37), step, 8).tolist() for step in (2, 3)]


def test_reading_ahead_keeps_order_passes_errors_on_and_ends_with_its_reader() -> None:
    made = []

    def items(last: int) -> object:
        for i in range(last):
            made.append(i)
            yield i
        if last == 5:
            raise InputError("the disk is gone")

    assert list(ahead(items(20), 3)) == list(range(20))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the disk is gone"):
        list(ahead(items(5), 3))  # type: ignore[arg-type]
    made.clear()
    reader = ahead(items(4), 3)  # type: ignore[arg-type]
    assert next(reader) == 0
    time.sleep(0.05)  # the queue is full and the thread has only the end to hand over
    reader.close()  # type: ignore[attr-defined]
    assert made == [0, 1, 2, 3]


def test_no_view_is_left_out_of_the_loss() -> None:
    """The loss of a batch in the loop is info_nce of its gated features plus lambda times their KL."""
    from bayesncl import bernoulli_kl, info_nce
    from bayesncl.augment import make_views

    recipe, images = tiny_recipe(), tiny_images(16)
    model = Encoder(recipe).train()
    set_views(model, 2)
    index, epoch = torch.arange(16), torch.tensor(3)
    pixels = torch.from_numpy(images.pixels)
    loss, averages, active = loop.losses(model, pixels, index, epoch, torch.float32)
    features = model(model.normalise_pixels(make_views(pixels, index, epoch, 0, recipe.views)))
    nce, kl = info_nce(features.gated), bernoulli_kl(torch.sigmoid(features.logits), recipe.gate.prior)
    assert loss.item() == pytest.approx((nce + recipe.gate.weight * kl).item(), rel=1e-5)
    assert averages[3].item() == pytest.approx((torch.sigmoid(features.logits) > 0.5).float().mean().item(), abs=1e-6)
    assert active.tolist() == (features.gated > 1e-5).sum(0).tolist()
