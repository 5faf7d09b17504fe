"""The training loop: deterministic, logged, finite or stopped, careful about its images."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import bernoulli_kl, info_nce, load, train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method import gates
from bayesncl.method.augment import make_views
from bayesncl.method.encoder import build_model
from bayesncl.method.rng import epoch_order
from bayesncl.training import checkpoint
from bayesncl.training.dynamics import record_dynamics
from bayesncl.training.loader import batches
from bayesncl.training.run_folder import RunFolder
from bayesncl.training.step import Batch, forward
from tests.conftest import Stopped, stop_after, tiny_images, tiny_recipe

FILES = {
    "checkpoints", "environment.json", "metrics.jsonl", "model.safetensors", "recipe.json",
}  # fmt: skip


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> str:
    """A digest: pytest would take minutes to show how two files differ."""
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def test_metrics(tmp_path: Path, images: Images) -> None:
    """70 images in batches of 16 make 4 steps per epoch, 12 in all; one report per 2 steps."""
    model = train(
        tiny_recipe(), images, tmp_path, device="cpu",
        after_epoch=lambda _, epoch: {"kind": "x"} if epoch == 2 else None,
    )  # fmt: skip
    found = [line for line in lines(tmp_path) if "kind" not in line]
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10, 12]
    assert [line["epoch"] for line in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    for line in found:
        total = line["nce"] + model.recipe.gate.weight * line["kl"]
        assert line["loss"] == pytest.approx(total, rel=1e-6)
        assert 0 <= line["open"] <= 1 and 0 <= line["near_dead"] <= line["active"] <= 12
        assert line["images_per_second"] > 0
    assert not model.training
    assert [line["step"] for line in lines(tmp_path) if "kind" in line] == [8]
    assert {path.name for path in tmp_path.iterdir()} == FILES
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment.keys() >= {"torch", "python", "device", "processes", "command", "date"}


def test_what_a_recipe_records_changes_nothing(tmp_path: Path, images: Images) -> None:
    recipe = tiny_recipe("bayesncl", "run.knn_every=1", "run.dynamics_every=2", "run.epochs=2")
    model = train(recipe, images, tmp_path / "a", device="cpu")
    found = [line for line in lines(tmp_path / "a") if line.get("kind") == "knn"]
    assert [line["epoch"] for line in found] == [1, 2]
    (dynamics,) = RunFolder(tmp_path / "a").metrics("dynamics")
    again = record_dynamics(images, model, 2)
    assert dynamics == {"step": 8} | json.loads(json.dumps(again))
    with torch.no_grad():
        h = model.embed(model.normalize_pixels(torch.from_numpy(images.pixels)))
    h, labels = torch.nn.functional.normalize(h), torch.from_numpy(images.labels)
    right = 0
    for i in range(1, 70, 2):  # odd images are queries, even ones neighbors
        cosines = h[0::2] @ h[i]
        nearest = cosines.argsort(descending=True)[:20]
        votes = torch.zeros(3)
        for j in nearest.tolist():
            votes[labels[0::2][j]] += (cosines[j] / 0.07).exp()
        right += int(votes.argmax() == labels[i])
    assert found[1]["knn"] == pytest.approx(100 * right / 35)
    assert found[1]["knn"] > found[1]["chance"]
    plain = train(tiny_recipe("bayesncl", "run.epochs=2"), images, tmp_path / "b", device="cpu")
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("method", ["cl", "ncl-topk", "ncl-ipw", "bayesncl-gs", "bayesncl-soft"])
def test_every_method_trains_and_its_weights_come_back(
    tmp_path: Path, images: Images, method: str
) -> None:
    changes = ["model.top_k=5"] if method == "ncl-topk" else []
    recipe = tiny_recipe(method, "run.epochs=1", *changes)
    trained = train(recipe, images, tmp_path, device="cpu")
    assert all(p.isfinite().all() for p in trained.parameters())
    again = load(tmp_path)
    assert not again.training and again.recipe == recipe
    assert ("head.prevalence" in again.state_dict()) == (method == "ncl-ipw")
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in trained.state_dict().items())
    expected = trained.encode(images.pixels)
    torch.testing.assert_close(again.encode(images.pixels), expected, rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_batch_is_info_nce_plus_kl() -> None:
    recipe, images = tiny_recipe(), tiny_images(16)
    model = build_model(recipe).train()
    pixels, index = torch.from_numpy(images.pixels), torch.arange(16)
    batch = Batch(pixels, index, torch.tensor(3), torch.float32)
    loss, averages, active = forward(model, batch)
    features = model(model.normalize_pixels(make_views(pixels, index, 3, 0, recipe.views)))
    q = torch.sigmoid(features.logits)
    expected = info_nce(features.gated) + recipe.gate.weight * bernoulli_kl(q, recipe.gate.prior)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert averages[3].item() == pytest.approx((q > 0.5).float().mean().item(), abs=1e-6)
    assert active.tolist() == (features.gated > 1e-5).sum(0).tolist()


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kl is NaN from step 6 on; the last good checkpoint is named, also after a resume."""
    kl, calls = gates.bernoulli_kl, 0

    def poisoned(*arguments: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return kl(*arguments) * (float("nan") if calls > 6 else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(gates, "bernoulli_kl", poisoned)
    with pytest.raises(InputError, match=r"by step 8; .*step-00000004\.ckpt"):
        train(tiny_recipe(), images, tmp_path, device="cpu")
    calls = 2  # resumed at step 4: steps 4 to 7 are good
    with pytest.raises(InputError, match=r"by step 10; .*step-00000008\.ckpt"):
        train(tiny_recipe(), images, tmp_path, device="cpu")
    saved = [path.stem for path in checkpoint.listed(RunFolder(tmp_path))]
    assert saved == ["step-00000004", "step-00000008"]


def test_a_run_continues_with_its_own_images(
    tmp_path: Path, images: Images, notes: list[str]
) -> None:
    with pytest.raises(Stopped):
        train(tiny_recipe(), images, tmp_path, device="cpu", after_epoch=stop_after(2))
    with pytest.raises(InputError, match=r"70 images .* not 67"):
        train(tiny_recipe(), Images(images.pixels[:-3]), tmp_path, device="cpu")
    train(tiny_recipe(), Images(255 - images.pixels), tmp_path, device="cpu")
    assert any("other images" in note for note in notes)


MAX_WEIGHT = 1e3  # far above any weight of a tiny model after three epochs
FLAT = Images(np.full((40, 3, 16, 16), 128, np.uint8))
TWICE = Images(np.repeat(tiny_images(20).pixels, 2, 0))


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        (["objective.temperature=0.001", "gate.temperature=0.001"], tiny_images()),
        (["run.batch=2", "model.dim=1"], tiny_images(9)),
        ([], FLAT),
        ([], TWICE),
        (["gate.threshold=1.0"], tiny_images()),  # all gates closed
        (["gate.lr=100"], tiny_images()),
    ],
)
def test_training_stays_finite(changes: list[str], images: Images, tmp_path: Path) -> None:
    model = train(tiny_recipe("bayesncl", *changes), images, tmp_path, device="cpu")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert weights.isfinite().all()
    assert weights.abs().max() < MAX_WEIGHT or "gate.lr=100" in changes
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in lines and "Infinity" not in lines


def test_batches_follow_the_order_and_drop_the_rest() -> None:
    """All pixels of image i have the value i."""
    values = np.arange(21, dtype=np.uint8)[:, None, None, None]
    pixels, cpu = np.broadcast_to(values, (21, 3, 4, 4)).copy(), torch.device("cpu")
    order = epoch_order(3, 5, 21).tolist()
    found = list(batches(pixels, 4, 3, 5, 0, cpu))
    assert len(found) == 5
    rest = list(batches(pixels, 4, 3, 5, 3, cpu))  # from step 3
    assert len(rest) == len(found) - 3
    assert all(torch.equal(a, b) and torch.equal(i, j) for (a, i), (b, j) in zip(found[3:], rest))
    for step, (part, index) in enumerate(found):
        expected = order[4 * step : 4 * step + 4]
        assert index.tolist() == expected and index.dtype == torch.int64
        assert part.shape == (4, 3, 4, 4) and part.dtype == torch.uint8
        assert part[:, 0, 0, 0].tolist() == expected
        assert (part == part[:, :1, :1, :1]).all()
