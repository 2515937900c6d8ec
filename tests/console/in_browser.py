"""The console in a real browser: what serves it, drives Debian's chromium, and looks at it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from spark_mq.console.application import application
from spark_mq.console.pages import Console

DESKTOP, PHONE = (1280, 800), (390, 844)


class Served(threading.Thread):
    """The console over a store, on a free port."""

    def __init__(self, console: Console) -> None:
        super().__init__(name="console")
        config = uvicorn.Config(application(console), port=0, log_level="warning", access_log=False)
        self._server = uvicorn.Server(config)
        self.samples = console.samples
        self.start()
        while not self._server.started:
            time.sleep(0.01)

    def run(self) -> None:
        self._server.run()

    @property
    def address(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def close(self) -> None:
        self._server.should_exit = True
        self.join()


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Skips the test where Debian's packages or Python's selenium are missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


def show(browser: Any, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def shoot(browser: Any, name: str) -> None:
    if directory := os.environ.get("CONSOLE_SHOTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(f"{directory}/{name}.png")


def complaints(browser: Any) -> list[str]:
    """What the browser has logged since the last look: refused scripts and styles, errors of scripts, missing files."""
    return [each["message"] for each in browser.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]


def wait(is_so: Any, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.1)
    return bool(is_so())
