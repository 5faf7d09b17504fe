"""bayesncl fit, and what takes the folder that it writes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl import embed as embed_module
from bayesncl import fit as fit_module
from bayesncl import photos
from bayesncl.arrays import read_arrays, read_embeddings
from bayesncl.codes_folder import CodesFolder, Rows
from bayesncl.data import load as load_split
from bayesncl.embed import Table
from bayesncl.encoders import Request, open_encoder
from bayesncl.errors import InputError
from bayesncl.fit import gather
from bayesncl.names import Codes, Entry, write_names
from tests.commands import draw_folder, refused

NET = "tests.test_encoders:Net"
RNG = np.random.default_rng(0)


def clusters(n: int = 60, features: int = 20, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % classes
    return (RNG.normal(0, 1, (classes, features))[y] + 0.3 * RNG.normal(0, 1, (n, features))).astype(np.float32), y


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the photos that were given to an encoder."""
    seen: list[str] = []
    real = photos.embed_entries

    def watch(entries, encoder):
        for rows, why in real(entries, encoder):
            seen.extend(entry.name for entry in entries[: len(rows)])
            entries = entries[len(rows) :]
            yield rows, why

    monkeypatch.setattr(photos, "embed_entries", watch)
    return seen


def check_rows(folder: Path, pictures: Path) -> None:
    """Every row holds the embedding of the photo that it names."""
    codes, encoder = CodesFolder(folder), open_encoder(Request(NET))
    rows, x = codes.rows(), codes.embeddings()
    assert sorted(rows.names) == sorted(str(p.relative_to(pictures)) for p in pictures.rglob("*.png"))
    wanted = [encoder.embed(encoder.read((pictures / name).read_bytes())[None])[0] for name in rows.names]
    np.testing.assert_allclose(x, wanted, atol=1e-6)


