"""Readable codes on disk, and fits that are interrupted, killed and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from bayesncl import codes, shelf
from bayesncl.codes import ReadableCodes
from bayesncl.errors import InputError
from bayesncl.files import digest, read_tensors, tensor_bytes
from bayesncl.heads import HEADS
from bayesncl.model import build_model, model_bytes
from bayesncl.recipes import change, named
from tests.test_codes import made


def parts(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    tensors, metadata = read_tensors(path)
    return metadata, tensors


@pytest.fixture(scope="module")
def model() -> ReadableCodes:
    return ReadableCodes(8, steps=12, keep=4).fit(made())


def test_codes_of_one_method_are_not_saved_as_those_of_another(tmp_path: Path) -> None:
    fitted = ReadableCodes(8, "sae", steps=2).fit(made())
    fitted.set_params(method="csr")
    for save in (fitted.save, fitted.save_pretrained):
        with pytest.raises(InputError, match="fitted by sae"):
            save(tmp_path / "x")
    assert not list(tmp_path.iterdir())
    fitted.set_params(method="sae").save(tmp_path / "x.safetensors")
    again = ReadableCodes.load(tmp_path / "x.safetensors").set_params(method="ncl")
    with pytest.raises(InputError, match="fitted by sae"):
        again.save(tmp_path / "y.safetensors")


@pytest.mark.parametrize("method", list(HEADS))
def test_round_trip(tmp_path: Path, method: str) -> None:
    fitted = ReadableCodes(8, method, steps=5, random_state=np.int64(3)).fit(made())
    z = fitted.transform(made())
    fitted.save(tmp_path / "a.safetensors")
    fitted.save_pretrained(tmp_path / "folder")
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["config.json", "model.safetensors"]
    for again in (ReadableCodes.load(tmp_path / "a.safetensors"), ReadableCodes.from_pretrained(tmp_path / "folder")):
        assert (again.transform(made()) == z).all()
        assert again.get_params() == fitted.get_params()
        assert (again.n_iter_, again.dim_, again.n_features_in_) == (5, 8, 20)
    again.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_every_damaged_byte_is_noticed(tmp_path: Path, model: ReadableCodes) -> None:
    model.save(tmp_path / "x")
    good = (tmp_path / "x").read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 9, *rng.integers(0, len(good), 40).tolist(), len(good) - 1]:
        bad = bytearray(good)
        bad[place] ^= 0x10
        (tmp_path / "y").write_bytes(bad)
        with pytest.raises(InputError):
            ReadableCodes.load(tmp_path / "y")
    for end in (0, 7, 100, len(good) - 1):
        (tmp_path / "y").write_bytes(good[:end])
        with pytest.raises(InputError):
            ReadableCodes.load(tmp_path / "y")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, t: t.update({"mean": t["mean"] * np.nan}), "mean holds NaN"),
        (lambda c, t: t.update({"scale": t["scale"][:3]}), "does not fit"),
        (lambda c, t: t.pop("head.prototypes"), "prototypes"),
        (lambda c, t: t.update({"head.prototypes": t["head.prototypes"].double()}), "float64"),
        (lambda c, t: t.update({"head.prototypes": t["head.prototypes"][:3]}), "size mismatch|Error"),
        (lambda c, t: c["params"].update(method="pickle"), "no method 'pickle'"),
        (lambda c, t: c["params"].update(colour="red"), "colour"),
        (lambda c, t: c["fitted"].update(dim_=1 << 40), "codes of 1099511627776 dimensions"),
        (lambda c, t: c["fitted"].update(dim_=1 << 20), "size mismatch|Error"),
        (lambda c, t: c.pop("fitted"), "fitted"),
        (lambda c, t: c.update(format="another"), "of this version"),
    ],
)
def test_a_good_checksum_is_not_enough(tmp_path: Path, model: ReadableCodes, change: object, message: str) -> None:
    model.save(tmp_path / "x")
    metadata, tensors = parts(tmp_path / "x")
    config = json.loads(metadata["config"])
    change(config, tensors)  # type: ignore[operator]
    text = json.dumps(config)
    (tmp_path / "x").write_bytes(tensor_bytes(tensors, {"config": text, "sha256": digest(tensors, text)}))
    with pytest.raises(InputError, match=message):
        ReadableCodes.load(tmp_path / "x")


def test_places_that_will_not_do(tmp_path: Path, model: ReadableCodes) -> None:
    with pytest.raises(InputError, match="no folder"):
        model.save(tmp_path / "none" / "x")
    with pytest.raises(InputError, match="cannot read"):
        ReadableCodes.load(tmp_path / "missing")
    model.save_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a/config.json").read_text())
    config["params"]["keep"] = 2
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="not of the same codes"):
        ReadableCodes.from_pretrained(tmp_path / "a")
    (tmp_path / "a/config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json"):
        ReadableCodes.from_pretrained(tmp_path / "a")


def test_the_hub_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"bayesncl\[hub\]"):
        ReadableCodes.from_pretrained("somebody/codes")


def stop_at(step: int, how: object) -> object:
    def progress(done: int, total: int, what: str) -> None:
        if what == "training" and done == step:
            how()  # type: ignore[operator]

    return progress


def test_ctrl_c_keeps_what_was_learned() -> None:
    stopped = ReadableCodes(8, steps=30)
    stopped.fit(made(), progress=stop_at(12, lambda: os.kill(os.getpid(), signal.SIGINT)))  # type: ignore[arg-type]
    assert stopped.interrupted_ and stopped.n_iter_ == 12
    np.testing.assert_allclose(np.linalg.norm(stopped.transform(made()), axis=1), 1, atol=1e-6)
    assert not ReadableCodes(8, steps=30).fit(made()).interrupted_


class Killed(BaseException):
    pass


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("method", ["prototypes", "csr"])
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_fit_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, how: str
) -> None:
    unbroken = ReadableCodes(8, method, steps=30).fit(made())
    whole = unbroken.transform(made())
    file = tmp_path / "fit.ckpt"
    if how == "killed":  # after a checkpoint, without a last word
        monkeypatch.setattr(codes, "SAVE_SECONDS", -1.0)
        written = shelf.State.write
        monkeypatch.setattr(shelf.State, "write", lambda s, *a: written(s, *a) if s.step <= 10 else None)
        with pytest.raises(Killed):
            ReadableCodes(8, method, steps=30).fit(made(), checkpoint=file, progress=stop_at(13, kill))  # type: ignore[arg-type]
        monkeypatch.undo()
    else:
        stop = stop_at(13, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert ReadableCodes(8, method, steps=30).fit(made(), checkpoint=file, progress=stop).interrupted_  # type: ignore[arg-type]
    steps: list[int] = []
    resumed = ReadableCodes(8, method, steps=30)
    resumed.fit(made(), checkpoint=file, progress=lambda d, t, what: steps.append(d) if what == "training" else None)
    assert steps[0] in (11, 14)
    assert (resumed.transform(made()) == whole).all()
    assert (resumed.loss_, resumed.recall_) == (unbroken.loss_, unbroken.recall_)
    assert not file.exists()


def test_a_fit_that_fails_leaves_what_was_fitted() -> None:
    fresh, good = ReadableCodes(steps=9), ReadableCodes(steps=9).fit(made())
    before = good.transform(made())
    for one in (fresh, good):
        with pytest.raises(Killed):
            one.fit(made()[:40, :7], progress=stop_at(5, kill))  # type: ignore[arg-type]  # other D and F
    with pytest.raises(NotFittedError):
        fresh.transform(made())
    assert (good.transform(made()) == before).all()


def test_a_checkpoint_of_other_pairs_is_refused(tmp_path: Path) -> None:
    file, rows = tmp_path / "fit.ckpt", np.arange(len(made()))
    with pytest.raises(Killed):
        ReadableCodes(8, steps=9).fit(made(), pairs=rows[::-1], checkpoint=file, progress=stop_at(5, kill))  # type: ignore[arg-type]
    with pytest.raises(shelf.BadCheckpoint, match="other rows or options"):
        ReadableCodes(8, steps=9).fit(made(), pairs=np.roll(rows, 1), checkpoint=file)


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fit.ckpt"
    stop = stop_at(3, lambda: os.kill(os.getpid(), signal.SIGINT))
    ReadableCodes(8, steps=9).fit(made(), checkpoint=file, progress=stop)  # type: ignore[arg-type]
    for other in (ReadableCodes(8, steps=10), ReadableCodes(4, steps=9), ReadableCodes(8, steps=9, random_state=1)):
        with pytest.raises(InputError, match="other rows or options"):
            other.fit(made(), checkpoint=file)
    with pytest.raises(InputError, match="other rows or options"):
        ReadableCodes(8, steps=9).fit(made(seed=5), checkpoint=file)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        ReadableCodes(8, steps=9).fit(made(), checkpoint=file)
    file.write_text("no")
    with pytest.raises(InputError, match="not a checkpoint"):
        ReadableCodes(8, steps=9).fit(made(), checkpoint=file)


def test_codes_of_constant_columns_come_back(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 20))
    x[:, 3] = 7.0
    codes = ReadableCodes(8, steps=20).fit(x)
    codes.save(tmp_path / "codes.safetensors")
    assert np.array_equal(ReadableCodes.load(tmp_path / "codes.safetensors").transform(x), codes.transform(x))


def test_loading_waits_for_no_algebra(tmp_path: Path) -> None:
    """Numbers drawn on the meta device make torch import sympy, which takes longer than all the rest."""
    ReadableCodes(8, steps=1).fit(made()).save(tmp_path / "codes.safetensors")
    model = build_model(change(named("scenes-cl"), ["model.backbone=small", "model.hidden=8", "model.dim=4"]))
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    code = (
        "import sys, bayesncl, bayesncl.codes, bayesncl.model; before = set(sys.modules);"
        f"bayesncl.ReadableCodes.load({str(tmp_path / 'codes.safetensors')!r});"
        f"bayesncl.load({str(tmp_path / 'model.safetensors')!r});"
        "print('sympy' in set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
