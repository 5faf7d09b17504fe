"""Recipes: the paper's values, JSON both ways, changes from the command line, hostile files."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bayesncl.errors import InputError
from bayesncl.recipes import (
    DATASETS,
    METHODS,
    PARTS,
    Recipe,
    change,
    gate_kinds,
    named,
    nearest,
    recipe_from_dict,
    recipe_from_json,
    recipe_names,
    rectifiers,
    replace_fields,
)

# Per data set, as published: field by field, nothing computed.
PUBLISHED = {
    "cifar10": {
        "data.mean": (0.4914, 0.4822, 0.4465),
        "data.std": (0.2470, 0.2435, 0.2616),
        "data.paper_mean": (0.4914, 0.4822, 0.4465),
        "data.paper_std": (0.247, 0.243, 0.261),
    },
    "cifar100": {
        "data.mean": (0.5071, 0.4865, 0.4409),
        "data.std": (0.2673, 0.2564, 0.2762),
        # evaluated with CIFAR-10's statistics
        "data.paper_mean": (0.4914, 0.4822, 0.4465),
        "data.paper_std": (0.247, 0.243, 0.261),
    },
    "imagenet100": {
        "data.size": 256,
        "data.mean": (0.485, 0.456, 0.406),
        "data.std": (0.229, 0.224, 0.225),
        "data.paper_mean": None,
        "views.size": 224,
        "model.stem": "imagenet",
        "model.hidden": 16384,
        "model.dim": 2048,
        "model.rectifier": "relu",
        "gate.prior": 0.6,
        "gate.lr": 0.0375,
        "optimiser.lr": 0.3,
        "run.epochs": 100,
        "run.batch": 128,
    },
}
CIFAR = {
    "data.size": 32,
    "views.size": 32,
    "model.stem": "cifar",
    "model.stem_padding": 2,
    "model.hidden": 2048,
    "model.dim": 256,
    "model.rectifier": "rep_relu",
    "gate.prior": 0.8,
    "gate.lr": 0.1,
    "optimiser.lr": 0.4,
    "run.epochs": 200,
    "run.batch": 256,
}
EVERYWHERE = {
    "views.crop_scale": (0.08, 1.0),
    "views.crop_ratio": (3 / 4, 4 / 3),
    "views.interpolation": "bicubic",
    "views.jitter": 0.8,
    "views.brightness": 0.8,
    "views.contrast": 0.8,
    "views.saturation": 0.8,
    "views.hue": 0.2,
    "views.greyscale": 0.2,
    "views.blur": 0.5,
    "views.blur_sigma": (0.1, 2.0),
    "views.solarise": 0.0,
    "views.flip": 0.5,
    "model.backbone": "resnet18",
    "model.layer_norm": False,
    "model.top_k": 0,
    "gate.kind": "ste",
    "gate.depth": 2,
    "gate.hidden": 0,
    "gate.weight": 3e-5,
    "gate.threshold": 0.5,
    "gate.temperature": 1.0,
    "gate.detach": True,
    "objective.temperature": 0.2,
    "optimiser.momentum": 0.9,
    "optimiser.weight_decay": 1e-4,
    "optimiser.eta": 0.02,
    "optimiser.clip": True,
    "optimiser.warmup_epochs": 10,
    "optimiser.start_lr": 3e-5,
}
# What a method changes of its data set's `bayesncl`.
METHOD = {
    "cl": {"model.rectifier": "none", "gate.kind": "none"},
    "ncl": {"gate.kind": "none"},
    "ncl-topk": {"gate.kind": "none", "model.top_k": {"cifar10": 205, "cifar100": 205, "imagenet100": 1229}},
    "bayesncl": {},
    "bayesncl-gs": {"gate.kind": "gumbel-paper"},
    "bayesncl-soft": {"gate.kind": "soft"},
    "bayesncl-nodetach": {"gate.detach": False},
}


def value(recipe: Recipe, path: str) -> object:
    part, _, field = path.partition(".")
    return getattr(getattr(recipe, part), field)


@pytest.mark.parametrize("method", METHOD)
@pytest.mark.parametrize("dataset", PUBLISHED)
def test_published_values(dataset: str, method: str) -> None:
    wanted = EVERYWHERE | (CIFAR if dataset.startswith("cifar") else {}) | PUBLISHED[dataset]
    for path, new in METHOD[method].items():
        wanted[path] = new[dataset] if isinstance(new, dict) else new
    recipe = named(f"{dataset}-{method}")
    assert recipe.name == f"{dataset}-{method}"
    assert recipe.data.name == dataset
    assert {path: value(recipe, path) for path in wanted} == wanted


def test_encoders_for_readable_codes_differ_from_cl_in_views_and_loss() -> None:
    ours, plain = named("cifar100-prototypes"), named("cifar100-cl")
    assert set(METHODS) - set(METHOD) == {"prototypes"}, "all others are the paper's"
    assert ours.objective.decoupled and not plain.objective.decoupled
    assert (ours.views.blur, ours.views.hue, ours.views.crop_scale[0]) == (0.0, 0.1, 0.2)
    assert (ours.run.epochs, plain.run.epochs) == (400, 200)
    assert (ours.model.stem_padding, plain.model.stem_padding) == (1, 2)
    same = replace_fields(
        ours,
        views=dataclasses.asdict(plain.views),
        model={"stem_padding": 2},
        objective={"decoupled": False},
        run={"epochs": plain.run.epochs},
    )
    assert dataclasses.replace(same, name=plain.name) == plain
    assert named("imagenet100-prototypes").views.blur == named("imagenet100-cl").views.blur


def test_rates_as_published() -> None:
    from bayesncl.train import schedule

    rates = schedule(change(named("imagenet100"), ["run.epochs=20"]), 3)  # [60, 2], warm-up 30 steps
    assert rates[30].tolist() == pytest.approx([0.15, 0.0375])  # 0.3 * 128 / 256; the gate's is not scaled
    assert schedule(change(named("cifar100"), ["run.epochs=20"]), 3)[30].tolist() == pytest.approx([0.4, 0.1])
    assert schedule(change(named("cifar100-ncl"), ["run.epochs=20"]), 3).shape == (60, 1)


def test_small_images_get_the_stem_for_small_images() -> None:
    for name in recipe_names():
        recipe = named(name)
        assert (recipe.model.stem == "cifar") == (recipe.views.size <= 32), name


def test_names() -> None:
    assert set(recipe_names()) == {f"{d}-{m}" for d in DATASETS for m in METHODS}
    for dataset in DATASETS:
        assert named(dataset) == named(f"{dataset}-bayesncl")
        assert named(dataset).data.name == dataset
    with pytest.raises(InputError, match="no recipe 'cifar100-bayesnlc'; did you mean cifar100-bayesncl"):
        named("cifar100-bayesnlc")
    with pytest.raises(InputError, match="no recipe '!!'; there are scenes, textures, cifar10"):
        named("!!")


@pytest.mark.parametrize("name", recipe_names())
def test_json_both_ways(name: str) -> None:
    recipe = named(name)
    assert recipe_from_json(recipe.to_json()) == recipe
    assert hash(recipe_from_json(recipe.to_json())) == hash(recipe)  # tuples came back as tuples


def test_every_field_is_explained_and_set_from_text() -> None:
    recipe = named("cifar100")
    for part in PARTS:
        for field in dataclasses.fields(PARTS[part]):
            assert len(field.metadata["doc"]) > 8
            now = getattr(getattr(recipe, part), field.name)
            text = ",".join(map(str, now)) if isinstance(now, tuple) else str(now)
            assert change(recipe, [f"{part}.{field.name}={text}"]) == recipe


def test_missing_fields_take_their_defaults() -> None:
    assert recipe_from_dict({"name": "mine", "gate": {"prior": 0.5}}) == dataclasses.replace(
        Recipe(name="mine"), gate=dataclasses.replace(Recipe().gate, prior=0.5)
    )


def test_changes() -> None:
    recipe = named("cifar100")
    changed = change(
        recipe,
        [
            "run.batch = 64",
            "gate.prior=1e-1",
            "gate.detach=off",
            "data.root=a=b",
            "data.paper_mean=none",
            "views.crop_scale=(0.2, 1)",
            "run.batch=32",
        ],
    )  # the last of two wins
    assert (changed.run.batch, changed.gate.prior, changed.gate.detach) == (32, 0.1, False)
    assert (changed.data.root, changed.data.paper_mean, changed.views.crop_scale) == ("a=b", None, (0.2, 1.0))
    assert recipe == named("cifar100")
    for word, meant in (("yes", True), ("1", True), ("ON", True), ("True", True), ("no", False), ("0", False)):
        assert change(recipe, [f"gate.detach={word}"]).gate.detach is meant
    for kind in gate_kinds():
        assert change(recipe, [f"gate.kind={kind}"]).gate.kind == kind
    for rectifier in rectifiers():
        assert change(recipe, [f"model.rectifier={rectifier}"]).model.rectifier == rectifier


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run.batch", "part.field=value, got 'run.batch'"),
        ("batch=3", "part.field=value"),
        ("", "part.field=value"),
        ("rum.batch=3", "no part 'rum'; did you mean run?"),
        ("run.bach=3", "no field run.bach; did you mean batch?"),
        ("run.xyzzy=3", "no field run.xyzzy; there are epochs, batch"),
        ("run.batch=many", "expected a whole number, got 'many'"),
        ("run.batch=2.5", "expected a whole number, got '2.5'"),
        ("run.batch=", "expected a whole number, got ''"),
        ("run.batch=none", "expected a whole number, got 'none'"),
        ("run.batch=1", "run.batch: must be at least 2, got 1"),
        ("run.batch=" + "9" * 5000, "expected a whole number"),
        ("run.seed=-1", "run.seed: must be at least 0"),
        (f"run.seed={2**64}", "run.seed: must be at most"),
        ("run.epochs=1000000000000", "run.epochs: must be at most"),
        ("model.hidden=1000000000000", "model.hidden: must be at most"),
        ("model.dim=1000000000000", "model.dim: must be at most"),
        ("gate.hidden=1000000000000", "gate.hidden: must be at most"),
        ("gate.prior=nan", "gate.prior: expected a finite number, got nan"),
        ("gate.prior=inf", "finite number"),
        ("gate.prior=0", "gate.prior: must be at least 0.01, got 0"),
        ("gate.prior=1.5", "gate.prior: must be at most 0.99, got 1.5"),
        ("gate.detach=maybe", "expected true or false, got 'maybe'"),
        ("gate.kind=stee", "gate.kind: no 'stee'; did you mean ste?"),
        ("gate.depth=4", "at most 3"),
        ("gate.temperature=0", "at least 0.001"),
        ("model.rectifier=rep-relu", "did you mean rep_relu?"),
        ("views.crop_scale=0.5", "expected 2 numbers"),
        ("views.crop_scale=a,b", "expected 2 numbers"),
        ("views.crop_scale=0.9,0.1", "0 < low <= high"),
        ("data.mean=none", "expected 3 numbers, got 'none'"),
        ("data.std=0,1,1", "std: must be positive"),
        ("data.paper_std=0,1,1", "paper_std: must be positive"),
        ("data.name=cifar", "did you mean cifar10"),
    ],
)
def test_bad_changes(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        change(named("cifar100"), [text])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([], "object of parts, got list"),
        ("scenes", "got str"),
        (None, "got NoneType"),
        ({"name": 3}, "name: expected text"),
        ({"name": "../../up"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "\x1b[31mred"}, "name"),
        ({"name": "x" * 10_000}, "name"),
        ({"gates": {}}, "no part 'gates'; did you mean gate?"),
        ({"gate": []}, "gate must be an object of fields, got list"),
        ({"gate": {"prior": "0.8"}}, "gate.prior: expected a number, got '0.8'"),
        ({"gate": {"prior": True}}, "gate.prior: expected a number"),
        ({"gate": {"prior": None}}, "gate.prior: expected a number"),
        ({"gate": {"prior": {"a": [1]}}}, "gate.prior: expected a number"),
        ({"gate": {"prior": float("nan")}}, "finite"),
        ({"gate": {"weight": 10**400}}, "finite"),
        ({"gate": {"detach": 1}}, "gate.detach: expected true or false"),
        ({"gate": {"kind": ["ste"]}}, "gate.kind: expected text"),
        ({"run": {"batch": 16.0}}, "run.batch: expected a whole number"),
        ({"run": {"batch": True}}, "run.batch: expected a whole number"),
        ({"data": {"mean": [1, 2]}}, "data.mean: expected 3 numbers"),
        ({"data": {"mean": [0.5] * 1_000_000}}, "data.mean: expected 3 numbers"),
        ({"data": {"mean": [0.5, 0.5, "x"]}}, "data.mean: expected a number"),
        ({"data": {"mean": [0.5, 0.5, float("inf")]}}, "finite"),
        ({"data": {"paper_std": [0.5, 0.5, -1]}}, "positive"),
        ({"data": {"mean": {"r": 1}}}, "data.mean: expected 3 numbers"),
        ({"data": {"root": "a\0b"}}, "data.root"),
    ],
)
def test_hostile_trees(tree: object, message: str) -> None:
    for read in (lambda: recipe_from_dict(tree, "there"), lambda: recipe_from_json(json.dumps(tree), "there")):
        with pytest.raises(InputError) as caught:
            read()
        assert message in str(caught.value)
        assert str(caught.value).startswith("there")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["", "{", "nul", "[" * 100_000, '{"run": {"batch": ' + "9" * 6000 + "}}", "\0"])
def test_not_json(text: str) -> None:
    with pytest.raises(InputError, match=r"there is not JSON"):
        recipe_from_json(text, "there")


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("gate", {"prior": 7}, "gate.prior: must be at most 0.99, got 7"),
        ("gate", {"kind": "nonsense"}, "gate.kind: no 'nonsense'"),
        ("gate", {"prior": "0.5"}, "gate.prior: expected a number, got '0.5'"),
        ("data", {"name": "sceens"}, "data.name: no 'sceens'; did you mean scenes?"),
        ("data", {"test_images": 10**9}, "data.test_images: must be at most 1000000"),
        ("views", {"crop_scale": (0.5, 0.1)}, "views.crop_scale: must be 0 < low <= high"),
        ("run", {"batch": 2.0}, "run.batch: expected a whole number, got 2.0"),
    ],
)
def test_parts_check_themselves_when_built(part: str, values: dict[str, object], message: str) -> None:
    for build in (lambda: PARTS[part](**values), lambda: dataclasses.replace(PARTS[part](), **values)):
        with pytest.raises(InputError) as caught:
            build()
        assert str(caught.value).startswith(message)


def test_values_become_what_their_fields_are() -> None:
    built = PARTS["data"](mean=[0, 0, 1], holdout=0)
    assert (built.mean, built.holdout) == ((0.0, 0.0, 1.0), 0.0)
    assert type(built.holdout) is float
    assert hash(built) == hash(PARTS["data"](mean=(0.0, 0.0, 1.0), holdout=0.0))
    for wrong in ({"name": "a/b"}, {"name": 3}, {"gate": {"prior": 0.5}}):
        with pytest.raises(InputError):
            Recipe(**wrong)


def test_a_field_added_later_counts_once_it_is_used() -> None:
    assert Recipe().to_dict()["objective"]["decoupled"] is False
    assert "decoupled" not in Recipe().to_identity()["objective"], "runs of 0.1.0 keep their identity"
    assert change(Recipe(), ["objective.decoupled=true"]).to_identity()["objective"]["decoupled"] is True


def test_nearest() -> None:
    assert nearest("epoch", ["epochs", "batch"]) == "; did you mean epochs?"
    assert nearest("zzz", ["epochs", "batch"]) == "; there are epochs, batch"
