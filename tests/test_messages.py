"""The wording of error messages, compared with tests/messages.txt.

Every line of COMMANDS and CALLS is a mistake. Its message must be one line and equal the snapshot.
`pytest tests/test_messages.py --update-messages` rewrites the snapshot; review the difference.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features
from bayesncl.recipes import Gate, change, named, recipe_from_json, revise
from tests.commands import SETTINGS, call, draw_folder

SNAPSHOT = Path(__file__).with_name("messages.txt")
COMMANDS = """\
train scene
train damaged/recipe.json
train scenes --set run.epoch=3
train scenes --set run.epochs
train scenes --set run.batch=x
train scenes --set gate.prior=1.5
train scenes --set views.crop_scale=0.9,0.1
train scenes --set data.mean=none
train scenes --set data.name=cifar
train scenes --set gate.kind=stee TINY
train scenes-ncl-topk --set model.dim=8 TINY
train scenes --device abacus
train scenes --out run TINY
train folder
train folder --data empty
train folder --data one
train cifar10 --data empty
resume nowhere
resume damaged
resume run --set run.seed=1
evaluate damaged
evaluate x.npy
evaluate flat-run
evaluate codes --plots figures
measure text.npz
measure nan.npz
measure short.npz
measure objects.npz
measure x.npz --json x.npz
measure x.npz --json nowhere/m.json
measure x.npz --labels nowhere.csv
measure codes --labels labels.csv
embed run empty
embed run broken.png
embed run pictures -o z.txt
embed run pictures --active 99
embed run pictures --encoder module:function
embed codes x.npy --ungated
embed codes narrow.npy
fit x.npy -o x.npz
fit x.npy -o one
fit codes -o out
fit x.npy -o out --encoder resnet18
fit x.npy -o out --method magic
fit x.npy -o out --components 4 --active 5
fit x.npy -o out --images empty
fit x.npy -o out --labels short.npy
fit run -o out --labels labels.csv
fit pictures -o out --encoder tests.nothing:encoder
fit pictures -o out --encoder run --mean 1,2
export run -o model.bin
atlas
atlas run codes
atlas --features x.npz
quiz labels.json
views scenes -o nowhere/v.png
recipes cifar1000
cost cifar
download mnist
reproduce nothing
record empty
""".splitlines()
CALLS = """\
bayesncl.load("nowhere")
bayesncl.train("scene")
bayesncl.info_nce(torch.zeros(3, 4))
bayesncl.open_gates(torch.zeros(2, 2), "magic")
bayesncl.top_k_mask(torch.zeros(2, 3), 4)
bayesncl.interpretability(X, Y[:-1])
bayesncl.interpretability(X, Y, definition="magic")
bayesncl.retrieval(X, Y, ks=(0,))
bayesncl.ReadableCodes(0).fit(X)
bayesncl.ReadableCodes(4, n_active=5).fit(X)
bayesncl.ReadableCodes(4).fit(X[:1])
bayesncl.ReadableCodes(4).fit(X * np.nan)
bayesncl.ReadableCodes(4).fit(X, pairs=[0])
bayesncl.ReadableCodes.load("nowhere")
measure_features(X[:, 0], Y)
named("cifar100-bayesnlc")
Gate(prior=7)
change(named("scenes"), ["data.std=0,1,1"])
revise(named("scenes"), ["model.dim=3"])
recipe_from_json("{")
""".splitlines()


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
    np.save(root / "x.npy", x)
    np.save(root / "narrow.npy", x[:, :4])
    np.save(root / "short.npy", y[:-1])
    np.savez(root / "x.npz", z=x, y=y)
    np.savez(root / "nan.npz", z=x * np.nan, y=y)
    np.savez(root / "short.npz", z=x, y=y[:-1])
    np.savez(root / "objects.npz", z=np.array([["a", None]], object))
    (root / "text.npz").write_text("text")
    (root / "labels.csv").write_text("label\n" + "a\nb\nc\n" * 20)
    (root / "labels.json").write_text("{}")
    (root / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESNCL_CACHE", str(root / "cache"))
        patch.chdir(root)
        assert call("fit", "x.npy", "-o", "codes", "--components", "4", "--quiet") == 0
        unlabeled = [word for text in ("run.batch=8", "data.size=16") for word in ("--set", text)]
        command = ("train", "folder-ncl", "--data", "flat", *SETTINGS, *unlabeled, "--quiet")
        assert call(*command, "--out", "flat-run") == 0
    return root


@pytest.fixture(scope="module")
def snapshot(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The messages by mistake; with --update-messages, those of this run are written at the end."""
    update = request.config.getoption("--update-messages")
    blocks = SNAPSHOT.read_text().strip().split("\n\n") if SNAPSHOT.exists() else []
    messages = {} if update else dict(block.split("\n", 1) for block in blocks)
    yield messages
    if update:
        SNAPSHOT.write_text("\n\n".join("\n".join(item) for item in messages.items()) + "\n")


def check(key: str, message: str, folder: Path, snapshot: dict[str, str], update: bool) -> None:
    message = message.replace(f"{folder}/", "").replace(str(folder), ".")
    assert "\n" not in message and "Traceback" not in message
    if update:
        snapshot[key] = message
    else:
        assert message == snapshot.get(key), "if the new wording is meant: --update-messages"


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-messages"))


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(
    line: str, folder: Path, snapshot: dict[str, str], update: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = shlex.split(line)
    if words[-1] == "TINY":
        words[2:] = [*SETTINGS, *words[2:-1]]  # the mistake comes last
    quiet = ("train", "resume", "evaluate", "measure", "embed", "fit", "export", "atlas", "demo")
    monkeypatch.setenv("BAYESNCL_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)
    status = call(*words, *(["--quiet"] if words[0] in quiet else []))
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), (status, out, err)
    prefix = "bayesncl: "
    assert err.startswith(prefix) and err.endswith("\n")
    check(f"$ bayesncl {line}", err[len(prefix) : -1], folder, snapshot, update)


@pytest.mark.parametrize("line", CALLS)
def test_calls(
    line: str, folder: Path, snapshot: dict[str, str], update: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    x = np.load("x.npy")
    names = {"X": x, "Y": np.arange(len(x)) % 3, "np": np, "torch": torch, "bayesncl": bayesncl}
    functions = (measure_features, named, Gate, change, revise, recipe_from_json)
    names |= {function.__name__: function for function in functions}
    with pytest.raises(InputError) as caught:
        eval(line, names)
    check(f">>> {line}", str(caught.value), folder, snapshot, update)


def test_the_snapshot_has_no_stale_messages(snapshot: dict[str, str], update: bool) -> None:
    expected = {f"$ bayesncl {line}" for line in COMMANDS} | {f">>> {line}" for line in CALLS}
    assert update or set(snapshot) == expected
