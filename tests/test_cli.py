"""The commands, from training to the atlas, and what each says of bad input."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl import cli
from bayesncl.errors import InputError, say
from bayesncl.recipes import recipe_from_json
from tests.commands import SETTINGS, Answer, draw_folder, refused
from tests.conftest import TINY, tiny_recipe

ROOT = Path(__file__).parent.parent
# train


def test_train_makes_a_run(trained: Path) -> None:
    assert {"recipe.json", "metrics.jsonl", "environment.json", "checkpoints", "model.safetensors"} <= {
        path.name for path in trained.iterdir()
    }
    recipe = recipe_from_json((trained / "recipe.json").read_text())
    assert recipe == tiny_recipe("bayesncl", "run.epochs=1", "data.train_images=96", "data.test_images=60")
    assert bayesncl.load(trained).recipe == recipe


def test_train_numbers_its_folders_and_guards_them(run, trained: Path) -> None:
    for folder in ("runs/scenes-ncl", "runs/scenes-ncl-2"):
        answer = run("train", "scenes-ncl", *SETTINGS)
        assert answer.status == 0
        assert f"trained: {folder}\n" in answer.err
        assert f"bayesncl fit {folder} -o codes\n" in answer.err
        assert Path(folder, "model.safetensors").exists()
    refused(run("train", "scenes", *SETTINGS, "--out", trained), "holds a run already", "bayesncl resume")
    refused(run("train", "scenes", *SETTINGS, "--device", "abacus"), "no device")  # said before anything is drawn


def test_train_from_a_recipe_file(run, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    recipe = tiny_recipe("ncl", "run.epochs=1", "data.train_images=40", "run.dynamics_every=1")
    file.write_text(recipe.to_json())
    assert run("train", file, "--set", "run.seed=4", "--out", "r", "--quiet").status == 0
    assert recipe_from_json(Path("r/recipe.json").read_text()).run.seed == 4
    lines = [json.loads(text) for text in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("kind") == "dynamics"] == [2]


def test_resume_a_finished_run(run, trained: Path) -> None:
    before = (trained / "model.safetensors").read_bytes()
    answer = run("resume", trained)
    assert (answer.status, answer.err) == (0, f"{trained} is finished\n")
    assert (trained / "model.safetensors").read_bytes() == before


def test_resume_a_run_whose_model_is_missing(run, trained: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(trained, again)
    (again / "model.safetensors").unlink()
    assert run("resume", again, "--quiet").status == 0
    first, second = bayesncl.load(trained).state_dict(), bayesncl.load(again).state_dict()
    assert all((first[name] == second[name]).all() for name in first)


def test_a_folder_of_images(run, tmp_path: Path) -> None:
    """Training on one's own images: fewer than a batch, with class subfolders, then every command that takes a run."""
    pictures = draw_folder(tmp_path / "pictures")
    tiny = ["model.backbone=small", *(t for t in TINY if "batch" not in t), "run.epochs=1"]
    small = [word for change in tiny for word in ("--set", change)]
    answer = run("train", "folder", "--data", pictures, *small, "--set", "data.holdout=0.3", "--out", "own")
    assert answer.status == 0, answer
    assert "only 17 training images: batch lowered from 64 to 16" in answer.err
    assert recipe_from_json(Path("own/recipe.json").read_text()).run.batch == 16
    answer = run("evaluate", "own", "--quiet")
    assert answer.status == 0, answer
    assert "dimensions kept" in answer.out
    assert answer.err == ""  # no warning of a library's
    assert json.loads(Path("own/evaluation.json").read_text())["parameters"]["classes"] <= 3
    assert run("atlas", "own", "--quiet").status == 0
    assert Path("own/atlas/index.html").is_file()
    moved = pictures.rename(tmp_path / "moved")
    refused(run("evaluate", "own", "--quiet"), str(pictures))
    assert run("evaluate", "own", "--quiet", "--data", moved).status == 0
    assert run("atlas", "own", "--quiet", "--data", "moved", "--out", "elsewhere").status == 0


