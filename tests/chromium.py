"""The system's Chromium without a window, for the browser tests, the benchmark and the screenshots of the docs.

Screenshots: python tests/chromium.py ATLAS_FOLDER OUT_FOLDER NAME [DIMENSION IMAGE IMAGE]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image

MISSING = "no browser: chromium and chromedriver are not installed"
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-color-profile=srgb",
)  # fmt: skip
SHOTS = {  # name: address, width, height, dark
    "overview": ("#/", 1280, 1000, False),
    "dimension": ("#/dim/{k}", 1280, 800, False),
    "pair": ("#/pair/{i}/{j}", 1280, 1000, True),
    "quiz": ("#/quiz", 1280, 660, False),
    "phone": ("#/", 390, 844, False),
}


def find_chromium() -> tuple[str, str] | None:
    """Paths of browser and driver, or None."""
    browser, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_chromium(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator:
    """A selenium driver with a fresh profile that logs its console and every request."""
    from selenium import webdriver

    found = find_chromium()
    if found is None:
        raise RuntimeError(MISSING)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = found[0]
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(found[1]))
        try:
            resize(driver, width, height)
            set_dark(driver, dark)
            yield driver
        finally:
            driver.quit()


def resize(driver, width: int, height: int) -> None:
    """Viewport of exactly this size (a headless window does not get narrower than 500)."""
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


def set_dark(driver, dark: bool) -> None:
    """What the system says it prefers."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def visit(driver, index: Path | str, address: str = "#/", seconds: float = 10) -> None:
    """Open a view of the atlas and wait until it is drawn, pictures included."""
    from selenium.webdriver.support.ui import WebDriverWait

    base = index if isinstance(index, str) else index.resolve().as_uri()
    here = driver.current_url.split("#")[0]
    if here == base:
        driver.execute_script("location.hash = arguments[0]", address)
    else:
        driver.get(base + address)
    ready = """return document.documentElement.dataset.ready
        && document.querySelector('main').dataset.view === arguments[0]"""
    WebDriverWait(driver, seconds, 0.05).until(lambda d: d.execute_script(ready, address))
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 60))")


def take_screenshots(index: Path, out: Path, given: str, k: int = 0, i: int = 0, j: int = 1) -> list[Path]:
    """Views for the docs: overview, dimension `k` with the name `given`, images `i` and `j`, quiz, phone."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (address, width, height, dark) in SHOTS.items():
        with open_chromium(width, height, dark) as driver:
            visit(driver, index, f"#/dim/{k}", 60)
            driver.find_element("id", "name").send_keys(given)
            driver.execute_script("document.querySelector('.mark input').click(); document.activeElement.blur()")
            visit(driver, index, address.format(k=k, i=i, j=j), 60)
            files.append(out / f"atlas-{name}.png")
            with Image.open(BytesIO(driver.get_screenshot_as_png())) as shot:  # 128 colours: a third of the bytes
                shot.convert("RGB").quantize(128, kmeans=2).save(files[-1], optimize=True)  # else links turn grey
    return files


if __name__ == "__main__":
    index, out = Path(sys.argv[1]) / "index.html", Path(sys.argv[2])
    print(*take_screenshots(index, out, sys.argv[3], *map(int, sys.argv[4:])), sep="\n")
