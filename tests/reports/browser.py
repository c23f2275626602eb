"""A headless Chromium over the DevTools protocol: just enough to open a page, watch it and look at it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page. ``errors`` gathers console errors, exceptions and log entries of level error."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.note(message)

    def note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:800])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.errors.append(json.dumps(params["args"])[:800])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(json.dumps(params["entry"])[:800])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"][:200])
            case _:
                pass

    def js(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"not within {seconds} s: {expression}"
            time.sleep(0.05)

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> bytes:
        options: dict[str, Any] = {"format": "png"}
        if clip is not None:
            options |= {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True}
        data = base64.b64decode(self.call("Page.captureScreenshot", **options)["data"])
        path.write_bytes(data)
        return data

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready === 'true'")


@contextlib.contextmanager
def chromium(path: str) -> Iterator[Tab]:
    """A fresh browser with an empty profile, and its first tab."""
    from websocket import create_connection

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            end = time.monotonic() + 20
            while not (port_file.exists() and port_file.read_text().count("\n")):
                assert time.monotonic() < end, "Chromium did not start"
                time.sleep(0.05)
            port, target = port_file.read_text().split("\n")[:2]
            browser = create_connection(f"ws://127.0.0.1:{port}{target}", timeout=60)
            try:
                browser.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                while (answer := json.loads(browser.recv())).get("id") != 1:
                    pass
                page = next(t for t in answer["result"]["targetInfos"] if t["type"] == "page")
                socket = create_connection(
                    f"ws://127.0.0.1:{port}/devtools/page/{page['targetId']}", timeout=60
                )
                try:
                    yield Tab(socket)
                finally:
                    socket.close()
            finally:
                browser.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
