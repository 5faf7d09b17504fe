"""bayesncl fit, and the commands that use the folder it writes."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl.codes import sources
from bayesncl.codes.encoders import PhotoEncoder, Request, open_encoder
from bayesncl.codes.folder import CodesFolder, Rows
from bayesncl.codes.judge import judging_data
from bayesncl.data import load as load_split
from bayesncl.data.cache import Entry
from bayesncl.errors import InputError
from bayesncl.inputs import read_embeddings
from bayesncl.measure.figures import figures
from tests.commands import draw_folder, refused

NET = "tests.codes.test_encoders:Net"
FIT = ("--encoder", NET, COMPONENTS := "--components", "4", "--quiet")
RNG = np.random.default_rng(0)


def clusters(n: int = 60, features: int = 20, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % classes
    x = RNG.normal(0, 1, (classes, features))[y] + 0.3 * RNG.normal(0, 1, (n, features))
    return x.astype(np.float32), y


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the photos that an encoder embedded."""
    seen: list[str] = []
    real = PhotoEncoder.embed_files

    def watch(encoder, entries):
        seen.extend(entry.name for entry in entries)
        return real(encoder, entries)

    monkeypatch.setattr(PhotoEncoder, "embed_files", watch)
    return seen


def check_rows(folder: Path | str, pictures: Path) -> None:
    """Every row is the embedding of the photo it names."""
    codes, encoder = CodesFolder(folder), open_encoder(Request(NET))
    names = codes.rows().names
    assert sorted(names) == sorted(str(p.relative_to(pictures)) for p in pictures.rglob("*.png"))
    again = list(encoder.embed_files([Entry(name, pictures / name) for name in names]))
    np.testing.assert_allclose(codes.embeddings(), again, atol=1e-6)


