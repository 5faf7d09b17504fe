"""The wording of error messages, compared with tests/messages.txt.

That file pairs mistakes, commands and calls, with their messages, each one line. To add one, write
its first line there. `pytest tests/test_messages.py --update-messages` rewrites the messages;
review the difference.
"""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features
from bayesncl.jobs.audit import audit
from bayesncl.jobs.explain import explain
from bayesncl.jobs.find import find_similar
from bayesncl.recipes import Gate, change, named, recipe_from_json, revise
from tests.commands import SETTINGS, call, draw_folder

SNAPSHOT = Path(__file__).with_name("messages.txt")
BLOCKS = [block.split("\n") for block in SNAPSHOT.read_text().strip().split("\n\n")]
MESSAGES = {mistake: "\n".join(message) for mistake, *message in BLOCKS}
QUIET = ("train", "resume", "evaluate", "measure", "embed", "fit", "export", "atlas", "demo")


def show_in_atlas(z: np.ndarray) -> None:
    build_atlas(Path("page"), [AtlasRun("r", z)], Images(np.zeros((60, 3, 8, 8), np.uint8)))


CALLABLE = (
    measure_features, named, Gate, change, revise, recipe_from_json, audit, explain, find_similar,
    show_in_atlas,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """Everything that the commands name."""
    root = tmp_path_factory.mktemp("messages")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3
    shutil.copytree(trained, root / "run")
    shutil.copytree(trained, root / "damaged")
    (root / "damaged" / "recipe.json").write_text("{")
    (root / "damaged" / "model.safetensors").write_bytes(b"not weights")
    draw_folder(root / "pictures")
    draw_folder(root / "flat", ())
    for name in ("empty", "one"):
        (root / name).mkdir()
    shutil.copy(root / "flat" / "00.png", root / "one")
    (root / "broken.png").write_bytes(b"not an image")
    bad = np.where(np.arange(60)[:, None] == 3, np.nan, x)
    arrays = {
        "x": x, "narrow": x[:, :4], "short": y[:-1], "row": x[:1], "same": np.ones((9, 4)),
        "flat": x[0], "images": np.zeros((4, 8, 8, 3), np.uint8), "text": np.array([["a", "b"]]),
        "huge": x * 1e20, "nan": bad,
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(root / f"{name}.npy", array)
    np.savez(root / "x.npz", z=x, y=y)
    np.savez(root / "nan.npz", z=x * np.nan, y=y)
    np.savez(root / "short.npz", z=x, y=y[:-1])
    np.savez(root / "objects.npz", z=np.array([["a", None]], object))
    (root / "text.npz").write_text("text")
    (root / "labels.csv").write_text("label\n" + "a\nb\nc\n" * 20)
    (root / "labels.json").write_text("{}")
    (root / "gap.csv").write_text("a,b\n1,2\n3,\n")
    (root / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESNCL_CACHE", str(root / "cache"))
        patch.chdir(root)
        assert call("fit", "x.npy", "-o", "codes", "--components", "4", "--quiet") == 0
        unlabeled = [word for text in ("run.batch=8", "data.size=16") for word in ("--set", text)]
        command = ("train", "folder-ncl", "--data", "flat", *SETTINGS, *unlabeled, "--quiet")
        assert call(*command, "--out", "flat-run") == 0
    return root


@pytest.fixture(scope="module", autouse=True)
def snapshot(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --update-messages, write the messages of this run at the end."""
    yield
    if request.config.getoption("--update-messages"):
        SNAPSHOT.write_text("\n\n".join("\n".join(item) for item in MESSAGES.items()) + "\n")


@pytest.mark.parametrize("mistake", MESSAGES)
def test_a_mistake_gets_its_message(
    mistake: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BAYESNCL_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)
    make = message_of_command if mistake.startswith("$ bayesncl ") else message_of_call
    message = make(mistake, capsys).replace(f"{folder}/", "").replace(str(folder), ".")
    assert "\n" not in message and "Traceback" not in message
    if request.config.getoption("--update-messages"):
        MESSAGES[mistake] = message
    assert message == MESSAGES[mistake], "if the new wording is meant: --update-messages"


def message_of_command(mistake: str, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(mistake.removeprefix("$ bayesncl "))
    if words[-1] == "TINY":
        words[2:] = [*SETTINGS, *words[2:-1]]  # the mistake comes last
    status = call(*words, *(["--quiet"] if words[0] in QUIET else []))
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), (status, out, err)
    assert err.startswith("bayesncl: ") and err.endswith("\n")
    return err.removeprefix("bayesncl: ").removesuffix("\n")


def message_of_call(mistake: str, _: object) -> str:
    x = np.load("x.npy")
    names = {"X": x, "Y": np.arange(len(x)) % 3, "np": np, "torch": torch, "bayesncl": bayesncl}
    names |= {function.__name__: function for function in CALLABLE}
    with pytest.raises(InputError) as caught:
        eval(mistake.removeprefix(">>> "), names)
    return str(caught.value)
