"""Commands again: where they write, what they call things, and what goes on after a stop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl import atlas, progress
from bayesncl.errors import InputError
from bayesncl.files import check_place
from bayesncl.recipes import change, named
from tests.commands import SETTINGS, draw_folder, refused


class Board:
    """Stands in for TensorBoard's writer, which is an extra."""

    opened: ClassVar[list[Board]] = []

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.flushed = folder, [], False
        folder.mkdir(parents=True, exist_ok=True)
        Board.opened.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.append((name, step))

    def flush(self) -> None:
        self.flushed = True


def test_tensorboard_goes_on_where_a_run_does(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "open_board", Board)
    monkeypatch.setattr(Board, "opened", [])
    assert run("train", "scenes", *SETTINGS, "--out", "r", "--tensorboard", "--quiet").status == 0
    (board,) = Board.opened
    assert board.folder == Path("r/tensorboard")
    assert {name for name, _ in board.seen} >= {"loss", "open", "images_per_second"}
    assert board.flushed
    Path("r/model.safetensors").unlink()
    assert run("resume", "r", "--quiet").status == 0
    assert [each.folder for each in Board.opened] == [Path("r/tensorboard")] * 2


def test_a_run_that_ends_in_its_warm_up_says_so(run) -> None:
    answer = run("train", "scenes", *SETTINGS, "--set", "optimiser.warmup_epochs=3", "--out", "r")
    assert "the run ends within its warm-up of 3 epochs: --set optimiser.warmup_epochs=0" in answer.err
    answer = run("train", "scenes", *SETTINGS, "--set", "optimiser.warmup_epochs=0", "--out", "s")
    assert "warm-up" not in answer.err


def test_atlas_of_a_model_file_and_of_two_runs_of_one_name(run, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    shutil.copy(trained / "model.safetensors", "mine.safetensors")
    assert run("atlas", "mine.safetensors", "--quiet").status == 0
    assert Path("mine-atlas/index.html").is_file()
    shutil.copytree(trained, "other")
    served: list[tuple[Path, int]] = []
    monkeypatch.setattr(atlas, "serve", lambda folder, port: served.append((folder, port)))
    assert run("atlas", trained, "other", "-o", "two", "--serve", "--port", "8123", "--quiet").status == 0
    assert served == [(Path("two"), 8123)]
    here = Path.cwd().name
    assert f"{trained.parent.name}/{trained.name} and {here}/other" in Path("two/atlas.json").read_text()
    files = [folder / "model.safetensors" for folder in (trained, Path("other"))]
    assert run("atlas", *files, "-o", "files", "--quiet").status == 0
    title = f"{trained.name}/model.safetensors and other/model.safetensors"
    assert title in Path("files/atlas.json").read_text()


def test_cost_of_two_recipes_of_one_name(run) -> None:
    for file, dim in (("a.json", 64), ("b.json", 128)):
        Path(file).write_text(change(named("scenes"), [f"model.dim={dim}"]).to_json())
    answer = run("cost", "a.json", "b.json", "--json", "c.json")
    assert answer.status == 0, answer
    counted = json.loads(Path("c.json").read_text())
    assert counted["a.json"]["params"] < counted["b.json"]["params"]


def test_a_folder_one_may_not_write_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_place(tmp_path / "x.json") == tmp_path / "x.json"
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InputError, match="not permitted to write"):
        check_place(tmp_path / "x.json")


def test_embed_one_image(run, trained: Path, tmp_path: Path) -> None:
    picture = draw_folder(tmp_path / "pictures") / "ant" / "00.png"
    answer = run("embed", trained, picture, "-o", "z.npz")
    assert answer.status == 0, answer
    with np.load("z.npz", allow_pickle=False) as file:
        assert set(file) == {"z", "names"}
        assert file["names"].tolist() == ["00.png"]
        np.testing.assert_allclose(file["z"], bayesncl.load(trained).encode([Image.open(picture)]), atol=1e-5)
    (tmp_path / "not.png").write_bytes(b"not a picture")
    refused(run("embed", trained, tmp_path / "not.png", "-o", "n.npz", "--quiet"), "not.png")
    assert not Path("n.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "z.npz", "--json", "nowhere/m.json"], "there is no folder nowhere"),
        (["measure", "z.npz", "--csv", "."], "a folder, expected the name of a file"),
        (["evaluate", "RUN", "--markdown", "nowhere/m.md"], "there is no folder nowhere"),
        (["evaluate", "RUN", "--latex", "nowhere/m.tex"], "there is no folder nowhere"),
        (["cost", "scenes", "--json", "nowhere/c.json"], "there is no folder nowhere"),
        (["embed", "RUN", "pictures", "-o", "nowhere/z.npz"], "there is no folder nowhere"),
        (["views", "scenes", "-o", "nowhere/v.png"], "there is no folder nowhere"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_first(run, trained: Path, words: list[str], message: str) -> None:
    before = set(trained.iterdir())
    answer = run(*(trained if word == "RUN" else word for word in words))
    refused(answer, message)
    assert not answer.out
    assert set(trained.iterdir()) == before  # nothing was computed: an evaluation would be here
