"""Images with known features, their atlas, and a browser."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.atlas.ranking import clarity
from bayesncl.atlas.server import make_server
from bayesncl.codes.folder import CodesFolder
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import describe
from bayesncl.measure.vectors import top_images
from tests.atlas.browser import MISSING, find_chromium, open_chromium
from tests.conftest import unit_length

HOSTILE = '</script><img src=x onerror="window.hacked=1">'
NAMES = ("zero", "one", "two", "tiger", "four", "five", "six", "seven", "eight", HOSTILE)
GROUNDS = ("sky", "leaves", "sand", "petals")


class Case:
    """Handwritten digits on four tints, described by NMF; gates close frequent dimensions."""

    def __init__(self) -> None:
        digits, rng, n = load_digits(), np.random.default_rng(0), 600
        self.labels = digits.target[:n].astype(np.int64)
        self.grounds = rng.integers(0, 4, n)
        shape = np.kron(digits.images[:n] / 16, np.ones((4, 4)))[:, None]
        tints = np.array([[70, 120, 190], [60, 130, 70], [190, 150, 90], [150, 80, 110]])
        tint = tints[self.grounds][:, :, None, None] + rng.normal(0, 12, (n, 3, 32, 32))
        pixels = np.clip(tint * (1 - shape) + 245 * shape, 0, 255).astype(np.uint8)
        files = tuple(f"{HOSTILE}/{i:03d}.png" for i in range(n))
        self.images = Images(pixels, self.labels, self.grounds, NAMES, GROUNDS, files)
        parts = np.c_[digits.data[:n] / 16, np.eye(4)[self.grounds], np.full(n, 0.5)]
        z, other = (
            NMF(d, init="nndsvda", max_iter=40, tol=1e-2, random_state=0).fit_transform(parts)
            for d in (24, 16)
        )
        z[:, 11] = 0
        self.z = unit_length(np.where(z > 0.04, z, 0))
        closing = np.clip(1.4 * (self.z > 1e-5).mean(0) - 0.2, 0, 0.95)
        self.open = rng.random(self.z.shape) >= closing
        self.gated, self.other = unit_length(self.z * self.open), unit_length(other)
        self.dims = describe(self.z, self.labels, open=self.open)
        self.top = top_images(csr_array(self.z), 200)
        self.clarity = clarity(csr_array(self.z), self.top)
        summary = {"paper": {"consistency": 18.5}, "sound": {"consistency": 11.25, "l0": 4.5}}
        self.runs = [
            AtlasRun("BayesNCL", self.z, None, self.open, summary, "A run with gates."),
            AtlasRun(f"NCL {HOSTILE}", self.other, sentence="A run without gates."),
        ]


@contextmanager
def serving(index: Path, codes: Sequence[CodesFolder] = ()) -> Iterator[str]:
    """The address of a server of an atlas, which saves names into `codes`."""
    with make_server(index.parent, 0, codes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="session")
def case() -> Case:
    return Case()


@pytest.fixture(scope="session")
def index(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "atlas"
    return build_atlas(out, case.runs, case.images, f"Digits {HOSTILE}")


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if find_chromium() is None:
        pytest.skip(MISSING)
    with open_chromium() as driver:
        yield driver


@pytest.fixture
def driver(chromium) -> Iterator:
    """The browser. After each test, the console is clean and no request has left this machine."""
    chromium.resize(1280, 900)
    chromium.set_dark(False)
    yield chromium
    console = [e for e in chromium.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    assert [e for e in console if "getImageData" not in e["message"]] == []  # called by tests only
    local = ("file:///", "http://127.0.0.1:", "chrome", "data:", "blob:")
    for entry in chromium.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            assert message["params"]["request"]["url"].startswith(local)
    assert chromium.run("window.hacked") is None
    if chromium.current_url.startswith("file:"):
        chromium.execute_script("try { localStorage.clear() } catch {}")
    chromium.get("about:blank")