def test_a_folder_without_classes(run, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "flat", ())
    small = ["--set", "model.backbone=small", *[w for t in TINY for w in ("--set", t)], "--set", "run.epochs=1"]
    assert run("train", "folder-ncl", "--data", pictures, *small, "--out", "own", "--quiet").status == 0
    refused(run("evaluate", "own", "--quiet"), "no labels")
    assert run("atlas", "own", "--quiet").status == 0
    assert run("embed", "own", pictures, "-o", "z.npz", "--quiet").status == 0
    with np.load("z.npz", allow_pickle=False) as file:
        assert set(file) == {"z", "names"}
        assert file["z"].shape == (24, 12)
    answer = run("measure", "z.npz", "--quiet", "--json", "z.json", "--csv", "z.csv")
    assert answer.status == 0, answer
    assert "no labels were given" in answer.out
    assert {"verdict", "coverage"} <= set(json.loads(Path("z.json").read_text()))


# evaluate and measure


def test_evaluate_writes_every_format(run, trained: Path) -> None:
    files = ("--json", "e.json", "--csv", "e.csv", "--markdown", "e.md", "--latex", "e.tex")
    answer = run("evaluate", trained, *files, "--plots", "plots")
    assert answer.status == 0, answer
    assert "dimensions are readable" in answer.out or "too few" in answer.out
    assert not re.search(r"paper\s+consistency", answer.out)
    assert re.search(r"dimensions kept .*\n *consistency", answer.out)
    results = json.loads(Path("e.json").read_text())
    assert json.loads((trained / "evaluation.json").read_text()) == results
    assert results["parameters"]["recipe"] == json.loads((trained / "recipe.json").read_text())
    rows = list(csv.reader(Path("e.csv").read_text().splitlines()))
    assert rows[0] == ["definition", "measure", "value", "chance", "untrained"]
    value = next(row for row in rows if row[:2] == ["sound", "consistency"])
    assert float(value[2]) == results["sound"]["consistency"]
    assert float(value[3]) == results["chance"]["sound"]["consistency"]
    assert Path("e.md").read_text().startswith("| definition | measure | value | chance | untrained |\n| --- | --- |")
    assert Path("e.tex").read_text().startswith("\\begin{tabular}{llrrr}")
    assert "| sound | consistency (%) |" in Path("e.md").read_text()
    assert len(Path("e.md").read_text().splitlines()) < len(rows)
    assert "effective rank" not in answer.out
    pictures = {path.name for path in Path("plots").iterdir()}
    assert {"consistency.png", "entropy.png", "retrieval.png", "thresholds.png", "conflict.png"} <= pictures


