"""A real Chromium without a network, which says what a page does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, sync_playwright

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@dataclass
class Opened:
    """A page, and whatever it has said or asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)

    def look_at(self, file: Path) -> None:
        self.said.clear()
        self.asked_for.clear()
        self.page.goto(file.resolve().as_uri())
        self.page.wait_for_load_state("load")

    def note_dialog(self, dialog: Dialog) -> None:
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def is_quiet(self) -> bool:
        """Nothing in the console, no error, no question, and nothing loaded but the file itself."""
        assert self.said == []
        assert [url for url in self.asked_for if not url.startswith(("data:", "blob:"))] == [self.page.url]
        return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    assert program is not None, "There is no chromium: `make test-browser` installs Debian's."
    with sync_playwright() as playwright:
        # Its sandbox is not for root, who runs tests in containers.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1000, "height": 1200}, offline=True)
    found = Opened(context.new_page())
    page = found.page
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
    page.on("dialog", found.note_dialog)
    page.on("request", lambda request: found.asked_for.append(request.url))
    page.on("popup", lambda popup: found.said.append(f"popup: {popup.url}"))
    yield found
    context.close()
