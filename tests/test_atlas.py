"""The atlas folder against the arrays it was made from."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

from bayesncl.atlas import AtlasRun, Photos, build, build_atlas, galleries
from bayesncl.atlas.build import MARKER, SCRIPTS, make_server
from bayesncl.atlas.contents import prepare
from bayesncl.atlas.pictures import fitted, large_side, write_sprites
from bayesncl.atlas.telling import factorise
from bayesncl.atlas.vectors import SCALE, nearest_rows, quantise
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.measure.dimensions import describe

from .conftest import unit_length

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028$x"
KINDS = {"Uint8Array": "u1", "Uint16Array": "<u2", "Uint32Array": "<u4", "Int16Array": "<i2", "Float32Array": "<f4"}


def make_features(n: int = 60, d: int = 23, seed: int = 0, signed: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z = rng.gamma(1, 1, (n, d)) * (rng.random((n, d)) < rng.random(d))
    z[:, 3] = 0  # dead
    z[:, 4] = 0
    z[7, 4] = 1  # nearly dead
    z = z * np.where(rng.random((n, d)) < 0.5, -1, 1) if signed else z
    return unit_length(z).astype(np.float32)


def make_images(n: int = 60, labelled: bool = True, side: int = 12, seed: int = 0) -> Images:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    if not labelled:
        return Images(pixels)
    names = ("cat", HOSTILE, "dog", "tiger")
    files = tuple(f"{HOSTILE}{i}.png" for i in range(n))
    return Images(pixels, rng.integers(0, 4, n), rng.integers(0, 2, n), names, ("sky", "grass"), files)


def csr(z: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array(z)


def read(folder: Path, key: str) -> dict:
    """What atlasData is called with, arrays decoded."""
    text = (folder / "data" / f"{key}.js").read_text(encoding="ascii")
    assert text.startswith("atlasData(")
    assert text.endswith(");\n")
    name, plain, arrays = json.loads("[" + text[len("atlasData(") : -3] + "]")
    assert name == key
    return plain | {k: np.frombuffer(base64.b64decode(b), KINDS[kind]) for k, (kind, b) in arrays.items()}


def test_memory_follows_the_classes_that_occur_not_the_largest_label(tmp_path: Path) -> None:
    images = make_images()
    labels = np.random.default_rng(0).choice([3, 64_000_000, 2**62, -1], 60)
    found = factorise("labels", labels, None)
    assert found.names == ["class 3", "class 64000000", f"class {2**62}"]
    assert (found.index == np.searchsorted([-1, 3, 64_000_000, 2**62], labels) - 1).all()
    index = build_atlas(tmp_path / "a", [AtlasRun("r", make_features())], Images(images.pixels, labels, labels))
    assert len(read(index.parent, "run0-classes")["before.classes"]) == 23 * 3
    many = factorise("labels", np.r_[np.arange(5000), np.arange(100)], None)
    assert len(many.names) == 2000
    assert (many.index[:100] >= 0).all()  # the most frequent stay
    assert (many.index[2000:5000] == -1).all()
    with pytest.raises(InputError, match="labels must be whole numbers, got float64"):
        factorise("labels", np.ones(3), None)


def test_sparse_codes_give_the_same_atlas_as_dense_ones(tmp_path: Path) -> None:
    z, images = make_features(), make_images()
    folders = [
        build_atlas(tmp_path / name, [AtlasRun("r", x)], images).parent
        for name, x in (("dense", z), ("csr", sparse.csr_array(z)), ("coo", sparse.coo_matrix(z)))
    ]
    files = [{p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} for folder in folders]
    assert files[0] == files[1] == files[2]


def test_sprites_keep_small_images_exactly(tmp_path: Path) -> None:
    images = make_images(130, side=12)
    layout = write_sprites(images, tmp_path / "sprites", 96)
    sheet = np.asarray(Image.open(tmp_path / layout["files"][0]))
    assert layout["tile"] == [16, 16]
    for i in (0, 63, 64, 129):
        y, x = i // layout["columns"] * 16, i % layout["columns"] * 16
        assert (sheet[y : y + 12, x : x + 12] == images.pixels[i].transpose(1, 2, 0)).all()


def test_sprites_shrink_large_images_and_fill_several_sheets(tmp_path: Path) -> None:
    assert fitted(32, 32, 64) == (32, 32)
    assert fitted(224, 112, 96) == (96, 48)
    pixels = np.zeros((130, 3, 200, 200), np.uint8)
    pixels[129] = 255
    layout = write_sprites(Images(pixels), tmp_path / "sprites", 96)
    assert layout["size"] == [96, 96]
    assert len(layout["files"]) == 2
    place = 129 - layout["columns"] * layout["rows"]
    y, x = place // layout["columns"] * 96, place % layout["columns"] * 96
    sheet = np.asarray(Image.open(tmp_path / layout["files"][1]))
    assert sheet[y : y + 96, x : x + 96].min() == 255
    assert sheet[:y].max(initial=0) == 0


def test_large_originals_are_kept_larger(tmp_path: Path) -> None:
    assert large_side(1000) == 256
    assert large_side(10_000) > 64
    assert large_side(1_000_000) == 0
    images = Images(np.zeros((10, 3, 300, 200), np.uint8))
    core = read(build_atlas(tmp_path / "a", [AtlasRun("r", np.ones((10, 3)))], images).parent, "atlas")
    assert core["sprites"]["size"] == [96, 64]
    assert core["large"]["size"] == [256, 171]
    small = read(build_atlas(tmp_path / "b", [AtlasRun("r", np.ones((10, 3)))], make_images(10)).parent, "atlas")
    assert "large" not in small


def test_images_by_path_are_read_in_parts_and_damaged_ones_are_grey(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for i, path in enumerate(paths[:10]):
        Image.fromarray(np.full((300, 200, 3), 20 * i, np.uint8)).save(path)
    paths[10].write_bytes(b"not an image")  # and the last one is missing
    photos = Photos(paths, np.arange(12) % 2, class_names=("even", "odd"))
    index = build_atlas(tmp_path / "a", [AtlasRun("r", np.eye(12))], photos)
    core = read(index.parent, "atlas")
    assert core["sprites"]["size"] == [96, 96]
    assert read(index.parent, "names-0")["names"][3] == "3.png"
    sheet = np.asarray(Image.open(index.parent / core["sprites"]["files"][0]))
    for i in range(12):
        y, x = i // core["sprites"]["columns"] * 96, i % core["sprites"]["columns"] * 96
        assert abs(int(sheet[y + 48, x + 48, 0]) - (20 * i if i < 10 else 128)) <= 3
    with pytest.raises(InputError, match="3 labels for 12 images"):
        Photos(paths, np.arange(3))


def test_folder_holds_the_numbers_of_both_runs(tmp_path: Path) -> None:
    images, z = make_images(), make_features()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    other = make_features(d=9, seed=5, signed=True)
    sound = {"consistency": np.float32(11.5), "l0": np.nan}
    summary = {"paper": {"consistency": 12.5, "curve": [1, 2]}, "sound": sound}
    runs = [AtlasRun("gated", 3 * z, None, gates_open, summary, "One."), AtlasRun(HOSTILE, other)]
    index = build_atlas(tmp_path / "atlas", runs, images, HOSTILE)
    folder = index.parent
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atlas"]

    core = read(folder, "atlas")
    assert core["classes"] == list(images.class_names)
    assert (core["labels"] - 1).tolist() == images.labels.tolist()
    assert core["runs"][0]["summary"] == {"columns": ["paper", "sound"], "rows": [["consistency", 12.5, 11.5]]}
    assert core["runs"][1]["name"] == HOSTILE
    assert read(folder, "names-0")["names"] == list(images.names)

    gated = unit_length(z * gates_open)
    run = read(folder, "run0")
    for stage, x in (("before", z), ("after", gated)):
        dims = describe(x, images.labels)
        assert run[f"{stage}.support"].tolist() == dims.support.tolist()
        assert np.allclose(run[f"{stage}.consistency"], np.nan_to_num(dims.consistency) / 100)
        counts = read(folder, "run0-classes")[f"{stage}.classes"].reshape(23, 4)
        assert (counts == dims.class_counts).all()
        near, _ = nearest_rows(csr(x), 12)
        assert (read(folder, "run0-images-0")[f"{stage}.near"].reshape(60, 12) == near).all()
    part = read(folder, "run0-images-0")
    for i in (0, 41):
        e = slice(part["start"][i], part["start"][i + 1])
        dense = np.zeros(23)
        dense[part["dims"][e]] = part["gated"][e] / SCALE
        assert np.allclose(dense, gated[i], atol=1 / SCALE)
        bits = np.unpackbits(part["open"], bitorder="little")[e]
        assert bits.tolist() == gates_open[i, part["dims"][e]].tolist()
    assert run["whole"] is True

    second = read(folder, "run1")
    assert second["signed"] is True
    assert list(second["stages"]) == ["before"]
    cosine = unit_length(z.T) @ unit_length(other.T).T
    match = read(folder, "compare-1")
    assert match["first.match"][0] == cosine[0].argmax()
    assert match["second.cosine"][2] == quantise(cosine[:, 2].max())


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun(HOSTILE, make_features())], make_images(), HOSTILE)
    for path in index.parent.rglob("*.js"):
        if path.parent.name == "data":
            assert "<" not in path.read_text(encoding="ascii")
    page = index.read_text(encoding="ascii")
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "default-src 'none'" in page


def test_page_writes_no_markup_from_data_and_asks_no_network() -> None:
    page = Path(__file__).parent.parent / "bayesncl" / "atlas" / "page"
    assert sorted(p.name for p in page.glob("*.js")) == sorted(SCRIPTS)
    for name in SCRIPTS:
        text = (page / name).read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "https:"):
            assert word not in text, (name, word)


def test_works_without_labels_names_or_gates(tmp_path: Path) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun("plain", make_features())], make_images(labelled=False))
    core, run = read(index.parent, "atlas"), read(index.parent, "run0")
    assert core["classes"] is None
    assert "labels" not in core
    assert "before.consistency" not in run
    assert run["stages"]["before"]["consistency"] is None
    assert not (index.parent / "data" / "run0-classes.js").exists()
    single = build_atlas(tmp_path / "b", [AtlasRun("one", np.ones((1, 1)))], make_images(1, labelled=False))
    assert read(single.parent, "run0")["before.support"].tolist() == [1]


def test_works_if_nothing_fires(tmp_path: Path) -> None:
    run = read(build_atlas(tmp_path / "a", [AtlasRun("dead", np.zeros((3, 2)))], make_images(3)).parent, "run0")
    assert run["before.support"].tolist() == [0, 0]


def test_truncation_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesncl.atlas.contents.ENTRIES", 1)
    z = unit_length(np.random.default_rng(0).random((20, 100)))
    run = read(build_atlas(tmp_path / "a", [AtlasRun("dense", z)], make_images(20)).parent, "run0")
    assert run["keep"] == 64
    assert run["whole"] is False
    assert run["covered"][0] == pytest.approx(np.mean([np.sort(row**2)[-64:].sum() for row in z]), abs=1e-5)


def test_replaces_an_atlas_but_no_other_folder(tmp_path: Path) -> None:
    images, run = make_images(), AtlasRun("a", make_features())
    out = tmp_path / "out"
    out.mkdir()
    build_atlas(out, [run], images, "first")
    build_atlas(out, [run], images, "second")
    assert json.loads((out / MARKER).read_text())["title"] == "second"
    (out / "names.json").write_text("{}")
    (out / "mine/deep").mkdir(parents=True)
    (out / "link").symlink_to("nowhere")
    (out / "sprites/old.png").write_text("")
    linked = tmp_path / "linked"
    linked.symlink_to("out")
    build_atlas(linked, [run], images, "third")
    assert linked.is_symlink() and json.loads((out / MARKER).read_text())["title"] == "third"
    assert (out / "names.json").read_text() == "{}" and (out / "mine/deep").is_dir() and (out / "link").is_symlink()
    assert not (out / "sprites/old.png").exists()
    linked.unlink()
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter1.tex").write_text("x")
    with pytest.raises(InputError, match="not an atlas"):
        build_atlas(thesis, [run], images)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "thesis"]
    assert [p.name for p in thesis.iterdir()] == ["chapter1.tex"]


def test_a_failed_build_leaves_the_old_atlas_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, run = make_images(), AtlasRun("a", make_features())
    build_atlas(tmp_path / "out", [run], images, "first")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("bayesncl.atlas.build.write_run", fail)
    with pytest.raises(OSError, match="disk full"):
        build_atlas(tmp_path / "out", [run], images, "second")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_while_replacing_leaves_one_whole_atlas(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, run, out = make_images(), AtlasRun("a", make_features()), tmp_path / "out"
    build_atlas(out, [run], images, "first")
    if not exchange:
        monkeypatch.setattr(build, "_exchange", lambda a, b: False)
    real = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if Path(target) == out:
            raise SystemExit("killed")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    if exchange:  # in one step: there is nothing between
        build_atlas(out, [run], images, "second")
    else:
        with pytest.raises(SystemExit):
            build_atlas(out, [run], images, "second")
    monkeypatch.setattr(Path, "rename", real)
    assert exchange == out.exists()
    build_atlas(out, [run], images, "third") if exchange else None
    if not exchange:  # the next build, even one that fails, brings the old one back
        with pytest.raises(InputError):
            build_atlas(out, [AtlasRun("b", np.ones((3, 3)))], images, "third")
    assert json.loads((out / MARKER).read_text())["title"] == ("third" if exchange else "first")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (AtlasRun("r", np.ones((59, 3))), r"z must be \[60, D\] for 60 images, got \[59, 3\]"),
        (AtlasRun("r", np.ones(60)), r"got \[60\]"),
        (AtlasRun("r", np.ones((60, 3)), None, np.ones((60, 2), bool)), r"open must be \[60, 3\] .*got \[60, 2\]"),
        (AtlasRun("r", np.full((60, 3), np.nan)), "run 'r': features must be finite numbers"),
    ],
)
def test_bad_arrays_are_named(run: AtlasRun, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(run, make_images())


def test_bad_requests_are_named(tmp_path: Path) -> None:
    run = AtlasRun("r", make_features())
    with pytest.raises(InputError, match="one to 8 runs, got 9"):
        build_atlas(tmp_path / "a", [run] * 9, make_images())
    few = make_images()
    with pytest.raises(InputError, match="labels go up to 3 but there are 2 names"):
        build_atlas(tmp_path / "a", [run], Images(few.pixels, few.labels, None, ("a", "b")))
    assert not list(tmp_path.iterdir())


def test_gated_equal_to_z_is_no_gate() -> None:
    z = make_features()
    assert prepare(AtlasRun("ncl", z, z, None), make_images()).gated is None
    soft = prepare(AtlasRun("soft", z, z * np.linspace(0.1, 1, 23), None), make_images())
    assert soft.gated is not None
    assert soft.open is None


def test_serves_the_atlas_on_this_machine_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun("r", make_features())], make_images())
    with pytest.raises(InputError, match="is not an atlas"):
        make_server(tmp_path, 0)
    with make_server(index.parent, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(InputError, match="in use; --port 0 takes a free one"):
            make_server(index.parent, server.server_address[1])
        with urllib.request.urlopen(f"{base}/") as reply:
            assert reply.read() == index.read_bytes()
        for path in ("/data/", "/../secret", "/%00", "/data/%00.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        for host in ("evil.example", f"evil.example:{server.server_address[1]}", "127.0.0.1.evil.example"):
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(urllib.request.Request(f"{base}/", headers={"Host": host}))
        server.shutdown()
    assert capfd.readouterr().err == ""  # no traceback


def test_galleries_are_figures(tmp_path: Path) -> None:
    z, images = make_features(), make_images()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    files = galleries(AtlasRun("r", z, None, gates_open), images, tmp_path, rows=3, columns=4)
    assert [f.name for f in files] == ["high-entropy.png", "most-suppressed.png"]
    for file in files:
        drawn = np.asarray(Image.open(file).convert("RGB"))
        assert drawn.shape[1] > 300
        assert (drawn != 255).any(-1).mean() > 0.2
    bare = galleries(AtlasRun("r", z), make_images(labelled=False), tmp_path / "b")
    assert [f.name for f in bare] == ["high-entropy.png"]
