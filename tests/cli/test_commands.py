"""The commands, from training to the atlas."""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl.cli import app as cli
from bayesncl.cli import train as train_commands
from bayesncl.errors import InputError
from bayesncl.measure import interpretability
from bayesncl.paper import cost, ledger
from bayesncl.recipes import recipe_from_json
from bayesncl.training.run_folder import RunFolder
from tests.commands import SETTINGS, Answer, draw_folder, refused
from tests.conftest import TINY, tiny_recipe

# training


def test_train_names_its_folder_and_never_overwrites_a_run(run, trained: Path) -> None:
    answer = run("train", "scenes-ncl", *SETTINGS)
    assert answer.status == 0
    assert "bayesncl fit runs/scenes-ncl -o codes\n" in answer.err
    assert Path("runs/scenes-ncl/model.safetensors").exists()
    refused(run("train", "scenes", *SETTINGS, "--out", trained), "resume")


def test_train_a_recipe_file_with_tensorboard_and_resume(run) -> None:
    pytest.importorskip("tensorboard")
    recipe = tiny_recipe("ncl", "run.epochs=1", "data.train_images=40", "run.dynamics_every=1")
    Path("mine.json").write_text(recipe.to_json())
    words = ("mine.json", "--set", "run.seed=4", "--out", "r", "--tensorboard")
    assert run("train", *words, "--quiet").status == 0
    assert recipe_from_json(Path("r/recipe.json").read_text()).run.seed == 4
    lines = [json.loads(text) for text in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("kind") == "dynamics"] == [2]
    weights = Path("r/model.safetensors")
    before = weights.read_bytes()
    weights.unlink()
    assert run("resume", "r", "--quiet").status == 0
    assert len(list(Path("r/tensorboard").glob("events*"))) == 2
    assert "finished" in run("resume", "r").err and weights.read_bytes() == before


def test_a_folder_of_images(run, tmp_path: Path) -> None:
    """Fewer images than a batch, in class folders, from training to the atlas."""
    pictures = draw_folder(tmp_path / "pictures")
    tiny = ["model.backbone=small", *(t for t in TINY if "batch" not in t), "run.epochs=1"]
    small = [word for text in [*tiny, "data.holdout=0.3"] for word in ("--set", text)]
    answer = run("train", "folder", "--data", pictures, *small, "--out", "own")
    assert answer.status == 0, answer
    assert recipe_from_json(Path("own/recipe.json").read_text()).run.batch == 16
    assert run("atlas", "own", "--quiet").status == 0
    assert Path("own/atlas/index.html").is_file()
    moved, before = pictures.rename(tmp_path / "moved"), set(Path("own").iterdir())
    refused(run("evaluate", "own", "--quiet"), str(pictures))
    model = ("own/model.safetensors", "--data", moved, "--json", "e.json")
    answer = run("evaluate", *model, "--quiet")
    assert (answer.status, answer.err) == (0, ""), answer
    assert json.loads(Path("e.json").read_text())["parameters"]["classes"] <= 3
    assert set(Path("own").iterdir()) == before  # nothing is written beside a model file
    assert run("atlas", "own", "--quiet", "--data", "moved", "--out", "elsewhere").status == 0


def test_a_folder_without_classes(run, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "flat", ())
    words = ("--data", pictures, *SETTINGS, "--set", "model.backbone=small", "--out", "own")
    assert run("train", "folder-ncl", *words).status == 0
    refused(run("evaluate", "own", "--quiet"), "no labels")
    assert run("atlas", "own", "--quiet").status == 0
    assert run("embed", "own", pictures, "-o", "z.npz", "--quiet").status == 0
    with np.load("z.npz", allow_pickle=False) as file:
        assert set(file) == {"z", "names"}
        assert file["z"].shape == (24, 12)
    assert run("measure", "z.npz", "--quiet", "--json", "z.json", "--csv", "z.csv").status == 0
    assert {"verdict", "coverage"} <= set(json.loads(Path("z.json").read_text()))


# measuring


def test_evaluate_writes_every_format_and_record_takes_its_values(run, trained: Path) -> None:
    files = ("--json", "e.json", "--csv", "e.csv", "--markdown", "e.md")
    answer = run("evaluate", trained, *files, "--plots", "plots")
    assert answer.status == 0, answer
    results = json.loads(Path("e.json").read_text())
    assert json.loads((trained / "evaluation.json").read_text()) == results
    assert results["parameters"]["recipe"] == json.loads((trained / "recipe.json").read_text())
    assert "\nsound,consistency," in Path("e.csv").read_text()
    assert "| sound | consistency (%) |" in Path("e.md").read_text()
    pictures = {path.name for path in Path("plots").iterdir()}
    assert {"consistency.png", "entropy.png", "retrieval.png", "thresholds.png"} <= pictures
    answer = run("record", trained, "--results", "book", "--quiet")
    assert answer.status == 0, answer
    (entry,) = ledger.read(Path("book"))
    assert ledger.file_name(RunFolder(trained).recipe()) in answer.out
    consistency = results["sound"]["consistency"]
    assert entry["measures"]["sound"]["consistency"] == pytest.approx(consistency, rel=1e-6)
    assert entry["exemplars"]["high_entropy"]