def test_photos_to_codes_and_what_takes_them(run, tmp_path: Path, embedded: list[str]) -> None:
    pictures = draw_folder(tmp_path / "pictures", each=20)
    answer = run("fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "8")
    assert answer.status == 0, answer
    survey = next(line for line in answer.err.splitlines() if line.startswith("60 photos"))
    assert "24 x 20 pixels; 3 classes by subfolder" in survey and "6 numbers a photo" in survey and "about" in survey
    assert "of 8 dimensions are readable" in answer.err and "bayesncl atlas codes" in answer.err
    assert len(embedded) == 60
    check_rows(tmp_path / "codes", pictures)
    held = {path.name for path in Path("codes").iterdir()}
    assert held == {"codes.json", "codes.safetensors", "embeddings.npy", "rows.json", "verdict.json"}

    model = bayesncl.load("codes", encoder=NET)
    files = sorted(pictures.rglob("*.png"))
    z = model.encode(files)
    assert z.shape == (60, 8) and bool((z >= 0).all())
    np.testing.assert_allclose(z.norm(dim=1), 1, atol=1e-5)
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    for same in (pixels, pixels.transpose(0, 3, 1, 2), pixels / 255.0, [Image.open(f) for f in files]):
        np.testing.assert_allclose(model.encode(same), z, atol=2e-3)
    np.testing.assert_allclose(model.encode(files[0]), z[:1], atol=1e-5)
    assert model.encode([]).shape == (0, 8)
    assert ((model.encode(files, keep=2) > 0).sum(1) <= 2).all()
    for keep in (0, 9, 1.5):
        with pytest.raises(InputError, match="keep must be a whole number from 1 to the 8 dimensions"):
            model.encode(files, keep=keep)

    for name in ("e.npz", "e.csv"):
        assert run("embed", "codes", "pictures", "-o", name, "--encoder", NET, "--quiet").status == 0
        found, names, labels = read_embeddings(Path(name))
        np.testing.assert_allclose(found, z, atol=1e-5)
        assert names.tolist() == [str(f.relative_to(pictures)) for f in files] and labels[25] == "bee <b>"
    for command in ("measure", "evaluate"):
        answer = run(command, "codes", "--json", "m.json", "--quiet")
        assert answer.status == 0, answer
        assert "60 images, 8 dimensions" in answer.out and "dimensions kept" in answer.out
        assert {"sound", "retrieval", "verdict"} <= set(json.loads(Path("m.json").read_text()))
    assert Path("codes/evaluation.json").is_file()
    assert run("atlas", "codes", "--quiet").status == 0
    assert (tmp_path / "codes/atlas/index.html").is_file()
    shutil.move("pictures", "elsewhere")
    refused(run("atlas", "codes", "-o", "page", "--quiet"), "no folder of images", "--data DIR")
    assert run("atlas", "codes", "-o", "page", "--data", "elsewhere", "--quiet").status == 0


def test_only_what_changed_is_embedded(run, tmp_path: Path, embedded: list[str]) -> None:
    pictures = draw_folder(tmp_path / "pictures")
    words = ["fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "4", "--quiet"]
    assert run(*words).status == 0
    first = Path("codes/codes.safetensors").read_bytes()
    embedded.clear()
    assert run(*words).status == 0
    assert Path("codes/codes.safetensors").read_bytes() == first
    assert run(*words, "--method", "sae").status == 0
    assert not embedded
    assert Path("codes/codes.safetensors").read_bytes() != first
    Image.new("RGB", (30, 30), "red").save(pictures / "ant/00.png")
    Image.new("RGB", (30, 30), "blue").save(pictures / "cat/new.png")
    (pictures / "cat/01.png").unlink()
    assert run(*words).status == 0
    assert embedded == ["ant/00.png", "cat/new.png"]
    check_rows(tmp_path / "codes", pictures)
    embedded.clear()
    assert run(*words, "--size", "64").status == 0
    assert len(embedded) == 24


def test_killed_while_embedding(run, tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = draw_folder(tmp_path / "pictures")
    monkeypatch.setattr(photos, "BATCH", {"cpu": 4})
    words = ["fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "4", "--quiet"]
    real = photos.Log.append

    def die(log, rows, lines):
        if len(log.lines) >= 16:
            raise KeyboardInterrupt
        real(log, rows, lines)

    with monkeypatch.context() as patch:
        patch.setattr(photos.Log, "append", die)
        assert run(*words).status == 130
    refused(run("measure", "codes", "--quiet"), "codes")
    log = CodesFolder("codes")
    log.log.write_bytes(log.log.read_bytes()[:-7])  # the last row is torn
    log.log_index.write_text(log.log_index.read_text() + '["cat/05.png", 1')  # and so is the last line
    embedded.clear()
    assert run(*words).status == 0
    assert len(embedded) == 24 - 15 and "ant/00.png" not in embedded
    check_rows(tmp_path / "codes", pictures)
    assert run("fit", "pictures", "-o", "whole", "--encoder", NET, "--dim", "4", "--quiet").status == 0
    for name in ("embeddings.npy", "rows.json", "codes.safetensors"):
        assert Path("codes", name).read_bytes() == Path("whole", name).read_bytes()
    assert not log.log.exists() and not log.log_index.exists()


def test_broken_and_other_files(run, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "pictures", classes=())
    (pictures / "broken.jpg").write_bytes(b"\xff\xd8 no")
    for name in ("a.heic", "b.HEIC", "notes.txt"):
        (pictures / name).write_text("x")
    answer = run("fit", "pictures", "-o", "pictures/codes", "--encoder", NET, "--dim", "4")
    assert answer.status == 0, answer
    assert "no classes" in answer.err and "3 other files skipped (2 .heic, 1 .txt)" in answer.err
    assert "1 photo of 25 cannot be used and is left out, e.g. broken.jpg" in answer.err
    assert len(CodesFolder("pictures/codes").rows()) == 24
    assert run("atlas", "pictures/codes", "--quiet").status == 0  # whose pictures are not photos of the next fit
    answer = run("fit", "pictures", "-o", "pictures/codes", "--encoder", NET, "--dim", "4")
    assert "25 photos (25 known already)" in answer.err
    assert run("embed", "pictures/codes", "pictures", "-o", "e.npz", "--encoder", NET, "--quiet").status == 0
    assert len(read_embeddings(Path("e.npz"))[0]) == 24
    answer = run("measure", "pictures/codes", "--json", "m.json", "--quiet")
    assert answer.status == 0 and "Nothing is said of classes" in answer.out
    assert run("measure", "pictures/codes", "--csv", "m.csv", "--quiet").status == 0
    table = Path("m.csv").read_text()
    assert "live" in table and "precision" not in table  # what needs no label, and nothing that does
    for path in pictures.glob("*.png"):
        path.write_bytes(b"no")
    refused(run("fit", "pictures", "-o", "none", "--encoder", NET, "--quiet"), "none of the 25 photos can be used")
    Image.new("RGB", (9, 9)).save(pictures / "good.png")
    refused(run("fit", "pictures", "-o", "one", "--encoder", NET, "--quiet"), "only one of the 26 photos can be used")


def test_splits_labels_and_rows_held_out(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_folder(tmp_path / "p" / "train", ("ant", "bee"))
    draw_folder(tmp_path / "p" / "test", ("ant", "bee"), each=4)
    draw_folder(tmp_path / "p" / "val", ("ant", "bee"), each=4)
    answer = run("fit", "p", "-o", "codes", "--encoder", NET, "--dim", "4")
    assert "only train and test are read, not val" in answer.err
    shutil.rmtree(tmp_path / "p" / "val")
    rows = CodesFolder("codes").rows()
    assert "2 classes by subfolder" in answer.err and "8 held out to judge" in answer.err
    assert rows.held == 8 and all(name.startswith("test/") for name in rows.names[-8:])
    assert rows.class_names == ("ant", "bee")
    assert run("embed", "codes", "p", "-o", "e.npz", "--encoder", NET, "--quiet").status == 0
    assert set(read_embeddings(Path("e.npz"))[2]) == {"ant", "bee"}
    table = "name,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(rows.names))
    Path("l.csv").write_text(table)
    assert run("fit", "p", "-o", "codes", "--encoder", NET, "--dim", "4", "--labels", "l.csv", "--quiet").status == 0
    assert CodesFolder("codes").rows().labels.tolist() == [i % 2 for i in range(24)]
    Path("l.csv").write_text("\n".join(table.split("\n")[:20]))
    refused(run("fit", "p", "-o", "c", "--encoder", NET, "--labels", "l.csv", "--quiet"), "no label for 5 of 24 photos")
    monkeypatch.setattr(fit_module, "HOLD_FROM", 50)
    x, y = clusters()
    np.savez("x.npz", z=x, y=y)
    assert "6 held out" in run("fit", "x.npz", "-o", "array").err
    folder = CodesFolder("array")
    rows = folder.rows()
    order = [int(name) for name in rows.names]
    assert rows.held == 6 and sorted(order) == list(range(60))
    np.testing.assert_array_equal(folder.embeddings(), x[order])
    assert rows.labels.tolist() == y[order].tolist()


def test_arrays_of_every_kind(run, tmp_path: Path) -> None:
    x, y = clusters()
    words = [f"class {label}" for label in y]
    pictures = draw_folder(tmp_path / "pictures", classes=(), each=20)
    names = sorted(path.name for path in pictures.iterdir())
    np.save("x.npy", x.astype(np.float64))
    np.save("y.npy", y)
    np.savez("named.npz", embeddings=x.astype(np.float16), names=np.array(names), labels=np.array(words))
    lines = [",".join([name, word, *map(str, row)]) for name, word, row in zip(names, words, x)]
    Path("t.csv").write_text("\n".join(["path,label," + ",".join(f"f{i}" for i in range(20)), *lines]))
    for source, more in (("x.npy", []), ("named.npz", ["--images", "pictures"]), ("t.csv", ["--images", "pictures"])):
        out = f"codes-{source}"
        answer = run("fit", source, "-o", out, "--dim", "4", *more)
        assert (f"bayesncl atlas {out} --serve" if more else "fit again with --images DIR") in answer.err
        folder = CodesFolder(out)
        np.testing.assert_allclose(folder.embeddings(), x, rtol=2e-3, atol=1e-3)
        assert folder.rows().labels.tolist() == y.tolist()
        assert run("embed", out, source, "-o", "e.csv", "--keep", "2").err == "e.csv: 60 rows x 4 dimensions\n"
        np.save("one.npy", x[:1])
        assert run("embed", out, "one.npy", "-o", "one.csv").err == "one.csv: 1 row x 4 dimensions\n"
        z, _, labels = read_embeddings(Path("e.csv"))
        assert z.shape == (60, 4) and ((z > 0).sum(1) <= 2).all() and labels is not None
        answer = run("atlas", out, "--quiet")
        assert answer.status == 0 if more else "no images" in refused(answer)
    refused(run("embed", "codes-x.npy", "pictures", "--quiet"), "fitted on an array")
    with pytest.raises(InputError, match="fitted on an array"):
        bayesncl.load("codes-x.npy").encode(np.zeros((1, 3, 8, 8), np.uint8))
    np.save("w.npy", x[:, :3])
    refused(run("embed", "codes-x.npy", "w.npy", "--quiet"), "rows of 3 numbers", "rows of 20")
    answer = run("fit", "x.npy", "-o", "plain", "--dim", "4", "--images", "pictures")
    assert "in the order of their names" in answer.err
    Path("l.csv").write_text("name,label\n" + "".join(f"{n},{w}\n" for n, w in reversed(list(zip(names, words)))))
    assert run("fit", "named.npz", "-o", "by-name", "--dim", "4", "--labels", "l.csv", "--quiet").status == 0
    assert CodesFolder("by-name").rows().labels.tolist() == y.tolist()
    done = run("fit", "x.npy", "-o", "by-order", "--dim", "4", "--labels", "l.csv", "--quiet")
    assert done.status == 0 and "no names: rows of l.csv are taken to be in the same order" in done.err


def test_a_run_is_a_source(run, trained: Path) -> None:
    answer = run("fit", trained, "-o", "codes", "--dim", "8")
    assert answer.status == 0, answer
    assert "96 training images of scenes" in answer.err
    folder = CodesFolder("codes")
    rows, model = folder.rows(), bayesncl.load(trained)
    assert (len(rows), rows.held) == (156, 60)
    again = "fit", trained, "-o", "codes", "--dim", "8", "--method", "ncl"
    assert "are here already" in run(*again).err
    folder.embeddings_file.write_bytes(folder.embeddings_file.read_bytes()[:-8])
    assert "embeddings are made again" in run(*again).err and "are here already" in run(*again).err
    words = "embed", trained, "p", "-o", "z.npy", "--encoder", NET
    refused(run(*words), "--encoder goes with codes that fit wrote", "is its own encoder")
    pixels = np.asarray(load_split(model.recipe.data, "test").pixels[:5])
    np.testing.assert_allclose(bayesncl.load("codes").embed(pixels), folder.embeddings()[96:101], atol=1e-4)
    assert run("atlas", "codes", "--quiet").status == 0
    assert run("evaluate", "codes", "--quiet").status == 0


@pytest.mark.parametrize("name", ["codes.json", "rows.json", "embeddings.npy", "codes.safetensors"])
def test_damage_is_told_and_made_good(name: str, run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures")
    words = ["fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "4", "--quiet"]
    assert run(*words).status == 0
    path = tmp_path / "codes" / name
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) * 2 // 3] ^= 1
    for bad in (b"", good[: len(good) // 2], bytes(flipped), b"[]", b'{"format": 3}', None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        if not (name == "codes.json" and bad == bytes(flipped)):  # most of it may say something else
            assert run("measure", "codes", "--quiet").status == 2
        if name != "codes.json" or bad is not None:
            assert run(*words).status == 0
        path.write_bytes(good)


def test_code_is_run_only_when_it_is_named(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "4", "--quiet").status == 0
    for words in (["embed", "codes", "pictures"], ["fit", "pictures", "-o", "codes"]):
        refused(run(*words, "--quiet"), "which is code: to run it, say so with --encoder")
    refused(run("embed", "codes", "pictures", "--encoder", "json:loads", "--quiet"), "which is code")
    about = json.loads(Path("codes/codes.json").read_text())
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    about["encoder"]["spec"] = "evil:make"
    Path("codes/codes.json").write_text(json.dumps(about))
    refused(run("embed", "codes", "pictures", "--quiet"), "evil:make, which is code")
    with pytest.raises(InputError, match="which is code"):
        bayesncl.load("codes").encode(tmp_path / "pictures/ant/00.png")
    assert not Path("ran").exists()


def test_names_do_not_lead_out_of_the_folder(run, tmp_path: Path) -> None:
    x, _ = clusters(24)
    draw_folder(tmp_path / "pictures", classes=())
    names = [f"{i:02}.png" for i in range(23)] + ["../secret.png"]
    np.savez("x.npz", z=x, names=np.array(names))
    assert run("fit", "x.npz", "-o", "codes", "--dim", "4", "--images", "pictures", "--quiet").status == 0
    paths = CodesFolder("codes").photo_paths(CodesFolder("codes").rows(), range(24))
    assert paths.count(None) == 1 and not any("secret" in str(path) for path in paths)
    (tmp_path / "target").write_text("mine")
    Path("codes/codes.safetensors").unlink()
    Path("codes/codes.safetensors").symlink_to(tmp_path / "target")
    refused(run("fit", "x.npz", "-o", "codes", "--dim", "4", "--quiet"), "symbolic link")
    assert (tmp_path / "target").read_text() == "mine"


def test_named_columns(run, tmp_path: Path) -> None:
    np.save("x.npy", clusters()[0])
    assert run("fit", "x.npy", "-o", "codes", "--dim", "4", "--quiet").status == 0
    mark = CodesFolder("codes").fingerprint()
    write_names("n.json", [Codes(mark, "codes", 4, {1: [Entry("label")], 2: [Entry("old trees")]})])
    assert run("embed", "codes", "x.npy", "-o", "e.csv", "--names", "n.json", "--quiet").status == 0
    assert Path("e.csv").read_text().split("\n")[0] == "name,z0,label (z1),old trees,z3"
    write_names("n.json", [Codes("0" * 16, "codes", 4, {})])
    refused(run("embed", "codes", "x.npy", "-o", "e.csv", "--names", "n.json", "--quiet"), "of other codes")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "no such folder or file"),
        (["note.txt"], "expected a folder of photos, a run, or an array file"),
        (["one.png"], "one image"),
        (["empty"], "no photos in it"),
        (["lone"], "one photo only"),
        (["heic"], "no photos in it"),
        (["p", "-o", "p"], "lies in, the folder -o p"),
        (["p", "-o", "note.txt"], "a file, expected a folder"),
        (["p", "-o", "heic"], "was not written by fit"),
        (["p"], "bayesncl[timm]"),
        (["p", "--encoder", "no_such:thing"], "No module named"),
        (["p", "--encoder", NET, "--method", "magic"], "no method 'magic'"),
        (["p", "--encoder", NET, "--mean", "1,2"], "--mean takes three numbers"),
        (["p", "--encoder", NET, "--std", "0"], "std must be three numbers"),
        (["p", "--encoder", NET, "--keep", "9", "--dim", "4"], "keep"),
        (["p", "--encoder", NET, "--labels", "none.csv"], "no such file"),
        (["p", "--encoder", NET, "--weights", "none.pt"], "no such file"),
        (["p", "--encoder", NET, "--images", "p"], "--images goes with an array"),
        (["x.npy", "--encoder", NET], "--encoder is for photos"),
        (["x.npy", "--no-mirror"], "--mirror is for photos"),
        (["x.npy", "--images", "none"], "no such folder"),
        (["x.npy", "--images", "p"], "24 images for 60 rows"),
        (["x.npy", "--labels", "short.npy"], "3 rows, the embeddings have 60"),
        (["x.npy", "--device", "tpu"], "no device"),
        (["nan.npy"], "row 3"),
        (["row.npy"], "one row only"),
        (["same.npy"], "the same in all"),
        (["flat.npy"], "features must be [N, D]"),
        (["images.npy"], "holds images"),
        (["text.npy"], "features must be"),
        (["pickled.npy"], "pickled"),
        (["strange.npz"], "no embeddings in it, expected an array named z, embeddings, embedding, features; it holds"),
        (["cut.npz"], "cannot be read"),
        (["words.csv"], "words.csv, line 2: column b holds 'x', no number"),
    ],
)  # fmt: skip
def test_refusals(words: list[str], message: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    x, y = clusters()
    draw_folder(tmp_path / "p")
    for folder in ("empty", "heic", "lone"):
        Path(folder).mkdir()
    for path in ("one.png", "lone/one.png"):
        Image.new("RGB", (9, 9)).save(path)
    Path("note.txt").write_text("x")
    Path("heic/a.heic").write_text("x")
    Path("words.csv").write_text("a,b\n1,x\n")
    bad = x.copy()
    bad[3, 1] = np.nan
    for name, array in (
        ("x", x), ("nan", bad), ("row", x[:1]), ("same", np.ones((9, 4))), ("flat", x[0]), ("short", y[:3]),
        ("images", np.zeros((4, 8, 8, 3), np.uint8)), ("text", np.array([["a", "b"]])),
    ):  # fmt: skip
        np.save(f"{name}.npy", array)
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("strange.npz", one=x, two=x)
    np.savez("cut.npz", z=x)
    Path("cut.npz").write_bytes(Path("cut.npz").read_bytes()[:-50])
    out = [] if "-o" in words else ["-o", "codes"]
    refused(run("fit", *words, *out, "--quiet"), message)
    left = [path.name for path in Path("codes").rglob("*")] if Path("codes").exists() else []
    assert not any("safetensors" in name or "partial" in name for name in left)
    assert not (tmp_path / "heic" / "codes.json").exists()


def test_labels_of_another_file_beside_an_array_are_left_alone(run) -> None:
    x, y = clusters()
    np.save("x.npy", x)
    np.save("new.npy", x[:7])
    np.save("y.npy", y)
    assert read_embeddings(Path("x.npy"))[2].tolist() == y.tolist()
    z, names, labels = read_embeddings(Path("new.npy"))
    assert (len(z), names, labels) == (7, None, None)


def test_rows_without_a_label_are_no_class(run, tmp_path: Path) -> None:
    x, y = clusters()
    some = np.where(y, y, np.nan), y + 0.5, 0 * y
    for labels, said in zip(some, ("20 of 60 rows have no label", "neither whole numbers", "one class only")):
        np.savez("x.npz", z=x, y=labels)
        assert said in run("fit", "x.npz", "-o", "codes", "--dim", "4").err
        assert CodesFolder("codes").rows().labels is None
    np.savez("x.npz", z=x, y=y - 1)  # which some write for none
    assert "20 of 60 rows have the label -1, which counts" in run("fit", "x.npz", "-o", "codes", "--dim", "4").err
    pictures = draw_folder(tmp_path / "p", classes=())
    names = sorted(path.name for path in pictures.iterdir())
    Path("l.csv").write_text("name,label\n" + "".join(f"{name},{'' if i else 'ant'}\n" for i, name in enumerate(names)))
    words = ["fit", pictures, "-o", "q", "--encoder", NET, "--labels", "l.csv", "--quiet"]
    refused(run(*words), "no label for 23 of 24")
    Path("l.csv").write_text(Path("l.csv").read_text() + f"{names[0]},bee\n")
    refused(run(*words), f"{names[0]} has the labels ant and bee: keep only one")


def test_labels_by_the_last_part_of_a_name_must_be_of_one_row(run) -> None:
    x, _ = clusters()
    names = [f"{'ab'[i % 2]}/{i // 2}.png" for i in range(len(x))]
    np.savez("x.npz", z=x, names=names)
    for table in (names, [name[2:] for name in names[::2]]):
        Path("l.csv").write_text("name,label\n" + "".join(f"{name},{i % 3}\n" for i, name in enumerate(table)))
        done = run("fit", "x.npz", "-o", "codes", "--dim", "4", "--labels", "l.csv")
        assert done.status == (0 if table is names else 2)
    refused(done, "no label for 60 of 60 rows, e.g. a/0.png")
    np.savez("x.npz", z=x[::2], names=names[::2])
    assert run("fit", "x.npz", "-o", "codes", "--dim", "4", "--labels", "l.csv").status == 0
    assert CodesFolder("codes").rows().labels is not None


def test_nothing_of_other_codes_stays_beside_new_ones(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit of another array that is stopped before, or after, its codes are saved."""
    for name in ("a.npy", "b.npy"):
        np.save(name, clusters()[0])
    assert run("fit", "a.npy", "-o", "codes", "--dim", "4", "--quiet").status == 0
    assert run("evaluate", "codes", "--quiet").status == 0
    here = CodesFolder("codes")
    assert here.verdict_file.exists() and here.evaluation_file.exists()

    def stop(*_args: object, **_kwargs: object) -> None:
        raise InputError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "judge", stop)
        assert run("fit", "a.npy", "-o", "codes", "--dim", "8", "--quiet").status == 2
    assert here.codes_file.exists() and not here.verdict_file.exists() and not here.evaluation_file.exists()
    np.save("nan.npy", np.full((60, 20), np.nan))
    refused(run("fit", "nan.npy", "-o", "codes", "--quiet"), "row 0")
    assert here.codes_file.exists()  # an array that is refused costs nothing
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "_train", stop)
        assert run("fit", "b.npy", "-o", "codes", "--quiet").status == 2
    assert not here.codes_file.exists()


def test_options_of_no_use_with_codes_are_refused(run, tmp_path: Path) -> None:
    np.save("x.npy", clusters()[0])
    assert run("fit", "x.npy", "-o", "codes", "--dim", "4", "--quiet").status == 0
    refused(run("evaluate", "codes", "--paper-probe"), "leave out --paper-probe")
    refused(run("measure", "codes", "--embeddings", "x.npy"), "leave out --embeddings")


def test_columns_may_have_any_name(run, tmp_path: Path) -> None:
    table = Table(np.eye(3, dtype=np.float32), ["a", "b", "c"], None, ["class", "Path", "wing"])
    (tmp_path / "t.csv").write_bytes(embed_module._csv(table))
    assert read_arrays(tmp_path / "t.csv", ("z",))["z"].tolist() == np.eye(3).tolist()


def test_judging_leaves_the_codes_as_they_are() -> None:
    x, y = clusters()
    codes = bayesncl.ReadableCodes(4, steps=2, keep=2, sparse_output=True).fit(x)
    z, _, _ = gather(codes, x, Rows(tuple(map(str, y)), y, ("a", "b", "c")))
    assert isinstance(z, np.ndarray) and codes.sparse_output
