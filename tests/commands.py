"""Shared by the tests of commands: settings of tiny runs, folders of pictures, refusals."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from bayesncl import device
from bayesncl.cli import app as cli
from tests.conftest import TINY

SIZES = ["run.epochs=1", "data.train_images=96", "data.test_images=60"]
SETTINGS = [word for text in [*TINY, *SIZES] for word in ("--set", text)]


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def call(*words: object) -> int:
    """Call a command in this process; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bayesncl", *map(str, words)])
        patch.setattr(device, "_default", "auto")  # --device sets it
        with pytest.raises(SystemExit) as left:
            cli.main()
    return int(left.value.code or 0)


def refused(answer: Answer, *words: str) -> str:
    """Check for status 2, nothing on stdout, one line with these words on stderr; return it."""
    assert (answer.status, answer.out) == (2, ""), answer
    assert answer.err.startswith("bayesncl: ") and answer.err.count("\n") == 1, answer.err
    assert all(word in answer.err for word in words), answer.err
    return answer.err


def draw_folder(
    folder: Path, classes: tuple[str, ...] = ("ant", "bee <b>", "cat"), each: int = 8
) -> Path:
    """Write small colored pictures into class folders, or into one folder without classes."""
    rng = np.random.default_rng(0)
    for c, name in enumerate(classes or ("",)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each if classes else 3 * each):
            tint = (60 * c + 40, 200 - 60 * c, 100) if classes else rng.integers(0, 256, 3)
            pixels = (tint + rng.integers(-30, 30, (20, 24, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
    return folder
