"""The registry of datasets: light to import, one entry for a new one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bayesncl import recipes
from bayesncl.data import DATASETS, Dataset, load
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError


def test_names_do_not_import_readers() -> None:
    script = (
        "import sys; from bayesncl.recipes import recipe_names; print(len(recipe_names()));"
        "print(sorted({'numpy', 'torch', 'PIL'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(recipes.recipe_names())), "[]"]


def test_every_entry_has_its_name() -> None:
    for name in DATASETS:
        assert DATASETS[name].name == name
        assert DATASETS[name].title
        assert DATASETS[name].splits[:2] == ("train", "test")
        assert DATASETS[name].balanced in (None, *DATASETS[name].splits[2:])
        assert DATASETS[name].probe in ("cifar", "imagenet")


def test_a_new_dataset_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def gray(data: recipes.Data, split: str, progress: Progress | None) -> Images:
        return Images(np.full((4, 3, data.size, data.size), 128, np.uint8))

    monkeypatch.setattr(DATASETS, "data", dict(DATASETS.data))
    settings = recipes.Recipe(data=recipes.Data(size=16), views=recipes.Views(size=16))
    monkeypatch.setitem(recipes.SETTINGS, "gray-cards", settings)
    DATASETS["gray-cards"] = Dataset(name="gray-cards", title="Gray cards", load=gray)
    recipe = recipes.named("gray-cards-ncl")
    assert (recipe.name, recipe.data.name) == ("gray-cards-ncl", "gray-cards")
    assert recipes.named("gray-cards").name == "gray-cards-bayesncl"
    assert "gray-cards-cl" in recipes.recipe_names()
    assert load(recipe.data, "test").pixels.shape == (4, 3, 16, 16)
    with pytest.raises(InputError, match="val"):
        load(recipe.data, "val")
