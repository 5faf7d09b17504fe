"""Every measure of a model together: what the result holds, and what it refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import bayesncl
from bayesncl.codes.folder import CodesFolder
from bayesncl.data import DATASETS, load, scenes
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.evaluate import (
    evaluate,
    images_of_run,
    measure_features,
    untrained_codes,
    warn_of_few,
)
from bayesncl.measure import linear as probe
from bayesncl.measure import topk as kept
from bayesncl.measure.interpretability import interpretability, shuffle_labels
from bayesncl.measure.result import Result
from bayesncl.measure.retrieval import knn_accuracies, retrieval
from bayesncl.measure.verdict import render
from bayesncl.method.encoder import Encoder, build_model, extract
from bayesncl.paper import conflict
from bayesncl.paper.measures import paper_measures
from bayesncl.recipes import recipe_from_dict
from tests.conftest import tiny_images, tiny_recipe

ALWAYS = {
    "paper", "sound", "retrieval", "chance", "parameters", "dimensions", "curves", "conflicting",
    "probe", "knn", "heat", "seconds", "verdict", "readable", "kept", "detectors", "coverage",
    "independence", "labelfree", "whole", "control",
}  # fmt: skip
WITH_GATES = {"theory", "gates"}
WITH_BACKGROUNDS = {
    "background", "balanced", "worst_group", "conflict", "ipw", "stability", "factors"
}  # fmt: skip
SCENES = ("data.train_images=300", "data.test_images=200")


def fresh(method: str = "bayesncl", *changes: str) -> Encoder:
    return build_model(tiny_recipe(method, *changes)).eval()


@pytest.fixture(scope="module")
def scenes_result() -> tuple[Encoder, Result]:
    model = fresh("bayesncl", *SCENES)
    splits = [load(model.recipe.data, split) for split in ("train", "test")]
    return model, evaluate(model, *splits, again=model, extra=paper_measures)


@pytest.mark.parametrize(
    ("method", "keys"),
    [("cl", set()), ("bayesncl-gs", WITH_GATES), ("bayesncl-soft", set())],
)
def test_keys_by_method(method: str, keys: set[str]) -> None:
    images = tiny_images(60), tiny_images(50, seed=1)
    results = evaluate(fresh(method, "data.name=arrays"), *images, extra=paper_measures)
    assert set(results.to_dict()) == ALWAYS | keys
    assert Result.from_json(results.to_json()) == results  # plain data, no NaN, keys are text


def test_keys_with_backgrounds(scenes_result: tuple[Encoder, Result]) -> None:
    model, results = scenes_result
    assert set(results.to_dict()) == ALWAYS | WITH_GATES | WITH_BACKGROUNDS | {"gate_effect", "seeds"}
    assert Result.from_json(results.to_json()) == results
    assert {len(column) for column in results.dimensions.values()} == {model.recipe.model.dim}


def test_values_are_those_of_the_measures(scenes_result: tuple[Encoder, Result]) -> None:
    model, results = scenes_result
    train, test = (load(model.recipe.data, split) for split in ("train", "test"))
    seen, sound, paper = extract(model, train), extract(model, test), extract(model, test, "paper")
    for definition, features in (("paper", paper), ("sound", sound)):
        wanted = interpretability(features.gated, test.labels, definition, spectrum=True)
        for name, value in getattr(results, definition).items():
            assert value is None or value == pytest.approx(wanted[name]), (definition, name)
    assert results.paper["consistency"] != results.sound["consistency"]
    by_support = results.curves["consistency_by_support"]
    plain = interpretability(sound.gated, test.labels, "paper")["consistency"]
    assert by_support["1"] == pytest.approx(plain)
    assert by_support["10"] == pytest.approx(results.sound["consistency"])
    at_least_ten = (np.array(results.dimensions["support"]) >= 10).sum()
    assert results.curves["dimensions_by_support"]["10"] == at_least_ten
    assert results.probe["fast"] == probe.fast_probe(seen.h, train.labels, sound.h, test.labels)
    labelings = [train.labels, shuffle_labels(train.labels)]
    wanted = knn_accuracies(seen.gated, labelings, sound.gated, test.labels)
    assert [results.knn["gated"], results.chance["knn"]["gated"]] == wanted
    assert results.gates["open"] == pytest.approx(sound.open.mean())
    assert results.gates["open_where_active"] == pytest.approx(sound.open[sound.z > 0].mean())
    fit = load(model.recipe.data, "val")
    h = extract(model, fit).h
    wanted = probe.fast_probe(h, fit.backgrounds, sound.h, test.backgrounds)
    assert results.balanced["background"] == wanted
    other = extract(model, scenes.redraw(model.recipe.data, "test"))
    assert results.stability["gated"] == conflict.stability(sound.gated, other.gated)
    for kind in ("z", "gated"):
        wanted = conflict.conflict(getattr(sound, kind), test.labels, test.backgrounds)
        assert results.conflict[kind]["error"] == pytest.approx(wanted["error"])


def test_curves_are_single_searches_over_dimensions_chosen_on_the_training_images() -> None:
    """By `sound`; `paper` chooses on the images that are retrieved, as published."""
    model = fresh("bayesncl", "data.name=arrays", "model.dim=48")
    train, test = tiny_images(60), tiny_images(50, seed=1)
    results = evaluate(model, train, test)
    ranking = extract(model, train).gated.sum(0, dtype=np.float64)
    for definition, order in (("paper", None), ("sound", ranking)):
        z, found = extract(model, test, definition).gated, results.curves[f"retrieval_{definition}"]
        assert list(found) == ["16", "32", "48"]
        for dims, by_k in found.items():
            wanted = retrieval(z, test.labels, int(dims), definition=definition, ranking=order)
            assert by_k == pytest.approx({str(k): value for k, value in wanted.items()})
        assert list(results.retrieval[definition]) == ["all"]
        assert list(results.chance["retrieval"][definition]) == ["all"]


def test_controls_and_another_seed(scenes_result: tuple[Encoder, Result]) -> None:
    """The same model finds the same dimensions again, an untrained head does not."""
    model, results = scenes_result
    train, test = (load(model.recipe.data, split) for split in ("train", "test"))
    sound = extract(model, test)
    control = untrained_codes(model, sound.h)
    assert results.control["coverage"]["l0"] == pytest.approx((control > 1e-5).sum(1).mean())
    untrained, _ = kept.summary(control, test.labels, ks=(5,))
    assert results.control["kept"]["5"]["consistency"] == untrained[5]["consistency"]
    known = extract(model, train).gated, train.labels
    wanted, _ = kept.summary(sound.gated, test.labels, ks=(5,), train=known)
    assert results.kept["5"] == pytest.approx(wanted[5])
    assert results.labelfree["by"] == "the embeddings given"
    assert results.seeds["mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert results.control["seeds"]["mean_cosine"] < 0.99
    assert any(line["key"] == "seeds" for line in results.verdict["lines"])


def test_superclasses_are_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    known = DATASETS["arrays"]
    monkeypatch.setitem(DATASETS, "arrays", dataclasses.replace(known, coarse=(0, 0, 1)))
    results = evaluate(fresh("ncl", "data.name=arrays"), tiny_images(60), tiny_images(60, seed=1))
    assert results.readable["by"] == "class or superclass"
    assert set(results.detectors["hierarchy"]["by_level"]) == {"class", "superclass"}
    assert sorted(DATASETS["cifar100"].coarse) == sorted(5 * list(range(20)))


def test_one_class() -> None:
    test = dataclasses.replace(tiny_images(50), labels=np.zeros(50, np.int64))
    with pytest.raises(InputError, match="one class"):
        evaluate(fresh("ncl", "data.name=arrays"), tiny_images(60), test)


@pytest.mark.parametrize("n", [2, 5])
def test_few_test_images(n: int) -> None:
    test = dataclasses.replace(tiny_images(n), labels=np.arange(n) % 2)
    results = evaluate(fresh("bayesncl", "data.name=arrays"), tiny_images(30), test)
    assert Result.from_json(results.to_json()) == results


def test_the_verdict_prints_as_a_table() -> None:
    y = np.arange(200) % 4
    z = np.maximum(0, np.eye(4)[y] + 0.1 * np.random.default_rng(0).normal(size=(200, 4)))
    found = bayesncl.verdict(z, y)
    assert found == measure_features(z, y, dims=()).verdict
    assert "readable dimensions" in str(found) and repr(found) == render(found)
    assert "4 of 4" in found._repr_html_()
    assert "no labels were given" in str(bayesncl.verdict(z, embeddings=z))


def test_labels_may_be_any_numbers() -> None:
    """Of classes that training lacks, with a gap of 2^40 between two of them, and without names."""
    test = tiny_images(40, seed=1)
    labels = np.array([5, 2**40, 7])[test.labels]
    strange = dataclasses.replace(test, labels=labels, class_names=None)
    results = evaluate(fresh("ncl", "data.name=arrays"), tiny_images(40), strange)
    assert (results.knn["gated"], results.parameters["classes"]) == (0, 3)


def test_a_small_test_split_is_warned_of() -> None:
    pixels, labels = np.zeros((100, 3, 4, 4), np.uint8), np.arange(100) % 4
    train = Images(pixels, labels)
    assert warn_of_few(train, train) is None
    assert warn_of_few(train, Images(pixels)) is None  # `evaluate` refuses those
    assert "2 of 4 classes" in warn_of_few(train, Images(pixels[:7], labels[:7] // 2))
    assert "3 of 4 classes" in warn_of_few(train, Images(pixels, labels % 3))


def test_images_of_a_run_are_taken_in_blocks(
    run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("fit", trained, "-o", "codes", "--components", "8", "--quiet").status == 0
    folder, take = CodesFolder("codes"), Images.take
    rows, recipe = folder.rows(), recipe_from_dict(folder.about().recipe)
    blocks: list[int] = []
    monkeypatch.setattr(Images, "take", lambda self, i: blocks.append(len(i)) or take(self, i))
    chosen = np.array([3, 2, len(rows) - 1, len(rows) - 2, 0])
    found = images_of_run(folder, rows, chosen)
    assert blocks == [2, 2, 1]
    for image, name in zip(found.pixels, found.names):
        split, i = name.split("/")
        np.testing.assert_array_equal(image, load(recipe.data, split).pixels[int(i)])
