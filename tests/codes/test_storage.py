"""Files of ReadableCodes: round trips, damage, and files that other programs changed."""

import json
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes.estimator import ReadableCodes
from bayesncl.errors import InputError
from bayesncl.method.heads import HEADS
from tests.codes.test_estimator import make_codes, make_rows


@pytest.fixture(scope="module")
def model() -> ReadableCodes:
    return make_codes(8, 12, n_active=4).fit(make_rows())


@pytest.mark.parametrize("method", list(HEADS))
def test_round_trip(tmp_path: Path, method: str) -> None:
    x = make_rows()
    x[:, 3] = 7.0  # a constant column
    fitted = make_codes(8, 5, method=method, seed=np.int64(3)).fit(x)
    z = fitted.transform(x)
    fitted.save(tmp_path / "a.safetensors")
    fitted.save_pretrained(tmp_path / "folder")
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "folder/config.json").read_text())["params"]["method"] == method
    for again in (
        ReadableCodes.load(tmp_path / "a.safetensors"),
        ReadableCodes.from_pretrained(tmp_path / "folder"),
    ):
        assert (again.transform(x) == z).all()
        assert again.get_params() == fitted.get_params()
        assert (again.n_iter_, again.n_components_, again.n_features_in_) == (5, 8, 20)
    again.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_method_of_the_fit_is_saved(tmp_path: Path) -> None:
    fitted = make_codes(8, 2, method="sae").fit(make_rows()).set_params(method="csr")
    fitted.save(tmp_path / "x.safetensors")
    assert ReadableCodes.load(tmp_path / "x.safetensors").method == "sae"


def test_every_damaged_byte_is_noticed(tmp_path: Path, model: ReadableCodes) -> None:
    model.save(tmp_path / "x")
    good = (tmp_path / "x").read_bytes()
    flips = [0, 9, *np.random.default_rng(0).integers(0, len(good), 40).tolist(), len(good) - 1]
    spoiled = [good[:i] + bytes([good[i] ^ 0x10]) + good[i + 1 :] for i in flips]
    for bad in spoiled + [good[:end] for end in (0, 7, 100, len(good) - 1)]:
        (tmp_path / "y").write_bytes(bad)
        with pytest.raises(InputError):
            ReadableCodes.load(tmp_path / "y")


def test_paths_that_cannot_be_used(tmp_path: Path, model: ReadableCodes) -> None:
    (tmp_path / "file").touch()
    for act in (
        lambda: model.save(tmp_path / "none" / "x"),
        lambda: model.save_pretrained(tmp_path / "file"),
        lambda: ReadableCodes.load(tmp_path / "missing"),
        lambda: ReadableCodes.from_pretrained(tmp_path),
    ):
        with pytest.raises(InputError):
            act()


def test_hub_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="hub"):
        ReadableCodes.from_pretrained("somebody/codes")