def test_measure_computes_the_spectrum_on_request(run, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.savez("f.npz", z=np.abs(rng.normal(size=(40, 6))), y=np.arange(40) % 4)
    answer = run("measure", "f.npz", "--all", "--quiet")
    assert answer.status == 0, answer
    assert "effective rank" in answer.out and "threshold 0.2" in answer.out
    assert run("measure", "f.npz", "--json", "m.json", "--quiet").status == 0
    assert json.loads(Path("m.json").read_text())["sound"]["effective_rank"] > 1
    monkeypatch.setattr(interpretability, "gram", lambda *_, **__: pytest.fail("not asked for"))
    plain = run("measure", "f.npz", "--quiet")
    assert plain.status == 0 and len(plain.out) < len(answer.out)


def test_costs_of_recipes_of_one_name_have_the_names_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "cost", lambda recipe, _: {"dim": recipe.model.dim})
    dims = {str(tmp_path / "a.json"): {"dim": 64}, str(tmp_path / "b.json"): {"dim": 128}}
    for file, value in dims.items():
        Path(file).write_text(tiny_recipe("ncl", f"model.dim={value['dim']}").to_json())
    assert cost.count_costs(list(dims), None, None, None) == dims


# embedding and the atlas


def test_embed_and_the_atlas_of_a_file(run, trained: Path, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "pictures")
    answer = run("embed", trained, pictures, "-o", "z.npz")
    assert answer.status == 0 and "24 images x 12 dimensions" in answer.err
    with np.load("z.npz", allow_pickle=False) as file:
        z, names = file["z"], file["names"]
        assert file["class_names"].tolist() == ["ant", "bee <b>", "cat"]
        assert file["y"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    images = [Image.open(pictures / name) for name in names]
    model = bayesncl.load(trained)
    np.testing.assert_allclose(z, model.encode(images), atol=1e-5)
    ungated = model.encode(images, gated=False, n_active=2)
    for option in ("--active", "--keep"):  # the former spelling
        command = ("embed", trained, pictures, "-o", "k.npz", option, "2", "--ungated", "--quiet")
        assert run(*command).status == 0
        with np.load("k.npz") as file:
            np.testing.assert_allclose(file["z"], ungated, atol=1e-5)
    raw = np.stack([np.asarray(image) for image in images])[:, :, 2:22]
    np.savez("all.npz", z=z, images=raw, y=np.arange(24) % 3)
    assert run("atlas", "--features", "all.npz").status == 0
    assert Path("all-atlas/index.html").is_file()


# the rest


def test_recipes(run, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = run("recipes").out
    assert "cifar100" in listing and "bayesncl-nodetach" in listing
    shown = run("recipes", "cifar100").out
    assert re.search(r"gate\.prior\s+= 0\.8\s", shown)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("recipes", "cifar100").out
    assert max(map(len, (listing + narrow).splitlines())) <= 80
    assert narrow.split() == shown.split()


def test_views(run) -> None:
    assert run("views", "scenes", *SETTINGS, "--count", "3", "-o", "v.png").status == 0
    with Image.open("v.png") as sheet:  # an image and two views of four epochs, 64 px and a gap
        assert sheet.height == 3 * 66 - 2 and 9 * 66 < sheet.width < 10 * 66


def test_version(run) -> None:
    assert run("--version") == Answer(0, bayesncl.__version__ + "\n", "")


@pytest.mark.parametrize("command", [[], *([c.__name__] for c in cli.COMMANDS)])
def test_help_fits_80_columns(run, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(*command, "--help").out
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.partition("Commands:")[2]  # no summary is cut off
    assert not re.search(r"--[\w-]+ (None|<)", text)  # no Python types


# errors


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("two\nlines \x1b[31m"), 2, "bayesncl: two lines \\x1b[31m\n"),
        (MemoryError(), 1, "bayesncl: out of memory\n"),
        (OSError(28, "No space left", "x.npz"), 1, "bayesncl: x.npz: No space left\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line_and_bugs_are_not_hidden(
    run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    errors = [error, RuntimeError("shapes do not match")]
    monkeypatch.setattr(train_commands, "find_recipe", Mock(side_effect=errors))
    answer = run("recipes", "x")
    assert (answer.status, answer.err) == (status, line)
    with pytest.raises(RuntimeError, match="shapes"):
        run("recipes", "x")