def test_measure_prints_everything_if_asked(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesncl.measure import interpretability

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", z=np.abs(rng.normal(size=(40, 6))), y=np.arange(40) % 4)
    answer = run("measure", tmp_path / "f.npz", "--all", "--quiet")
    assert answer.status == 0, answer
    assert "effective rank" in answer.out
    assert "threshold 0.2" in answer.out
    assert run("measure", tmp_path / "f.npz", "--json", "m.json", "--quiet").status == 0
    assert json.loads(Path("m.json").read_text())["sound"]["effective_rank"] > 1
    monkeypatch.setattr(interpretability, "gram", lambda *_, **__: pytest.fail("the spectrum was not asked for"))
    plain = run("measure", tmp_path / "f.npz", "--quiet")
    assert plain.status == 0, plain
    assert "effective rank" not in plain.out
    assert len(plain.out.splitlines()) < len(answer.out.splitlines())


def test_record_puts_a_finished_run_into_a_ledger(run, trained: Path, tmp_path: Path) -> None:
    from bayesncl.reproduce import ledger
    from bayesncl.run import Run

    own = tmp_path / "own"
    shutil.copytree(trained, own)
    (own / "evaluation.json").unlink(missing_ok=True)
    answer = run("record", own, "--results", "book", "--quiet")
    assert answer.status == 0, answer
    (entry,) = ledger.read(Path("book"))
    assert answer.out == f"recorded book/{ledger.file_name(Run(own).recipe())}\n"
    results = json.loads((own / "evaluation.json").read_text())
    assert entry["measures"]["sound"]["consistency"] == pytest.approx(results["sound"]["consistency"], rel=1e-6)
    assert entry["exemplars"]["high_entropy"]
    results["sound"]["consistency"] = 12.5  # what was evaluated is not evaluated again
    results["parameters"]["recipe"] = {"data": {"root": "/somewhere"}}
    (own / "evaluation.json").write_text(json.dumps(results))
    assert run("record", own, "--results", "book", "--quiet").status == 0
    (entry,) = ledger.read(Path("book"))
    assert entry["measures"]["sound"]["consistency"] == 12.5
    assert "recipe" not in entry["measures"]["parameters"]
    (own / "evaluation.json").write_text("[1]")
    refused(run("record", own, "--results", "book", "--quiet"), "not the results of an evaluation")
    (own / "model.safetensors").unlink()
    refused(run("record", own, "--results", "book", "--quiet"), "is not finished")


def test_evaluate_a_model_file(run, trained: Path) -> None:
    before = set(trained.iterdir())
    answer = run("evaluate", trained / "model.safetensors", "--json", "e.json", "--quiet")
    assert answer.status == 0, answer
    assert "paper" in json.loads(Path("e.json").read_text())
    assert set(trained.iterdir()) == before


def test_embed_then_measure_and_atlas(run, trained: Path, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "pictures")
    answer = run("embed", trained, pictures, "-o", "z.npz")
    assert answer.status == 0, answer
    assert "z.npz: 24 images x 12 dimensions" in answer.err
    with np.load("z.npz", allow_pickle=False) as file:
        z, names = file["z"], file["names"]
        assert file["class_names"].tolist() == ["ant", "bee <b>", "cat"]
        assert file["y"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert names[8] == "bee <b>/00.png"
    model = bayesncl.load(trained)
    wanted = model.encode([Image.open(pictures / name) for name in names])
    np.testing.assert_allclose(z, wanted, atol=1e-5)
    assert run("embed", trained, pictures, "-o", "k.npz", "--keep", "2", "--ungated", "--quiet").status == 0
    with np.load("k.npz") as file:
        wanted = model.encode([Image.open(pictures / name) for name in names], gated=False, keep=2)
        np.testing.assert_allclose(file["z"], wanted, atol=1e-5)
    assert run("embed", trained, pictures, "-o", "u.npz", "--ungated", "--quiet").status == 0
    with np.load("u.npz") as file:
        np.testing.assert_allclose(
            file["z"], model.encode([Image.open(pictures / n) for n in names], gated=False), atol=1e-5
        )
        assert np.abs(file["z"] - z).max() > 1e-3
    answer = run("measure", "z.npz", "--json", "m.json", "--csv", "m.csv", "--markdown", "m.md", "--latex", "m.tex")
    assert answer.status == 0, answer
    assert {"paper", "sound", "retrieval", "chance", "parameters"} <= set(json.loads(Path("m.json").read_text()))
    assert all(Path(name).stat().st_size > 100 for name in ("m.csv", "m.md", "m.tex"))
    raw = np.stack([np.asarray(Image.open(pictures / name)) for name in names])[:, :, 2:22]
    np.savez("all.npz", z=z, images=raw, y=np.arange(24) % 3)
    answer = run("atlas", "--features", "all.npz")
    assert answer.status == 0, answer
    assert Path("all-atlas/index.html").is_file()


def test_atlas_of_two_runs(run, trained: Path) -> None:
    assert run("train", "scenes-ncl", *SETTINGS, "--out", "other", "--quiet").status == 0
    answer = run("atlas", trained, "other", "--images", "30", "--out", "both")
    assert answer.status == 0, answer
    assert answer.err.endswith(f"open {Path('both/index.html')}\n")
    (trained / "evaluation.json").write_text("[1, 2]")  # not ours: shown without numbers
    assert run("atlas", trained, "--out", "one", "--quiet").status == 0
    refused(run("atlas", *[trained] * 9), "one to 8 runs, got 9")
    refused(run("atlas"), "one RUN or more, or --features")
    assert run("train", "scenes-ncl", *SETTINGS, "--set", "data.seed=1", "--out", "third", "--quiet").status == 0
    refused(run("atlas", "other", "third"), "different images")


# the small ones


def test_recipes(run, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = run("recipes").out
    assert "cifar100" in listing
    assert "bayesncl-nodetach" in listing
    shown = run("recipes", "cifar100").out
    assert re.search(r"gate\.prior\s+= 0\.8\s+rho, the prior", shown)
    assert len([line for line in shown.splitlines() if line.startswith("  ")]) > 50
    refused(run("recipes", "cifar1000"), "no recipe 'cifar1000'", "did you mean cifar100")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, says rich
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("recipes", "cifar100").out
    assert max(map(len, (listing + narrow).splitlines())) <= 80
    assert narrow.split() == shown.split()


def test_cost(run) -> None:
    answer = run("cost", "cifar100-ncl", "--json", "cost.json")
    assert answer.status == 0
    assert "1,416,176" in answer.out or "1,416" in answer.out
    assert json.loads(Path("cost.json").read_text())


def test_views(run) -> None:
    answer = run("views", "scenes", *SETTINGS, "--count", "3", "-o", "v.png")
    assert (answer.status, answer.out) == (0, "wrote v.png\n")
    with Image.open("v.png") as sheet:
        assert sheet.size == (9 * 18, 3 * 18)  # the image and two views of each of four epochs, 16 pixels and a gap


def test_no_help_is_cut_off(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in run("--help").out.partition("Commands:")[2]
    assert "Where to start" in run("recipes").out


def test_version(run) -> None:
    assert run("--version") == Answer(0, bayesncl.__version__ + "\n", "")


# bad input


def damaged_run(tmp_path: Path, recipe: str | bytes) -> Path:
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "recipe.json").write_bytes(recipe.encode() if isinstance(recipe, str) else recipe)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "scene"], "did you mean scenes"),
        (["train", "nowhere.json"], "cannot read nowhere.json"),
        (["train", "scenes", "--set", "run.epoch=3"], "did you mean epochs"),
        (["train", "scenes", "--set", "run.batch=x"], "expected a whole number, got 'x'"),
        (["train", "scenes", "--set", "gate.prior=nan"], "finite"),
        (["train", "scenes", "--set", "model.backbone=resnet19"], "no backbone 'resnet19'"),
        (["train", "scenes-ncl-topk", "--set", "model.dim=8"], "model.top_k = 51 is more than model.dim = 8"),
        (["train", "scenes", "--device", "abacus"], "no device 'abacus'"),
        (["train", "scenes", "--device", "meta"], "no device 'meta'"),
        (["train", "folder"], "--data"),
        (["train", "folder", "--data", "nowhere"], "nowhere"),
        (["train", "folder", "--data", "~nobody-by-that-name/x"], "nobody-by-that-name"),
        (["train", "cifar10", "--data", "."], "cifar"),
        (["resume", "nowhere"], "no run folder nowhere"),
        (["resume", "."], "is not a run"),
        (["evaluate", "nowhere"], "no trained model"),
        (["evaluate", "."], "no trained model"),
        (["embed", "nowhere", "."], "no trained model"),
        (["measure", "nowhere.npz"], "nowhere.npz"),
        (["atlas", "nowhere"], "no trained model"),
        (["atlas", "--features", "nowhere.npz"], "nowhere.npz"),
        (["cost", "cifar"], "did you mean cifar10"),
        (["views", "folder", "--data", "."], "no image files"),
        (["recipes", "nowhere.json"], "cannot read"),
        (["reproduce", "nothing"], "nothing"),
        (["demo", "--set", "run.epoch=2", "--no-open"], "did you mean epochs"),
    ],
)
def test_bad_input_is_one_line(run, words: list[str], message: str) -> None:
    small = SETTINGS if words[0] == "train" and "scenes" in words[1] else []
    quiet = ["--quiet"] if words[0] in ("train", "evaluate", "embed", "atlas", "measure") else []
    refused(run(*words[:2], *small, *words[2:], *quiet), message)


