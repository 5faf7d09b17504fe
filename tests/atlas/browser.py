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
    SELECT_ALL = (CONTROL, "a", NULL)


def find_chromium() -> tuple[str, str] | None:
    """Paths of browser and driver, or None."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_chromium(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator["Browser"]:
    """A browser with a fresh profile that logs its console and all requests."""
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
            browser = Browser(driver)
            browser.resize(width, height)
            browser.set_dark(dark)
            yield browser
        finally:
            driver.quit()


class Browser:
    """A selenium driver that knows the atlas."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def resize(self, width: int, height: int) -> None:
        """Set the viewport; a headless window cannot be narrower than 500 pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def set_dark(self, dark: bool) -> None:
        """Set the color scheme that the system prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def visit(self, index: Path | str, address: str = "#/", seconds: float = 10) -> None:
        """Open a view of the atlas and wait until it is drawn, images included."""
        base = index if isinstance(index, str) else index.resolve().as_uri()
        if self.current_url.split("#")[0] == base:
            self.execute_script("location.hash = arguments[0]", address)
        else:
            self.get(base + address)
        self.wait_for("document.documentElement.dataset.ready", seconds=seconds)
        self.arrive(address, seconds)
        self.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 60))")

    def run(self, script: str, *arguments: object) -> Any:
        """The value of an expression."""
        return self.execute_script(f"return {script}", *arguments)

    def wait_for(self, script: str, *arguments: object, seconds: float = 5) -> Any:
        """The value of an expression, as soon as it is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, seconds, 0.05)
        return wait.until(lambda _: self.run(script, *arguments))

    def arrive(self, address: str, seconds: float = 5) -> None:
        view = "document.querySelector('main').dataset.view === arguments[0]"
        self.wait_for(view, address, seconds=seconds)

    def text(self, selector: str) -> list[str]:
        script = "[...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return [content.replace("\u00a0", " ") for content in self.run(script, selector)]

    def data(self, selector: str, name: str) -> list[int]:
        nodes = "[...document.querySelectorAll(arguments[0])]"
        return self.run(f"{nodes}.map(e => Number(e.dataset[arguments[1]]))", selector, name)

    def type(self, name: str, *keys: str) -> None:
        """Type into the field with the id `name`; of one text, wait until it is there.

        On a busy machine the driver may return before the page has seen the last key.
        """
        field = self.find_element("id", name)
        field.send_keys(*keys)
        if len(keys) == 1 and field.get_attribute("type") != "file":
            self.wait_for("arguments[0].value.endsWith(arguments[1])", field, keys[0])

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def click(self, selector: str) -> None:
        self.find_element("css selector", selector).click()

    def download(self, selector: str, path: Path) -> Path:
        """Click and wait for the downloaded file."""
        behavior = {"behavior": "allow", "downloadPath": str(path.parent)}
        self.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
        self.click(selector)
        for _ in range(100):
            if path.exists() and path.stat().st_size:
                return path
            time.sleep(0.05)
        raise AssertionError(f"{path.name} was not downloaded")
