"""What the browser tests of the atlas share: images with known parts, and the hands of a browser."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF

from bayesncl.atlas import AtlasRun
from bayesncl.atlas.telling import Labels, recognise, telling
from bayesncl.atlas.vectors import top_images
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import describe

from .conftest import unit_length

HOSTILE = '<img src=x onerror="window.hacked=1">'
NAMES = ("zero", "one", "two", "tiger", "four", "five", "six", "seven", "eight", HOSTILE)
VIEWS = (
    "#/", "#/dims", "#/dim/2", "#/image/5", "#/images", "#/images?with=5", "#/pair/5/8", "#/compare", "#/classes",
    "#/class/9", "#/names", "#/quiz", "#/gallery/entropy", "#/gallery/suppressed",
    "#/?stage=after", "#/dim/2?stage=after", "#/?run=1",
)  # fmt: skip


class Case:
    """Handwritten digits on four tints, described by parts that NMF finds; gates close what is common."""

    def __init__(self) -> None:
        digits, rng, n = load_digits(), np.random.default_rng(0), 600
        self.labels = digits.target[:n].astype(np.int64)
        self.grounds = rng.integers(0, 4, n)
        shape = np.kron(digits.images[:n] / 16, np.ones((4, 4)))[:, None]
        tint = np.array([[70, 120, 190], [60, 130, 70], [190, 150, 90], [150, 80, 110]])[self.grounds][:, :, None, None]
        noise = rng.normal(0, 12, (n, 3, 32, 32))
        pixels = np.clip((tint + noise) * (1 - shape) + 245 * shape, 0, 255).astype(np.uint8)
        files = tuple(f"{HOSTILE}/{i:03d}.png" for i in range(n))
        self.images = Images(pixels, self.labels, self.grounds, NAMES, ("sky", "leaves", "sand", "petals"), files)
        parts = np.c_[digits.data[:n] / 16, np.eye(4)[self.grounds], np.full(n, 0.5)]
        z = NMF(24, init="nndsvda", max_iter=40, tol=1e-2, random_state=0).fit_transform(parts)
        z[:, 11] = 0
        self.z = unit_length(np.where(z > 0.04, z, 0))
        closing = np.clip(1.4 * (self.z > 1e-5).mean(0) - 0.2, 0, 0.95)
        self.open = rng.random(self.z.shape) >= closing
        self.gated = unit_length(self.z * self.open)
        other = NMF(16, init="nndsvda", max_iter=40, tol=1e-2, random_state=1).fit_transform(parts)
        self.other = unit_length(other)
        self.dims = describe(self.z, self.labels, open=self.open)
        self.consistency = np.nan_to_num(self.dims.consistency) / 100
        self.top = top_images(csr_array(self.z), 200)
        self.telling = telling(csr_array(self.z), *self.top)
        self.stands = recognise(*self.top, Labels(self.labels, list(NAMES)))
        self.grounded = recognise(*self.top, Labels(self.grounds, ["sky", "leaves", "sand", "petals"]))
        summary = {"paper": {"consistency": 18.5}, "sound": {"consistency": 11.25, "l0": 4.5}}
        self.runs = [
            AtlasRun("BayesNCL", self.z, None, self.open, summary, "A run with gates."),
            AtlasRun(f"NCL {HOSTILE}", self.other, sentence="A run without."),
        ]


def text(driver, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return driver.execute_script(script, selector)


def data(driver, selector: str, name: str) -> list[int]:
    script = "return [...document.querySelectorAll(arguments[0])].map(e => Number(e.dataset[arguments[1]]))"
    return driver.execute_script(script, selector, name)


def press(driver, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def wait_for(driver, script: str, *arguments: object) -> object:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 5, 0.05).until(lambda d: d.execute_script(f"return {script}", *arguments))


def arrived(path: Path) -> None:
    """Wait for a download."""
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {path.name}")


def click(driver, selector: str) -> None:
    driver.find_element("css selector", selector).click()


def arrive(driver, address: str) -> None:
    wait_for(driver, "document.querySelector('main').dataset.view === arguments[0]", address)