@pytest.mark.parametrize(
    "words",
    [
        [], ["tain"], ["train"], ["train", "scenes", "--epochs", "x"], ["embed", "a"],
        ["embed", "a", "b", "--keep", "0"], ["views", "scenes", "--count", "x"],
    ],
)  # fmt: skip
def test_bad_usage(run, words: list[str]) -> None:
    answer = run(*words)
    assert answer.status == 2
    assert "Usage" in answer.err + answer.out
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"run": {"batch": "x"}}', '{"\x1b[31mrun\\u001b[31m": {}}', b"\xff\xfe\x00", "[" * 99_999]
)
def test_damaged_recipes(run, tmp_path: Path, text: str | bytes) -> None:
    line = refused(run("resume", damaged_run(tmp_path, text)), "recipe.json")
    assert line[:-1].isprintable()  # nothing a terminal obeys
    refused(run("evaluate", tmp_path / "damaged"), "not finished")


def test_damaged_models(run, trained: Path, tmp_path: Path) -> None:
    good = (trained / "model.safetensors").read_bytes()
    for data in (b"", good[:1000], good[:-1] + b"\0", b"\x80\x04K\x01."):
        (tmp_path / "model.safetensors").write_bytes(data)
        for words in (["evaluate", "."], ["embed", ".", "."], ["atlas", "."]):
            refused(run(*words), "model.safetensors")


