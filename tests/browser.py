"""The browser in which pages are tested: Debian's Chromium, driven by Playwright through the DevTools protocol."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = "chromium"


def unavailable_reason() -> str | None:
    """Why pages cannot be tested here; None if they can."""
    if shutil.which(CHROMIUM) is None:
        return f"{CHROMIUM} is not on the PATH (make test-browser installs it)"
    if importlib.util.find_spec("playwright") is None:
        return "there is no Playwright (pip install playwright; it drives the installed browser)"
    return None


@contextmanager
def running_browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def open_report(browser: Any, path: Path, **options: Any) -> Any:
    """A tab with a report that is drawn; an error in its script, or a request, fails the caller."""
    page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **options})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url == path.as_uri() else wrong.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    page.wrong = wrong
    return page
