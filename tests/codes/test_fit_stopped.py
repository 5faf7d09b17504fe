"""bayesncl fit that is killed, stopped or out of disk, and what stays valid in its folder."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes import encoders, estimator, sources
from bayesncl.codes import fit as fit_module
from bayesncl.codes import folder as folder_module
from bayesncl.codes.folder import CodesFolder
from tests.codes.test_fit import COMPONENTS, FIT, NET, check_rows, clusters, embedded, stop
from tests.commands import draw_folder, refused

WRITTEN = ("codes.json", "codes.safetensors", "embeddings.npy", "rows.json", "verdict.json")
__all__ = ["embedded"]


def contents(folder: Path | str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_stopped_while_embedding(
    error: BaseException, run, tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a kill or a full disk: what is embedded stays, but for damaged files of the log."""
    pictures = draw_folder(tmp_path / "pictures")
    monkeypatch.setattr(encoders, "BATCH_SIZE", {"cpu": 4})
    monkeypatch.setattr(sources, "LOG_SECONDS", 0)
    real = sources.write_saved

    def fail(path, *args, **options):
        if path.stem == "000004":
            raise error
        real(path, *args, **options)

    command = ("fit", "pictures", "-o", "codes", *FIT)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "write_saved", fail)
        answer = run(*command)
    assert answer.status == 130 or "No space" in refused(answer)
    refused(run("measure", "codes", "--quiet"), "codes")
    one, two = sorted(CodesFolder("codes").log.iterdir())[1:3]
    one.write_bytes(one.read_bytes()[:-7])
    data = bytearray(two.read_bytes())
    data[len(data) // 2] ^= 1
    two.write_bytes(data)
    embedded.clear()
    assert run(*command).status == 0
    assert len(embedded) == 24 - 2 and "ant/00.png" not in embedded and "ant/01.png" in embedded
    check_rows("codes", pictures)
    assert run("fit", "pictures", "-o", "whole", *FIT).status == 0
    assert contents("codes") == contents("whole")


def test_stopped_fit_ends_in_the_same_codes(run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("x.npy", clusters()[0])
    command = ("fit", "x.npy", COMPONENTS, "4", "--quiet", "-o")
    assert run(*command, "whole").status == 0
    real = estimator.warmup_cosine

    def stopped(step, *args, **options):
        return stop() if step > 20 else real(step, *args, **options)

    for target, name, stand_in in (
        (estimator, "warmup_cosine", stopped), (fit_module, "figures", stop)
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stand_in)
            assert run(*command, "codes").status == 130
        refused(run("measure", "codes", "--quiet"))
    assert run(*command, "codes").status == 0
    assert contents("codes") == contents("whole")
    assert run(*command, "codes", "--seed", "1").status == 0
    assert contents("codes") != contents("whole")


@pytest.mark.parametrize("moment", ["write_rows", "figures", "publish"])
def test_old_codes_stay_valid_until_the_new_ones_are_safe(
    moment: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refit of other photos and options that fails leaves rows, codes, verdict, evaluation."""
    pictures = draw_folder(tmp_path / "p", each=20)
    assert run("fit", "p", "-o", "codes", *FIT).status == 0
    assert run("evaluate", "codes", "--quiet").status == 0
    before = contents("codes")
    assert "evaluation.json" in before
    shutil.rmtree(pictures / "ant")
    words = ("fit", "p", "-o", "codes", "--encoder", NET, COMPONENTS, "8", "--quiet")

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = CodesFolder if moment != "figures" else fit_module
    with monkeypatch.context() as patch:
        patch.setattr(target, moment, full)
        assert run(*words).status in (1, 2)
    old = {name: data for name, data in contents("codes").items() if "part" not in name}
    assert old == before
    assert len(CodesFolder("codes").rows()) == 60 and CodesFolder("codes").verdict() is not None
    assert run("measure", "codes", "--quiet").status == 0
    assert run(*words).status == 0
    folder = CodesFolder("codes")
    assert len(folder.rows()) == 40 and folder.codes().n_components_ == 8
    assert folder.verdict()["dimensions"] == 8 and not folder.evaluation_file.exists()


def test_killed_while_publishing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every number of moved files, nothing that does not match is used, and fit recovers."""
    draw_folder(tmp_path / "p", each=20)
    assert run("fit", "p", "-o", "old", *FIT).status == 0
    (tmp_path / "p/ant/00.png").unlink()
    assert run("fit", "p", "-o", "new", *FIT).status == 0
    expected = contents("new")
    for count in range(len(WRITTEN)):
        shutil.rmtree("codes", ignore_errors=True)
        shutil.copytree("old", "codes")
        moved: list[Path] = []
        real = os.replace

        def replace(source, target, count=count, moved=moved, real=real):
            if Path(source).parent.name == ".new" != Path(target).parent.name:
                if len(moved) == count:
                    stop()
                moved.append(target)
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(folder_module.os, "replace", replace)
            assert run("fit", "p", "-o", "codes", *FIT).status == 130
        if count:
            refused(run("measure", "codes", "--quiet"))
            assert CodesFolder("codes").verdict() is None or count < 4
        assert run("fit", "p", "-o", "codes", *FIT).status == 0
        assert contents("codes") == expected


@pytest.mark.parametrize("name", ["codes.json", "rows.json", "embeddings.npy", "codes.safetensors"])
def test_damage_is_noticed_and_repaired(name: str, run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures")
    command = ("fit", "pictures", "-o", "codes", *FIT)
    assert run(*command).status == 0
    path = tmp_path / "codes" / name
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) * 2 // 3] ^= 1
    for bad in (b"", good[: len(good) // 2], bytes(flipped), b"[]", b'{"format": 3}', None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        assert run("measure", "codes", "--quiet").status == 2
        if name != "codes.json" or bad is not None:
            assert run(*command).status == 0
            assert run("measure", "codes", "--quiet").status == 0
        path.write_bytes(good)


def test_folder_of_others_or_in_use_is_refused(run) -> None:
    np.save("x.npy", clusters()[0])
    with CodesFolder("codes").lock():
        refused(run("fit", "x.npy", "-o", "codes", "--quiet"), "in use")
    assert run("fit", "x.npy", "-o", "codes", "--quiet").status == 0
    Path("thesis").mkdir()
    Path("thesis/codes.json").write_text(json.dumps({"colors": []}))
    refused(run("fit", "x.npy", "-o", "thesis", "--quiet"), "not written by fit")
