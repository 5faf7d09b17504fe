"""Headless Chromium for the browser tests, the benchmark and the screenshots of the docs."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MISSING = "chromium and chromedriver are not installed"
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


class Keys:
    """Keys without a character, as the WebDriver protocol numbers them."""

    NULL, TAB, ENTER, CONTROL, ESCAPE = "\ue000", "\ue004", "\ue007", "\ue009", "\ue00c"
    ARROW_LEFT, DELETE = "\ue012", "\ue017"


def find_chromium() -> tuple[str, str] | None:
    """Paths of browser and driver, or None."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_chromium(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A selenium driver with a fresh profile that logs its console and all requests."""
    from selenium import webdriver

    found = find_chromium()
    if found is None:
        raise RuntimeError(MISSING)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = found[0]
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
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
    """Set the viewport; a headless window cannot be narrower than 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def set_dark(driver, dark: bool) -> None:
    """Set the color scheme that the system prefers."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def visit(driver, index: Path | str, address: str = "#/", seconds: float = 10) -> None:
    """Open a view of the atlas and wait until it is drawn, images included."""
    base = index if isinstance(index, str) else index.resolve().as_uri()
    if driver.current_url.split("#")[0] == base:
        driver.execute_script("location.hash = arguments[0]", address)
    else:
        driver.get(base + address)
    wait_for(driver, "document.documentElement.dataset.ready", seconds=seconds)
    arrive(driver, address, seconds)
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 60))")


def wait_for(driver, script: str, *arguments: object, seconds: float = 5) -> object:
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(driver, seconds, 0.05)
    return wait.until(lambda d: d.execute_script(f"return {script}", *arguments))


def arrive(driver, address: str, seconds: float = 5) -> None:
    view = "document.querySelector('main').dataset.view === arguments[0]"
    wait_for(driver, view, address, seconds=seconds)


def text(driver, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return [content.replace("\u00a0", " ") for content in driver.execute_script(script, selector)]


def data(driver, selector: str, name: str) -> list[int]:
    numbers = "[...document.querySelectorAll(arguments[0])].map(e => Number(e.dataset[arguments[1]]))"
    return driver.execute_script(f"return {numbers}", selector, name)


def fill(driver, name: str, *keys: str) -> None:
    """Replace the content of the field with the id `name`."""
    field = driver.find_element("id", name)
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, *keys)


def press(driver, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def click(driver, selector: str) -> None:
    driver.find_element("css selector", selector).click()


def download(driver, selector: str, path: Path) -> Path:
    """Click and wait for the downloaded file."""
    behavior = {"behavior": "allow", "downloadPath": str(path.parent)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    click(driver, selector)
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            return path
        time.sleep(0.05)
    raise AssertionError(f"{path.name} was not downloaded")