def stop(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_photos_to_codes(run, tmp_path: Path, embedded: list[str]) -> None:
    """The whole way: fit, load, embed, measure, evaluate, atlas."""
    pictures = draw_folder(tmp_path / "pictures", each=20)
    answer = run("fit", "pictures", "-o", "codes", "--encoder", NET, COMPONENTS, "8")
    assert answer.status == 0, answer
    for part in ("60 photos of 24 x 20 pixels", "3 classes by subfolder", "bayesncl atlas codes"):
        assert part in answer.err
    assert len(embedded) == 60
    check_rows("codes", pictures)
    written = {path.name for path in Path("codes").iterdir()}
    expected = {"codes.json", "codes.safetensors", "embeddings.npy", "rows.json", "verdict.json"}
    assert written == expected

    model = bayesncl.load("codes", encoder=NET)
    files = sorted(pictures.rglob("*.png"))
    z = model.encode(files)
    assert z.shape == (60, 8) and bool((z >= 0).all())
    np.testing.assert_allclose(z.norm(dim=1), 1, atol=1e-5)
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    opened = [Image.open(file) for file in files]
    for same in (pixels, pixels.transpose(0, 3, 1, 2), pixels / 255.0, opened):
        np.testing.assert_allclose(model.encode(same), z, atol=2e-3)
    np.testing.assert_allclose(model.encode(files[0]), z[:1], atol=1e-5)
    assert model.encode([]).shape == (0, 8)
    assert ((model.encode(files, n_active=2) > 0).sum(1) <= 2).all()
    for n_active in (0, 9, 1.5):
        with pytest.raises(InputError, match="n_active"):
            model.encode(files, n_active=n_active)

    for name in ("e.npz", "e.csv"):
        command = "embed", "codes", "pictures", "-o", name, "--encoder", NET, "--quiet"
        assert run(*command).status == 0
        found, names, labels, _ = read_embeddings(Path(name))
        np.testing.assert_allclose(found, z, atol=1e-5)
        assert names.tolist() == [str(f.relative_to(pictures)) for f in files]
        assert labels[25] == "bee <b>"
    for command in ("measure", "evaluate"):
        assert run(command, "codes", "--json", "m.json", "--quiet").status == 0
        assert {"sound", "retrieval", "verdict"} <= set(json.loads(Path("m.json").read_text()))
    assert Path("codes/evaluation.json").is_file()
    assert run("atlas", "codes", "--quiet").status == 0
    assert Path("codes/atlas/index.html").is_file()
    shutil.move("pictures", "elsewhere")
    refused(run("atlas", "codes", "-o", "page", "--quiet"), "--data")
    assert run("atlas", "codes", "-o", "page", "--data", "elsewhere", "--quiet").status == 0


def test_only_changed_photos_are_embedded(run, tmp_path: Path, embedded: list[str]) -> None:
    pictures = draw_folder(tmp_path / "pictures")
    command = ("fit", "pictures", "-o", "codes", *FIT)
    assert run(*command).status == 0
    first = Path("codes/codes.safetensors").read_bytes()
    embedded.clear()
    assert run(*command, "--method", "sae").status == 0
    assert not embedded and Path("codes/codes.safetensors").read_bytes() != first
    Image.new("RGB", (30, 30), "red").save(pictures / "ant/00.png")
    Image.new("RGB", (30, 30), "blue").save(pictures / "cat/new.png")
    (pictures / "cat/01.png").unlink()
    assert run(*command).status == 0
    assert embedded == ["ant/00.png", "cat/new.png"]
    check_rows("codes", pictures)
    for words, count in (((), 0), (("--fresh",), 24), (("--size", "64"), 24)):
        embedded.clear()
        assert run(*command, *words).status == 0
        assert len(embedded) == count


def test_changed_encoder_embeds_again(
    run, tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward pass changes, the weights do not."""
    draw_folder(tmp_path / "pictures")
    module = tmp_path / "changing.py"
    text = "from tests.codes.test_encoders import Net\nclass Changed(Net):\n"
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--encoder", "changing:Changed", "--quiet")
    squared = "def forward(self, x): return super().forward(x ** 2)"
    for body, count in (("pass", 24), ("pass", 0), (squared, 24)):
        module.write_text(f"{text}    {body}\n")
        monkeypatch.delitem(sys.modules, "changing", raising=False)
        embedded.clear()
        if body is squared:
            refused(run("embed", "codes", "pictures", *options), "has changed")
        assert run("fit", "pictures", "-o", "codes", COMPONENTS, "4", *options).status == 0
        assert len(embedded) == count


def test_odd_names_of_photos_are_written_alike(run, tmp_path: Path) -> None:
    """Not UTF-8, several lines, a backslash: by fitted rows and by photos, in every table."""
    pictures = draw_folder(tmp_path / "p", classes=())
    for i, name in enumerate((b"\xff.png", b"two\nlines.png", b"back\\slash.png")):
        os.rename(pictures / f"{i:02}.png", pictures / os.fsdecode(name))
    assert run("fit", "p", "-o", "codes", *FIT).status == 0
    for ending in ("csv", "parquet", "npz", "jsonl"):
        for given in ((), ("p", "--encoder", NET)):
            words = ("embed", "codes", *given, "-o", f"{len(given)}.{ending}", "--quiet")
            assert run(*words).status == 0
    names = [list(read_embeddings(Path(f"{n}.{e}"))[1]) for n in (0, 3) for e in ("csv", "npz")]
    assert all(each == names[0] for each in names) and "\\udcff.png" in names[0]
    assert run("find", "codes", "p/05.png", "--encoder", NET, "-o", "f.csv", "--quiet").status == 0
    assert "\\udcff.png" in Path("f.csv").read_text()


def test_broken_and_other_files(run, tmp_path: Path) -> None:
    pictures = draw_folder(tmp_path / "pictures", classes=())
    (pictures / "broken.jpg").write_bytes(b"\xff\xd8 no")
    (pictures / "codes.json").write_text('{"colors": []}')  # of another program
    for name in ("a.xyz", "notes.txt"):
        (pictures / name).write_text("x")
    command = ("fit", "pictures", "-o", "pictures/codes", *FIT[:-1])
    answer = run(*command)
    assert answer.status == 0, answer
    for part in ("no classes", "3 other files", "1 of 25 images cannot be used", "broken.jpg"):
        assert part in answer.err
    assert len(CodesFolder("pictures/codes").rows()) == 24
    assert run("atlas", "pictures/codes", "--quiet").status == 0  # its pictures are not photos
    assert "24 embedded before" in run(*command).err
    words = ("embed", "pictures/codes", "pictures", "-o", "e.npz", "--encoder", NET, "--quiet")
    assert run(*words).status == 0
    assert len(read_embeddings(Path("e.npz"))[0]) == 24
    for path in pictures.glob("*.png"):
        path.write_bytes(b"no")
    refused(run("fit", "pictures", "-o", "none", *FIT), "25 of 25 images")


def test_splits_labels_and_held_out_rows(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_folder(tmp_path / "p" / "train", ("ant", "bee"))
    for name in ("test", "val"):
        draw_folder(tmp_path / "p" / name, ("ant", "bee"), each=4)
    answer = run("fit", "p", "-o", "codes", *FIT[:-1])
    assert "not val" in answer.err and "8 held-out" in answer.out
    shutil.rmtree(tmp_path / "p" / "val")
    rows = CodesFolder("codes").rows()
    assert rows.held == 8 and all(name.startswith("test/") for name in rows.names[-8:])
    assert rows.class_names == ("ant", "bee")
    words = ("embed", "codes", "p", "-o", "e.npz", "--encoder", NET, "--quiet")
    assert run(*words).status == 0
    assert set(read_embeddings(Path("e.npz"))[2]) == {"ant", "bee"}
    table = "name,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(rows.names))
    Path("l.csv").write_text(table)
    assert run("fit", "p", "-o", "codes", *FIT, "--labels", "l.csv").status == 0
    assert CodesFolder("codes").rows().labels.tolist() == [i % 2 for i in range(24)]
    Path("l.csv").write_text("\n".join(table.split("\n")[:20]))
    refused(run("fit", "p", "-o", "c", *FIT, "--labels", "l.csv"), "5 of 24")
    monkeypatch.setattr(sources, "MIN_ROWS", 50)
    x, y = clusters()
    np.savez("x.npz", z=x, y=y)
    assert "6 held-out" in run("fit", "x.npz", "-o", "array").out
    folder = CodesFolder("array")
    rows = folder.rows()
    order = [int(name) for name in rows.names]
    assert rows.held == 6 and sorted(order) == list(range(60))
    np.testing.assert_array_equal(folder.embeddings(), x[order])
    assert rows.labels.tolist() == y[order].tolist()
    for test in (y == 0, (y == 0).astype(float)):
        np.savez("split.npz", z=x, test=test)
        assert f"{test.sum():.0f} held-out" in run("fit", "split.npz", "-o", "split").out
    for test in (np.where(y == 0, "test", "train"), np.where(y == 0, np.nan, 0), y[:9]):
        np.savez("split.npz", z=x, test=test)
        refused(run("fit", "split.npz", "-o", "split"), "test must be true or false")


def test_arrays_of_every_kind(run, tmp_path: Path) -> None:
    x, y = clusters()
    words = [f"class {label}" for label in y]
    pictures = draw_folder(tmp_path / "pictures", classes=(), each=20)
    names = sorted(path.name for path in pictures.iterdir())
    np.save("x.npy", x.astype(np.float64))
    np.save("y.npy", y)
    np.savez("named.npz", embeddings=x.astype(np.float16), names=names, labels=words)
    lines = [",".join([name, word, *map(str, row)]) for name, word, row in zip(names, words, x)]
    heading = "path,label," + ",".join(f"f{i}" for i in range(20))
    Path("t.csv").write_text("\n".join([heading, *lines]))
    images = ["--images", "pictures"]
    for source, more in (("x.npy", []), ("named.npz", images), ("t.csv", images)):
        out = f"codes-{source[0]}"
        answer = run("fit", source, "-o", out, COMPONENTS, "4", *more)
        assert (f"bayesncl atlas {out} --serve" if more else "--images DIR") in answer.err
        folder = CodesFolder(out)
        np.testing.assert_allclose(folder.embeddings(), x, rtol=2e-3, atol=1e-3)
        assert folder.rows().labels.tolist() == y.tolist()
        assert run("embed", out, source, "-o", "e.csv", "--quiet").status == 0
        z, _, labels, _ = read_embeddings(Path("e.csv"))
        assert z.shape == (60, 4) and labels is not None
        answer = run("atlas", out, "--quiet")
        assert answer.status == 0 if more else "no images" in refused(answer)
    refused(run("embed", "codes-x", "pictures", "--quiet"), "array")
    with pytest.raises(InputError, match="array"):
        bayesncl.load("codes-x").encode(np.zeros((1, 3, 8, 8), np.uint8))
    np.save("w.npy", x[:, :3])
    refused(run("embed", "codes-x", "w.npy", "--quiet"), "3 columns")
    assert "sorted images" in run("fit", "x.npy", "-o", "plain", COMPONENTS, "4", *images).err
    pairs = reversed(list(zip(names, words)))
    Path("l.csv").write_text("name,label\n" + "".join(f"{n},{w}\n" for n, w in pairs))
    command = ("fit", "named.npz", "-o", "by-name", COMPONENTS, "4", "--labels", "l.csv", "--quiet")
    assert run(*command).status == 0
    assert CodesFolder("by-name").rows().labels.tolist() == y.tolist()


def test_run_as_source(run, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("fit", trained, "-o", "codes", COMPONENTS, "8")
    answer = run(*command)
    assert answer.status == 0, answer
    assert "96 training images of scenes" in answer.err
    folder = CodesFolder("codes")
    rows, model = folder.rows(), bayesncl.load(trained)
    assert (len(rows), rows.held) == (156, 60)
    assert "156 embedded before" in run(*command, "--method", "ncl").err
    assert "embedded before" not in run(*command, "--fresh").err
    pixels = np.asarray(load_split(model.recipe.data, "test").pixels[:5])
    found = bayesncl.load("codes").embed(pixels)
    np.testing.assert_allclose(found, folder.embeddings()[96:101], atol=1e-4)
    assert run("atlas", "codes", "--quiet").status == 0
    assert run("evaluate", "codes", "--quiet").status == 0
    words = ("embed", trained, "p", "-o", "z.npy", "--encoder", NET)
    refused(run(*words), "takes no encoder")
    x, count = folder.embeddings().copy(), []
    folder.embeddings_file.write_bytes(folder.embeddings_file.read_bytes()[:-8])
    monkeypatch.setattr(sources, "LOG_SECONDS", 0)
    real = sources.write_log

    def write(*args):
        stop() if len(count) == 60 else real(*args)
        count.append(1)

    monkeypatch.setattr(sources, "write_log", write)
    assert run(*command).status == 130
    count += [1]
    assert run(*command).status == 0
    assert len(count) == 61 + 96  # the first 60 images were in the log
    np.testing.assert_allclose(folder.embeddings(), x, atol=1e-5)


def test_code_runs_only_when_named(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", *FIT).status == 0
    for words in (["embed", "codes", "pictures"], ["fit", "pictures", "-o", "codes", "--mirror"]):
        refused(run(*words, "--quiet"), "which is code")
    refused(run("embed", "codes", "pictures", "--encoder", "json:loads", "--quiet"), "code")
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    about = CodesFolder("codes").about()
    about = replace(about, encoder=replace(about.encoder, spec="evil:make"))
    Path("codes/codes.json").write_text(about.to_json())
    refused(run("embed", "codes", "pictures", "--quiet"), "evil:make")
    with pytest.raises(InputError, match="which is code"):
        bayesncl.load("codes").encode(tmp_path / "pictures/ant/00.png")
    assert not Path("ran").exists()


def test_only_photos_of_the_recorded_size_are_shown(run, tmp_path: Path) -> None:
    """A stranger's codes.json may point anywhere: other pictures are not shown."""
    x, _ = clusters(24)
    pictures = draw_folder(tmp_path / "pictures", classes=())
    names = [f"{i:02}.png" for i in range(21)] + ["../secret.png", "x" * 5000, "a\0b"]
    np.savez("x.npz", z=x, names=np.array(names))
    command = ("fit", "x.npz", "-o", "codes", COMPONENTS, "4", "--images", "pictures", "--quiet")
    assert run(*command).status == 0
    folder = CodesFolder("codes")
    paths = folder.photo_paths(folder.rows(), range(24))
    assert paths.count(None) == 3 and not any("secret" in str(path) for path in paths)
    for path in pictures.iterdir():
        path.write_bytes(path.read_bytes() + b"longer")
    with pytest.raises(InputError, match="--data"):
        folder.photo_paths(folder.rows(), range(24))
    assert folder.photo_paths(folder.rows(), range(24), pictures).count(None) == 3


def test_partial_labels_are_not_used(run, tmp_path: Path) -> None:
    x, y = clusters()
    for labels, keyword in ((np.where(y, y, np.nan), "no label"), (0 * y, "no classes")):
        np.savez("x.npz", z=x, y=labels)
        assert keyword in run("fit", "x.npz", "-o", "codes", COMPONENTS, "4").err
        assert CodesFolder("codes").rows().labels is None
    pictures = draw_folder(tmp_path / "p", classes=())
    names = sorted(path.name for path in pictures.iterdir())
    table = "".join(f"{name},{'' if i else 'ant'}\n" for i, name in enumerate(names))
    Path("l.csv").write_text("name,label\n" + table)
    assert "23 of 24" in run("fit", pictures, "-o", "q", *FIT, "--labels", "l.csv").err
    grouped = draw_folder(tmp_path / "g")  # nor are its subfolders, when a table was asked for
    names = sorted(str(path.relative_to(grouped)) for path in grouped.rglob("*.png"))
    table = "".join(f"{name},{'' if i else 'ant'}\n" for i, name in enumerate(names))
    Path("l.csv").write_text("name,label\n" + table)
    assert run("fit", grouped, "-o", "r", *FIT, "--labels", "l.csv").status == 0
    assert CodesFolder("r").rows().labels is None


@pytest.mark.parametrize("outliers", [0, 3])
@pytest.mark.parametrize("held", [0, 60])
def test_noise_is_not_readable(held: int, outliers: int) -> None:
    """Groups are, however large the noise in a few columns."""
    rng = np.random.default_rng(2)
    names = tuple(map(str, range(200)))
    noise, groups = rng.normal(size=(200, 24)), clusters(200, 24, 8)[0]
    large = 30 * rng.normal(size=(200, outliers))
    noise, groups = np.hstack([noise, large]), np.hstack([groups, large])
    for x, least, most in ((noise, 0, 0.2), (groups, 0.8, 1)):
        codes = bayesncl.ReadableCodes(32, random_state=0).fit(x[: len(x) - held])
        z, labels, given = judging_data(codes, x, Rows(names, held=held))
        line = figures(z, labels, **given).verdict["lines"][0]
        assert least * 32 <= line["value"] <= most * 32, line
    labeled = Rows(names, np.arange(200) % 8, tuple("abcdefgh"))
    assert "noise" not in judging_data(codes, x, labeled)[2]  # labels need no such control


def test_options_apply_to_the_encoder_used_before(run, trained: Path, tmp_path: Path) -> None:
    draw_folder(tmp_path / "p")
    command = ("fit", "p", "-o", "codes", COMPONENTS, "4")
    assert run(*command, "--encoder", trained, "--quiet").status == 0
    answer = run(*command, "--mirror")
    assert answer.status == 0 and "mirror images" in answer.err
    encoder = CodesFolder("codes").about().encoder
    assert encoder.mirror is True and encoder.spec == str(trained.resolve())
    refused(run("fit", trained, "-o", "other", "--mirror", "--size", "8", "--quiet"), "--size")
