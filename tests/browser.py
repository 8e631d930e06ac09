"""A headless Chromium for the tests of pages: that of the system, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["chromium", "opened"]

#: Graphics in software, so that WebGL works without a graphics card; no sandbox, since a container
#: runs as root.
ARGUMENTS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or the test is skipped with the reason."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="pages are tested with playwright: pip install playwright"
    )
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, page: Path, **options: Any) -> Iterator[Any]:
    """A page that is drawn; at the end nothing may have been written to the console as an error,
    and nothing asked of the network.
    """
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
    complaints: list[str] = []
    requests: list[str] = []
    tab.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.on(
        "dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss())
    )
    tab.goto(page.absolute().as_uri())
    tab.wait_for_selector("html[data-ready=true]", timeout=90_000)
    yield tab
    tab.close()
    assert not complaints
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
