"""docs/extending.md: its four snippets run as they stand, and what they add works everywhere."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from bayesncl import InputError, ReadableCodes, bernoulli_kl, open_gates, train
from bayesncl.data import DATASETS, load
from bayesncl.evaluate import measure_features
from bayesncl.measure.registry import MEASURES
from bayesncl.method.encoder import build_model
from bayesncl.method.gates import GATES
from bayesncl.method.heads import HEADS
from bayesncl.recipes import SETTINGS, change, named, recipe_names
from bayesncl.report.tables import render
from bayesncl.training.run_folder import load_run
from tests.commands import call

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
SMALL = ["run.epochs=1", "run.batch=32", "data.train_images=32", "data.test_images=20"]


def train_words(*changes: str) -> list[str]:
    options = [word for change in [*SMALL, *changes] for word in ("--set", change)]
    return ["train", "scenes", "--quiet", "--out", "run", *options]


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[dict[str, Any]]:
    """What the page defines; afterwards the registries are as before."""
    measures, names = list(MEASURES), {}
    assert len(SNIPPETS) == 4
    with patch.dict(GATES), patch.dict(HEADS), patch.dict(DATASETS), patch.dict(SETTINGS):
        for snippet in SNIPPETS:
            alone: dict[str, Any] = {}
            exec(compile(snippet, str(PAGE), "exec"), alone)
            names |= alone
        yield names
    MEASURES[:] = measures


def test_the_gate_opens_with_the_normal_probability_and_others_are_refused() -> None:
    logits = torch.full((200_000, 1), 0.7)
    mask = open_gates(logits, "gaussian", generator=torch.Generator().manual_seed(0))
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    normal = torch.special.ndtr(torch.tensor(0.7))
    assert mask.mean().item() == pytest.approx(normal.item(), abs=0.005)
    with pytest.raises(InputError, match="gaussian"):
        build_model(change(named("tints"), ["gate.kind=gausian"]))


def test_the_head_learns_and_comes_back_from_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=400)
    rows = (3 * rng.normal(size=(4, 12))[labels] + rng.normal(size=(400, 12))).astype(np.float32)
    codes = ReadableCodes(8, method="softplus", max_iter=150, random_state=0, device="cpu")
    z = codes.fit_transform(rows)
    assert z.min() >= 0 and np.allclose((z**2).sum(1), 1, atol=1e-5)
    same = labels[:, None] == labels
    assert (z @ z.T)[same].mean() > 0.2 + (z @ z.T)[~same].mean()
    codes.save(tmp_path / "codes.safetensors")
    again = ReadableCodes.load(tmp_path / "codes.safetensors", "cpu")
    assert np.array_equal(again.transform(rows), z)


def test_the_data_set_has_recipes_and_trains_with_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tints-ncl" in recipe_names()
    assert call("recipes") == 0 and "tints" in capsys.readouterr().out
    small = ["data.train_images=64", "data.test_images=40", "data.size=8", "views.size=8"]
    recipe = change(named("tints"), [*small, "gate.kind=gaussian", "run.epochs=1"])
    images = load(recipe.data, "train")
    means = images.pixels.mean((2, 3))
    assert (means.argmax(1) == images.labels).mean() > 0.9  # the label is what the picture shows
    model = train(recipe, images, tmp_path / "run", device=torch.device("cpu"))
    assert model.encode(load(recipe.data, "test").pixels).shape == (40, 16)


def test_an_encoder_trains_with_the_head_and_is_evaluated_later(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's class in a module of its own, imported by each command."""
    monkeypatch.delitem(HEADS, "softplus")
    (tmp_path / "my_heads.py").write_text(SNIPPETS[1])
    monkeypatch.chdir(tmp_path)
    words = train_words("model.head=softplus", "run.knn_every=1")
    assert call("--import", "my_heads", *words) == 0
    found = load_run(tmp_path / "run")
    assert type(found.head).__name__ == "Softplus" and found.gate is None
    monkeypatch.delitem(HEADS, "softplus")
    assert call("evaluate", "run", "--quiet") == 2  # unknown without the import
    sys.modules.pop("my_heads")
    assert call("--import", "my_heads", "evaluate", "run", "--quiet") == 0
    result = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert result["sound"]["l0"] > 0 and "theory" not in result


def test_the_measure_is_in_results_and_tables(page: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)
    z = np.eye(3, dtype=np.float32)[labels] + 0.01
    result = measure_features(z, labels, spectrum=False)
    assert result.sound["winner_purity"] == 100
    assert 33 < result.chance["sound"]["winner_purity"] < 50
    assert "purity of the strongest dimension (%)" in render(result)
    mixed = np.array([[3, 1], [2, 1], [1, 2], [0, 5]], np.float32)
    assert page["winner_purity"](mixed, np.array([0, 1, 1, 1])) == 75


def test_a_gate_from_a_module_works_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--import` registers it, and its own probability enters the KL term."""
    lines = "from bayesncl.method.gates import GATES, GateKind\n"
    lines += "class Shut(GateKind):\n    def probability(self, logits, temperature=1.0):\n"
    lines += "        return super().probability(logits, temperature) * 0\n"
    (tmp_path / "my_gates.py").write_text(f"{lines}GATES['shut'] = Shut('shut')\n")
    monkeypatch.chdir(tmp_path)
    assert call("--import", "my_gates", *train_words("gate.kind=shut")) == 0
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["open"] == 0
    assert line["kl"] == pytest.approx(64 * bernoulli_kl(torch.zeros(1, 1), 0.8).item(), rel=1e-4)
    assert call("--import", "no_such_module", "recipes") == 2
