"""The demo, at a size that takes seconds."""

import json
import re
import webbrowser
from pathlib import Path
from unittest.mock import Mock

import pytest

from bayesncl.codes.folder import CodesFolder
from bayesncl.training import loop
from tests.commands import refused
from tests.conftest import TINY

SIZES = ["run.epochs=1", "data.train_images=120", "data.test_images=80"]
WORDS = ["demo", "--quiet", *(word for text in [*TINY, *SIZES] for word in ("--set", text))]


def test_demo_ends_in_a_sentence_and_an_atlas(run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    answer = run(*WORDS, "--out", "d")
    assert answer.status == 0, answer
    found = re.search(r"^(\d+) of 64 dimensions", answer.out, re.MULTILINE)
    verdict = json.loads(Path("d/codes/verdict.json").read_text())
    assert found and int(found[1]) == verdict["lines"][0]["value"]
    page = Path("d/atlas/index.html")
    assert opened == [page.resolve().as_uri()]
    assert f"open {page}" in answer.out
    folder = CodesFolder("d/codes")
    assert folder.codes().transform(folder.embeddings()).shape[1] == 64

    monkeypatch.setattr(loop, "train_step", lambda *_: pytest.fail("trained again"))
    again = run(*WORDS, "--out", "d", "--no-open")
    assert (again.status, len(opened)) == (0, 1)
    first, second = (each.out.splitlines() for each in (answer, again))
    assert second[1:] == first[1:]  # the first line has the time it took
    refused(run(*WORDS, "--set", "run.seed=1", "--out", "d"), "another recipe")


def test_a_stopped_demo_says_how_to_continue(run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    stopped = loop.Interrupted("stopped after 3 of 9 steps")
    monkeypatch.setattr(loop, "train", Mock(side_effect=stopped))
    answer = run(*[word for word in WORDS if word != "--quiet"], "--no-open")
    assert answer.status == 130
    assert "same command" in answer.err and "Traceback" not in answer.err
