"""What the tests of commands share: settings of tiny runs, folders of pictures, how a refusal looks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from bayesncl import cli
from tests.conftest import TINY

SETTINGS = [
    word for text in [*TINY, "run.epochs=1", "data.train_images=96", "data.test_images=60"] for word in ("--set", text)
]


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def call(*words: object) -> int:
    """Call a command in this process; its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bayesncl", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return int(left.value.code or 0)


def refused(answer: Answer, *words: str) -> str:
    """Checks that it is one line on stderr, nothing on stdout and status 2; gives the line."""
    assert answer.status == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("bayesncl: "), answer.err
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err
    return answer.err


def draw_folder(folder: Path, classes: tuple[str, ...] = ("ant", "bee <b>", "cat"), each: int = 8) -> Path:
    """Class subfolders of small coloured pictures; flat if there are no classes."""
    rng = np.random.default_rng(0)
    for c, name in enumerate(classes or ("",)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each if classes else 3 * each):
            tint = rng.integers(0, 256, 3) if not classes else np.array([60 * c + 40, 200 - 60 * c, 100])
            noise = rng.integers(-30, 30, (20, 24, 3))
            Image.fromarray((tint + noise).clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:02}.png")
    return folder
