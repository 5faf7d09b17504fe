"""SIGKILL during `train`, `fit` and `atlas`: repeated, the command ends in the same bytes.

The process that forks all others imports what they need once, and computes nothing itself.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.commands import call, draw_folder
from tests.conftest import TINY, tiny_recipe

ROOT = Path(__file__).parents[1]
KILLS = 2
CHANGES = (*TINY, "data.train_images=64", "run.epochs=10")
TRAIN = ["train", "scenes", *(word for text in CHANGES for word in ("--set", text))]
FIT = ["--components", 16, "-o"]
COMMANDS = {
    "model": [*TRAIN, "--out"],
    "array": ["fit", "x.npy", *FIT],
    "photos": ["fit", "photos", "--encoder", "m.safetensors", *FIT],
    "page": ["atlas", "photos-whole", "-o"],
}


def start(*words: object) -> int:
    """Run a command in a child; its process id."""
    if (child := os.fork()) == 0:
        os._exit(call(*words, "--quiet"))
    return child


def finish(*words: object) -> None:
    assert os.waitpid(start(*words), 0)[1] == 0, words


def kill_and_repeat(name: str, kills: int) -> None:
    """Run a command into NAME-whole; into NAME-killed, with kills at random moments."""
    words, whole, killed = COMMANDS[name], Path(f"{name}-whole"), Path(f"{name}-killed")
    began = time.monotonic()
    finish(*words, whole)
    seconds, rng = time.monotonic() - began, random.Random(name)

    def again() -> list[object]:
        train = name == "model" and (killed / "recipe.json").exists()
        return ["resume", killed] if train else [*words, killed]

    for _ in range(kills):
        child = start(*again())
        time.sleep(rng.uniform(0.1, 0.9) * seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    finish(*again())


def contents(folder: Path) -> dict[str, bytes]:
    """All files, without what is of the time and not of the work."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    found.pop("environment.json", None)
    if lines := found.pop("metrics.jsonl", b"").splitlines():
        found["steps"] = repr([json.loads(line)["step"] for line in lines]).encode()
    return found


def test_a_killed_command_ends_in_the_same_bytes(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BAYESNCL_REVISION": "tests"}
    environment |= {"PYTHONPATH": str(ROOT), "BAYESNCL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "tests.test_kills"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    for name in COMMANDS:
        whole, killed = (contents(tmp_path / f"{name}-{how}") for how in ("whole", "killed"))
        assert whole and killed.keys() == whole.keys(), name
        assert [file for file in whole if killed[file] != whole[file]] == [], name


if __name__ == "__main__":
    import bayesncl.atlas.sources
    import bayesncl.codes.fit
    import bayesncl.training.loop  # noqa: F401
    from bayesncl.method.encoder import build_model
    from bayesncl.training.run_folder import model_bytes

    draw_folder(Path("photos"))
    np.save("x.npy", np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32))
    Path("m.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
    for name in COMMANDS:
        kill_and_repeat(name, KILLS)
