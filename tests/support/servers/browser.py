"""Control a headless Chromium by its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of a Chromium: MIRROR_RT_CHROMIUM, or a program of one of the usual names."""
    given = os.environ.get("MIRROR_RT_CHROMIUM")
    return given or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own.

    Attributes:
        complaints: errors and warnings that the page or the browser logged.
        requested: the addresses that the page requested.
    """

    def __init__(self, executable: str, profile: Path, *, width: int = 1200, height: int = 900):
        to_browser, self._send = os.pipe()
        receive, from_browser = os.pipe()
        line = [
            executable, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        # The browser reads from descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *line], pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._answers = os.fdopen(receive, "rb")
        self._rest = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and note the events that arrive meanwhile."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (found := self._receive()).get("id") != number:
            self._note(found)
        assert "error" not in found, found
        return found["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            part = self._answers.read1(1 << 16)
            assert part, f"the browser ended: {self._process.wait(10)}"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(about["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true in the page."""
        until = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < until, (condition, self.evaluate("document.body.innerText"))
            time.sleep(0.05)

    def type(self, selector: str, text: str) -> None:
        """Type into a field, replacing its content."""
        self.evaluate(f"{{const e = document.querySelector({json.dumps(selector)});"
                      "e.focus(); e.select();}")  # fmt: skip
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click on an element with the mouse."""
        x, y = self.evaluate(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView(); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def show_as(self, width: int, scheme: str) -> None:
        """Give the page this width in pixels, and readers who prefer `light` or `dark`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def check_readable(self) -> None:
        """Fail if a text has too little contrast, or if the page is wider than the window."""
        assert self.evaluate(Path(__file__).with_name("contrast.js").read_text()) == []
        assert self.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._send)
        self._answers.close()
