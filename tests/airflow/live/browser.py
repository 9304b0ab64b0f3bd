"""A page of a headless Chromium, driven through its DevTools protocol: it is looked at, typed into and clicked."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.airflow.live.services import Airflow

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_WORDS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1280,900",
)
_PATIENCE: Final = 120
_FRAME: Final = "document.querySelector('iframe')?.contentDocument"
_BUTTON: Final = "[...document.querySelectorAll('button')].find(b => b.innerText.trim() === {label} && !b.disabled)"


class Page:
    """A page of the browser. All waiting ends after two minutes, or when a service of Airflow has ended."""

    def __init__(self, airflow: Airflow, connection: ClientConnection) -> None:
        self._airflow, self._connection, self._last = airflow, connection, 0

    def open(self, path: str) -> None:
        """Open an address of Airflow."""
        self._call("Page.navigate", url=f"{self._airflow.url}{path}")

    def log_in(self) -> None:
        """Open Airflow's page for the user's name and password, and give both."""
        self.open("/")
        for name in ("username", "password"):
            field = f"document.querySelector('input[name={name}]')"
            self._wait(f"the field {name}", f"!!{field}")
            self._evaluate(f"{field}.focus()")
            self._call("Input.insertText", text="admin")
        self._airflow.wait_for("the button of the log-in", lambda: self.click("Sign in"), _PATIENCE)
        self._wait("the end of the log-in", "!location.pathname.includes('login')")

    def read(self, text: str) -> str:
        """Wait until the page shows a text; return all that it shows."""
        self._wait(f"'{text}' on the page", f"(document.body?.innerText ?? '').includes({json.dumps(text)})")
        return str(self._evaluate("document.body.innerText"))

    def read_frame(self, text: str) -> str:
        """Wait until the frame of the page shows a text; return all that it shows."""
        self._wait(f"'{text}' in the frame", f"({_FRAME}?.body?.innerText ?? '').includes({json.dumps(text)})")
        return str(self._evaluate(f"{_FRAME}.body.innerText"))

    def frame_is_too_wide(self) -> bool:
        """Return whether one has to scroll the frame to the right."""
        return bool(self._evaluate(f"(d => d.scrollWidth > d.clientWidth)({_FRAME}.documentElement)"))

    def follow_in_frame(self, label: str) -> None:
        """Follow a link of the frame."""
        link = f"[...{_FRAME}.links].find(a => a.innerText === {json.dumps(label)})"
        self._evaluate(f"{link}.click()")

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window a size."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def click(self, label: str) -> bool:
        """Click the button with a label, if there is one that can be clicked; return whether there is."""
        button = _BUTTON.format(label=json.dumps(label))
        place = self._evaluate(
            f"(b => {{ if (!b) return null; b.scrollIntoView({{block: 'center'}}); const r = b.getBoundingClientRect(); "
            f"return [r.x + r.width / 2, r.y + r.height / 2] }})({button})"
        )
        if place is None:
            return False
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        return True

    def picture(self, name: str, width: int = 1280, height: int = 1200) -> None:
        """Write a picture of what the browser shows into the folder `HEADRACE_PICTURES`, if that is set: for the docs."""
        folder = os.environ.get("HEADRACE_PICTURES")
        if folder is not None:
            self.resize(width, height)
            answer = self._sent("Page.captureScreenshot", format="png")
            Path(folder, f"{name}.png").write_bytes(base64.b64decode(answer["result"]["data"]))

    def _wait(self, what: str, condition: str) -> None:
        self._airflow.wait_for(what, lambda: self._evaluate(condition), _PATIENCE)

    def _evaluate(self, script: str) -> Any:
        """Return the value of an expression; None while the page gives way to another one."""
        answer = self._sent("Runtime.evaluate", expression=script, returnByValue=True)
        if "error" in answer:
            return None
        assert "exceptionDetails" not in answer["result"], answer
        return answer["result"]["result"].get("value")

    def _call(self, method: str, **params: Any) -> None:
        answer = self._sent(method, **params)
        assert "error" not in answer, answer

    def _sent(self, method: str, **params: Any) -> Any:
        """Send a command, and return the answer; events that come before it are passed over."""
        self._last += 1
        self._connection.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while (answer := json.loads(self._connection.recv(_PATIENCE))).get("id") != self._last:
            pass
        return answer


def chromium() -> str:
    """Return the program of a Chromium; skip the test where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine: with it, a page of Airflow is clicked")
    return program


@contextmanager
def new_page(airflow: Airflow, program: str) -> Iterator[Page]:
    """Start a browser with an empty profile, and yield its page."""
    with tempfile.TemporaryDirectory(prefix="headrace-browser-", ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [program, *_WORDS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            pages = airflow.wait_for("the browser", lambda: _pages(Path(profile)), _PATIENCE)
            with connect(pages[0], max_size=None) as connection:
                yield Page(airflow, connection)
        finally:
            browser.terminate()
            browser.wait()


def _pages(profile: Path) -> list[str]:
    """Return where the pages of a browser are driven; none before it has started."""
    port_file = profile / "DevToolsActivePort"
    lines = port_file.read_text().splitlines() if port_file.exists() else []
    if not lines:
        return []
    with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
        return [page["webSocketDebuggerUrl"] for page in json.load(answer) if page["type"] == "page"]