def test_images_that_cannot_be_used(run, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    refused(run("embed", trained, folder), "no image files")
    (folder / "a.png").write_bytes(b"not a picture")
    answer = run("embed", trained, folder)
    assert answer.status == 2
    assert "Traceback" not in answer.err
    draw_folder(folder, (), 1)
    (folder / "00.png").rename(tmp_path / "one.png")
    answer = run("train", "folder", "--data", folder, *SETTINGS, "--set", "data.strict=true", "--set", "data.holdout=0")
    assert answer.status == 2
    assert "a.png" in answer.err
    lone = tmp_path / "lone"
    lone.mkdir()
    (tmp_path / "one.png").rename(lone / "one.png")
    refused(run("train", "folder", "--data", lone, *SETTINGS), "one image")


def test_where_nothing_can_be_written(run, trained: Path) -> None:
    Path("file").touch()
    refused(run("train", "scenes", *SETTINGS, "--out", "file", "--quiet"), "cannot write to file")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("two\nlines \x1b[31m"), 2, "bayesncl: two lines \\x1b[31m\n"),
        (MemoryError(), 1, "bayesncl: out of memory\n"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 1, "bayesncl: out of memory\n"),
        (OSError(28, "No space left on device", "x.npz"), 1, "bayesncl: x.npz: No space left on device\n"),
    ],
)
def test_what_goes_wrong_is_one_line(
    run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "find_recipe", fail)
    answer = run("recipes", "x")
    assert (answer.status, answer.err) == (status, line)


def test_a_narrow_terminal_breaks_it_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "runs/" + 50 * "x" + " is not a folder of codes: give one that fit wrote"
    say(message)
    assert capsys.readouterr().err == f"bayesncl: {message}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    say(message)
    first, path, *rest = capsys.readouterr().err.splitlines()
    assert f"{first} {path} {' '.join(rest)}" == f"bayesncl: {message}"  # names are not broken
    assert max(map(len, rest)) <= 30


def test_mistakes_of_ours_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(cli, "find_recipe", fail)
    monkeypatch.setattr(sys, "argv", ["bayesncl", "recipes", "x"])
    with pytest.raises(RuntimeError, match="shapes do not match"):
        cli.main()


# as a process


def process(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bayesncl", *map(str, words)]
    inherited |= environment
    return subprocess.run(command, cwd=cwd, env=inherited, capture_output=True, text=True, timeout=300, check=False)


def test_help_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    answer = process("--help", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    commands = ["train", "resume", "evaluate", "measure", "embed", "atlas", "reproduce", "demo", "cost", "recipes"]
    for command in commands:
        assert re.search(rf"^\s+{command}\b", answer.stdout, re.MULTILINE), command


def test_a_real_process(tmp_path: Path) -> None:
    answer = process("train", "scenes", *SETTINGS, "--out", "run", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "trained: run" in answer.stderr
    assert bayesncl.load(tmp_path / "run").recipe.run.epochs == 1
    answer = process("evaluate", "nowhere", cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", "bayesncl: no trained model at nowhere\n")
