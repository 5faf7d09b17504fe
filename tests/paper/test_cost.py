"""Counted operations: the published figures to the printed digit, and small cases by hand."""

import json
from pathlib import Path

import pytest

from bayesncl.method.encoder import build_model
from bayesncl.paper.cost import cost
from bayesncl.recipes import change, named


@pytest.mark.parametrize(
    ("name", "key", "changes", "counted", "printed"),
    [
        ("cifar100-ncl", "macs_per_image", [], 1_416_176_128, "1.416176e+09"),
        ("cifar100-bayesncl", "macs_per_image", [], 1_419_321_856, "1.419322e+09"),
        ("imagenet100-bayesncl", "macs_per_image", [], 3_814_918_144, "3.814918e+09"),
        ("cifar100-ncl", "macs_per_batch", ["run.batch=4096"], 5_800_657_420_288, "5.8007e+12"),
    ],
)
def test_published_figures(
    name: str, key: str, changes: list[str], counted: int, printed: str
) -> None:
    value = cost(change(named(name), changes))[key]
    assert value == counted
    assert f"{value:.{len(printed) - 6}e}" == printed


def test_parameters_and_parts() -> None:
    recipe = named("scenes-bayesncl")
    result = cost(recipe, classes=7)
    assert result["params"] == sum(p.numel() for p in build_model(recipe).parameters())
    params, macs = result["params_by_part"], result["macs_by_part"]
    assert params["classifier"] == 7 * (256 + 1)
    assert params["gate"] == params["projector"]
    assert cost(named("scenes-ncl"))["params_by_part"]["gate"] == 0
    on_z = cost(change(recipe, ["gate.input=z"]))
    assert on_z["params_by_part"]["gate"] == (64 + 1) * 256 + (256 + 1) * 64
    assert sum(macs.values()) == result["macs_per_image"]
    assert macs["projector"] == 2 * (256 * 256 + 256 * 64)
    assert macs["classifier"] == 2 * 256 * 7
    assert result["macs_per_batch"] == result["macs_per_image"] * result["batch"]


def test_flops_of_a_step() -> None:
    """Forward twice the multiply-adds, backward about twice the forward."""
    for method in ("cl", "bayesncl"):
        result = cost(named(f"scenes-{method}"))
        assert 5 < result["flops_per_step"] / result["macs_per_batch"] < 6.5
    # beyond its images a batch adds the similarity matrix: one product forward, two backward
    sizes, recipe = (64, 128), named("scenes-ncl")
    small, large = (cost(change(recipe, [f"run.batch={b}"]))["flops_per_step"] for b in sizes)
    products = [3 * 2 * (2 * b) ** 2 * recipe.model.dim for b in sizes]
    assert large - products[1] == 2 * (small - products[0])


def test_two_recipes_side_by_side_with_measured_times(run) -> None:
    settings = "run.batch=8", "model.hidden=16", "model.dim=8", "views.size=16", "data.size=16"
    small = [word for setting in settings for word in ("--set", setting)]
    words = ("cost", "scenes-ncl", "scenes-bayesncl", "--time", *small, "--device", "cpu")
    answer = run(*words, "--json", "two.json")
    assert answer.status == 0, answer
    found = json.loads(Path("two.json").read_text())
    assert set(found) == {"scenes-ncl", "scenes-bayesncl"}
    for name, row in found.items():
        assert name in answer.out
        step = row["seconds_per_step"]
        assert row["seconds_per_epoch"] == pytest.approx(step * (50_000 // 8))
        assert row["images_per_second"] == pytest.approx(8 / step)
    assert found["scenes-bayesncl"]["params"] > found["scenes-ncl"]["params"]
