# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

ERRORS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """For the time of a `with`. One page at a time."""

    def __init__(self, home: Path):
        program = shutil.which("chromium")
        assert program, "chromium is missing; `make test-all` installs it"
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The protocol wants descriptors 3 and 4, whatever they are here.
        script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={home}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", program, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._pending = b""
        self._count = 0
        self._events: list[dict] = []
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        os.close(self._out)  # which ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, page: Path, width: int, dark: bool) -> None:
        """Returns when the page is drawn."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._ask("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()

    def evaluate(self, expression: str):
        """What an expression, or the promise it gives, comes to."""
        answer = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """All that the page has said on its console, or thrown."""
        return [json.dumps(event["params"]) for event in self._events if event["method"] in ERRORS]

    def screenshot(self, path: Path) -> None:
        """Of the whole page."""
        picture = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _ask(self, method: str, **parameters) -> dict:
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._pending:
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message
