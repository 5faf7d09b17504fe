"""Recipes: published values, JSON round trip, changes from the command line, bad input."""

import dataclasses

import pytest

from bayesncl.errors import InputError
from bayesncl.recipes import (
    METHODS,
    PARTS,
    SETTINGS,
    Recipe,
    change,
    named,
    recipe_from_dict,
    recipe_from_json,
    recipe_names,
)
from bayesncl.training.loop import learning_rates

# As published: field by field, nothing computed.
CIFAR = """
data.size=32 views.size=32 model.stem=cifar model.stem_padding=2 model.hidden=2048 model.dim=256
model.rectifier=rep_relu gate.prior=0.8 gate.lr=0.1 optimizer.lr=0.4 run.epochs=200 run.batch=256
data.paper_mean=0.4914,0.4822,0.4465 data.paper_std=0.247,0.243,0.261
"""  # CIFAR-100 too was evaluated with these statistics of CIFAR-10
PUBLISHED = {
    "cifar10": f"{CIFAR} data.mean=0.4914,0.4822,0.4465 data.std=0.2470,0.2435,0.2616",
    "cifar100": f"{CIFAR} data.mean=0.5071,0.4865,0.4409 data.std=0.2673,0.2564,0.2762",
    "imagenet100": """
        data.size=256 data.mean=0.485,0.456,0.406 data.std=0.229,0.224,0.225 data.paper_mean=none
        views.size=224 model.stem=imagenet model.hidden=16384 model.dim=2048 model.rectifier=relu
        gate.prior=0.6 gate.lr=0.0375 optimizer.lr=0.3 run.epochs=100 run.batch=128
    """,
}
EVERYWHERE = """
views.crop_scale=0.08,1 views.crop_ratio=0.75,1.3333333333333333 views.interpolation=bicubic
views.jitter=0.8 views.brightness=0.8 views.contrast=0.8 views.saturation=0.8 views.hue=0.2
views.grayscale=0.2 views.blur=0.5 views.blur_sigma=0.1,2 views.solarize=0 views.flip=0.5
model.backbone=resnet18 model.layer_norm=false model.top_k=0 gate.kind=ste gate.depth=2
gate.hidden=0 gate.weight=3e-5 gate.threshold=0.5 gate.temperature=1 gate.detach=true gate.input=h
gate.prior_kind=fixed objective.temperature=0.2 objective.similarity=dot optimizer.momentum=0.9
optimizer.weight_decay=1e-4 optimizer.eta=0.02 optimizer.clip=true optimizer.warmup_epochs=10
optimizer.start_lr=3e-5
"""
# What each method changes of the dataset's `bayesncl` recipe.
METHOD = {
    "cl": "model.rectifier=none gate.kind=none",
    "ncl": "gate.kind=none",
    "ncl-ipw": "gate.kind=none objective.similarity=ipw",
    "bayesncl": "",
    "bayesncl-gs": "gate.kind=gumbel-paper",
    "bayesncl-soft": "gate.kind=soft",
    "bayesncl-nodetach": "gate.detach=false",
}
TOP_K = {"cifar10": 205, "cifar100": 205, "imagenet100": 1229}


@pytest.mark.parametrize("method", [*METHOD, "ncl-topk"])
@pytest.mark.parametrize("dataset", PUBLISHED)
def test_published_values(dataset: str, method: str) -> None:
    """Setting the published values changes nothing."""
    changes = METHOD.get(method, f"gate.kind=none model.top_k={TOP_K[dataset]}")
    recipe = named(f"{dataset}-{method}")
    assert (recipe.name, recipe.data.name) == (f"{dataset}-{method}", dataset)
    assert change(recipe, f"{EVERYWHERE} {PUBLISHED[dataset]} {changes}".split()) == recipe


def test_published_learning_rates() -> None:
    # 0.3 * 128 / 256; the gate's rate is not scaled
    rates = {"imagenet100": [0.15, 0.0375], "cifar100": [0.4, 0.1], "cifar100-ncl": [0.4]}
    for name, expected in rates.items():
        after_warmup = learning_rates(change(named(name), ["run.epochs=20"]), 3)[30]
        assert after_warmup.tolist() == pytest.approx(expected)


def test_names_and_their_json() -> None:
    assert set(recipe_names()) == {f"{d}-{m}" for d in SETTINGS for m in METHODS}
    assert all(named(dataset) == named(f"{dataset}-bayesncl") for dataset in SETTINGS)
    for recipe in map(named, recipe_names()):
        again = recipe_from_json(recipe.to_json())
        assert again == recipe and hash(again) == hash(recipe)  # tuples, not lists


def test_every_field_can_be_set_from_text() -> None:
    recipe = named("cifar100")
    for part in PARTS:
        for field in dataclasses.fields(PARTS[part]):
            now = getattr(getattr(recipe, part), field.name)
            text = ",".join(map(str, now)) if isinstance(now, tuple) else str(now)
            assert change(recipe, [f"{part}.{field.name}={text}"]) == recipe


def test_former_spellings_are_read() -> None:
    old = {"optimiser": {"lr": 2.0}, "views": {"greyscale": 0.1}}
    assert recipe_from_dict(old) == change(Recipe(), ["optimizer.lr=2", "views.grayscale=0.1"])
    assert change(Recipe(), ["optimiser.lr=2"]) == change(Recipe(), ["optimizer.lr=2"])


def test_changes() -> None:
    texts = ("run.batch = 64", "gate.prior=1e-1", "gate.detach=False", "run.batch=32")
    more = ("data.root=a=b", "data.paper_mean=none", "views.crop_scale=(0.2, 1)")
    changed = change(named("cifar100"), [*texts, *more])
    assert (changed.run.batch, changed.gate.prior, changed.gate.detach) == (32, 0.1, False)
    assert (changed.data.root, changed.data.paper_mean) == ("a=b", None)
    assert changed.views.crop_scale == (0.2, 1.0)


def test_parts_convert_their_values() -> None:
    built = PARTS["data"](mean=[0, 0, 1], holdout=0)
    assert (built.mean, built.holdout) == ((0.0, 0.0, 1.0), 0.0)
    assert type(built.holdout) is float
    with pytest.raises(InputError):
        Recipe(gate={"prior": 0.5})  # type: ignore[arg-type]
