"""CIFAR in its four official forms, its whitelist unpickler, and downloads."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bayesncl import data
from bayesncl.data import cifar
from bayesncl.data.cifar import fetch
from bayesncl.errors import InputError
from tests.data.conftest import of

pytestmark = pytest.mark.filterwarnings("ignore:.*the official:UserWarning")
RNG = np.random.default_rng(0)
NAMES = {"cifar10": [f"thing{i}" for i in range(10)], "cifar100": [f"fine{i}" for i in range(100)]}


def load(name: str, root: Path, split: str = "test") -> data.Images:
    return data.load(of(name, root, 32), split)


class Made:
    """A small set in one official layout, and what should be read back."""

    def __init__(self, name: str, binary: bool) -> None:
        self.layout = next(x for x in cifar.LAYOUTS[name] if x.binary == binary)
        self.want: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        names = ("\n".join(NAMES[name]) + "\n").encode()
        if not binary:
            names = pickle.dumps({f"{self.layout.kind}label_names": NAMES[name]}, protocol=2)
        self.files = {self.layout.names: names}
        for split, files in (("train", self.layout.train), ("test", self.layout.test)):
            pixels = RNG.integers(0, 256, (len(files), 10, 3072), dtype=np.uint8)
            labels = RNG.integers(0, len(NAMES[name]), (len(files), 10))
            self.want[split] = pixels.reshape(-1, 3072), labels.ravel()
            self.files |= zip(files, map(self.pack, pixels, labels))

    def pack(self, pixels: np.ndarray, labels: np.ndarray) -> bytes:
        if not self.layout.binary:
            content = {"data": pixels, f"{self.layout.kind}labels": labels.tolist(), "x": "y"}
            return pickle.dumps(content, protocol=2)
        coarse = [7] if self.layout.kind else []
        return b"".join(bytes([*coarse, y, *image]) for image, y in zip(pixels, labels))

    def unpack_to(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for name, raw in self.files.items():
            (folder / name).write_bytes(raw)
        return folder

    def tar_to(self, path: Path, extra: tarfile.TarInfo | None = None) -> Path:
        with tarfile.open(path, "w:gz") as tar:
            for name, raw in reversed(self.files.items()):
                info = tarfile.TarInfo(f"{self.layout.folder}/{name}")
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
            if extra:
                tar.addfile(extra)
        return path


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_every_form_is_read(tmp_path: Path, name: str, binary: bool) -> None:
    made = Made(name, binary)
    inside = made.unpack_to(tmp_path / "a" / made.layout.folder)
    (tmp_path / "b").mkdir()
    archive = made.tar_to(tmp_path / "b" / made.layout.archive)
    for root in (inside, inside.parent, archive, archive.parent):
        for split, (pixels, labels) in made.want.items():
            images = load(name, root, split)
            assert (images.pixels.reshape(len(images), -1) == pixels).all()
            assert (images.labels == labels).all() and images.class_names == tuple(NAMES[name])


def test_other_sizes_warn_and_labels_are_checked(tmp_path: Path) -> None:
    made = Made("cifar10", True)
    with pytest.warns(UserWarning, match="the official set has 10000"):
        load("cifar10", made.tar_to(tmp_path / made.layout.archive))
    made.files["test_batch.bin"] = made.pack(np.zeros((3, 3072), np.uint8), np.array([0, 11, 2]))
    with pytest.raises(InputError, match="labels 0 to 11"):
        load("cifar10", made.unpack_to(tmp_path / "d"))


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    made = Made("cifar10", True)
    raw = made.files.pop("test_batch.bin")
    (tmp_path / "secret").write_bytes(raw)
    link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
    with pytest.raises(InputError, match="missing"):
        load("cifar10", made.tar_to(tmp_path / made.layout.archive, link))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def hostile_pickles(mark: Path) -> list[bytes]:
    pixels = np.zeros((3, 3072), np.uint8)
    short = pickle.dumps({"data": pixels}, protocol=2)
    contents = [
        {"data": Evil(mark), "labels": [1]},
        {"data": np.array([os.system], dtype=object), "labels": [1]},
        {"data": np.zeros((3, 3072), np.int64), "labels": [0, 1, 2]},
        *({"data": pixels, "labels": labels} for labels in ([0, 1], [0, 1, 10**400], "abc")),
        [1, 2],
    ]
    return [
        b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        short.replace(b"\x4d\x00\x0c", b"\x4d\xff\xff"),
        b"",
        *map(pickle.dumps, contents),
    ]


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    made, mark = Made("cifar10", False), tmp_path / "owned"
    folder = made.unpack_to(tmp_path / "d")
    for raw in hostile_pickles(mark):
        (folder / "test_batch").write_bytes(raw)
        with pytest.raises(InputError, match="test_batch") as caught:
            load("cifar10", folder)
        assert "\n" not in str(caught.value)
    assert not mark.exists()


class Server(http.server.BaseHTTPRequestHandler):
    content = b""
    resumes = True
    ranges: ClassVar[list[str | None]] = []
    most = 1 << 30  # bytes before the connection breaks

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.resumes else 0
        if start >= len(self.content):
            self.send_error(416)
            return
        body = self.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.most])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.content, Server.ranges = RNG.bytes(300_000), []
    Server.resumes, Server.most = True, 1 << 30
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/file"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("resumes", [True, False])
def test_download_goes_on_where_it_broke(tmp_path: Path, server: str, resumes: bool) -> None:
    md5 = hashlib.md5(Server.content).hexdigest()
    Server.most, Server.resumes = 100_000, resumes
    with pytest.raises(InputError, match="cannot download"):
        fetch(server, tmp_path / "d" / "file", md5)
    assert (tmp_path / "d" / "file.part").stat().st_size == 100_000
    Server.most = 1 << 30
    steps: list[tuple[int, int, str]] = []
    path = fetch(server, tmp_path / "d" / "file", md5, lambda *step: steps.append(step))
    assert path.read_bytes() == Server.content
    assert Server.ranges == [None, "bytes=100000-"]
    assert steps[-1][:2] == (300_000, 300_000)
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    fetch(server, path, md5)
    assert len(Server.ranges) == 2  # it is there: nothing is asked


def test_a_wrong_file_is_not_kept(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="expected 0000"):
        fetch(server, tmp_path / "file", "0000")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(cifar, "HOME", "http://127.0.0.1:9/")
    with pytest.raises(InputError, match="cifar-10-binary"):
        data.download("cifar10", tmp_path)
