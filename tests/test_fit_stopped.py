"""bayesncl fit that is stopped, and what it says of noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl import files
from bayesncl import fit as fit_module
from bayesncl.codes_folder import CodesFolder, Rows
from bayesncl.fit import judge
from tests.commands import draw_folder, refused
from tests.test_fit import NET, clusters


def test_stopped_while_training(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("x.npy", clusters()[0])
    assert run("fit", "x.npy", "-o", "whole", "--quiet").status == 0
    real = bayesncl.ReadableCodes.fit

    def stop(self, x, **options):
        def progress(done, total, what):
            if what == "training" and done == 20:
                raise KeyboardInterrupt

        return real(self, x, **options | {"progress": progress})

    with monkeypatch.context() as patch:
        patch.setattr(bayesncl.ReadableCodes, "fit", stop)
        answer = run("fit", "x.npy", "-o", "codes")
    assert answer.status == 130 and "the same command resumes" in answer.err
    folder = CodesFolder("codes")
    assert folder.checkpoint.exists() and not folder.codes_file.exists()
    refused(run("measure", "codes", "--quiet"), "not finished: run bayesncl fit again")
    assert run("fit", "x.npy", "-o", "codes", "--quiet").status == 0
    assert not folder.checkpoint.exists()
    assert folder.codes_file.read_bytes() == Path("whole/codes.safetensors").read_bytes()
    folder.checkpoint.write_bytes(b"damaged")
    assert run("fit", "x.npy", "-o", "codes", "--quiet").status == 0
    assert folder.codes_file.read_bytes() == Path("whole/codes.safetensors").read_bytes()


def test_codes_of_fewer_photos_are_not_judged_on(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while judging, then a photo more: what is there was not fitted to it."""
    first = sorted(draw_folder(tmp_path / "p").rglob("*.png"))[0]
    words = ("fit", "p", "-o", "codes", "--encoder", NET, "--dim", "4", "--quiet")

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "judge", stop)
        assert run(*words).status == 130
    Image.fromarray(np.asarray(Image.open(first))[::-1]).save(first.with_name("more.png"))
    assert run(*words).status == 0
    assert run("fit", "p", "-o", "whole", *words[4:]).status == 0
    assert Path("codes/codes.safetensors").read_bytes() == Path("whole/codes.safetensors").read_bytes()


def test_stopped_while_judging(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters()[0]
    np.save("x.npy", x)
    assert run("fit", "x.npy", "-o", "whole", "--quiet").status == 0
    whole, folder, fitted = CodesFolder("whole"), CodesFolder("codes"), []
    real = fit_module._train
    monkeypatch.setattr(fit_module, "_train", lambda *args: (fitted.append(1), real(*args))[1])

    def stop(*args):
        raise KeyboardInterrupt

    def stopped(*words: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(fit_module, "judge", stop)
            assert run("fit", "x.npy", "-o", "codes", "--quiet", *words).status == 130
        assert folder.codes_file.exists() and not folder.verdict_file.exists()

    stopped()
    stopped()
    assert run("fit", "x.npy", "-o", "codes", "--quiet").status == 0
    assert len(fitted) == 1  # then they are only judged
    for name in ("codes.safetensors", "verdict.json"):
        assert Path("codes", name).read_bytes() == Path("whole", name).read_bytes()
    stopped()  # codes that are judged are fitted again
    assert len(fitted) == 2
    stopped("--seed", "1")  # and so are those of other options
    assert len(fitted) == 3
    x[3] *= -1
    np.save("new.npy", x)
    Path("new.npy").rename("x.npy")
    assert run("fit", "x.npy", "-o", "codes", "--seed", "1", "--quiet").status == 0  # or of other rows
    assert len(fitted) == 4 and folder.codes_file.read_bytes() != whole.codes_file.read_bytes()


def test_killed_while_rows_take_their_place(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters()[0]
    np.save("x.npy", x)
    words = ["fit", "x.npy", "-o", "codes", "--dim", "4", "--quiet"]
    assert run(*words).status == 0
    np.save("x.npy", 2 * x)

    def killed(source, target):
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", killed)
        assert run(*words).status == 9
    assert not Path("codes/codes.json").exists()
    assert run(*words).status == 0  # the folder is known by what else is in it
    np.testing.assert_allclose(CodesFolder("codes").embeddings(), 2 * x)
    Path("codes/codes.json").unlink()
    Path("codes/thesis.tex").touch()
    refused(run(*words), "was not written by fit (it has thesis.tex)")


@pytest.mark.parametrize("held", [0, 60])
def test_noise_is_not_readable_though_rows_along_any_direction_are_alike(held: int) -> None:
    rng = np.random.default_rng(2)
    for x, few, many in ((rng.normal(size=(200, 24)), 0, 0.2), (clusters(200, 24, 8)[0], 0.8, 1)):
        codes = bayesncl.ReadableCodes(32).fit(x[: len(x) - held])
        line = judge(codes, x, Rows(tuple(map(str, range(200))), held=held), 0).lines[0]
        assert few * 32 <= line.value <= many * 32, line.text
        assert ", noise " in line.text and "each shuffled" in line.measured_by
    labelled = Rows(tuple(map(str, range(200))), np.arange(200) % 8, tuple("abcdefgh"))
    assert "noise" not in judge(codes, x, labelled, 0).lines[0].text  # labels, which no code was fitted to, tell it


def test_ctrl_c_ends_the_fit_of_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters()[0]
    codes = bayesncl.ReadableCodes(8).fit(x)
    monkeypatch.setattr(bayesncl.ReadableCodes, "fit", lambda self, x: setattr(self, "interrupted_", True) or self)
    with pytest.raises(KeyboardInterrupt):
        fit_module._noise(codes, x, None)


def test_codes_of_a_stranger_do_not_say_how_long_noise_is_fitted() -> None:
    x = clusters()[0]
    codes = bayesncl.ReadableCodes(8).fit(x).set_params(steps=10**12, batch=10**9, neighbours=10**9)
    assert fit_module._noise(codes, x, None)[0].shape == (60, 8)
    codes.dim_ = 10**6
    rows = Rows(tuple(map(str, range(60))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "_untrained", lambda codes, x: codes)
        patch.setattr(bayesncl.ReadableCodes, "transform", lambda self, x: x)
        assert "noise" not in fit_module.gather(codes, x, rows)[2]
