"""A tab of a real browser and a server process, for tests of the explorer's page."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

CDKNET = [sys.executable, "-c", "from cdknet.cli import main; main()"]


def cdknet(*arguments: object) -> str:
    done = subprocess.run([*CDKNET, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


class Tab:
    """A page of the explorer, and the errors on it."""

    def __init__(self, browser: Any, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)  # the machine may be busy
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on(
            "dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        self.page.on(
            "console", lambda m: self.troubles.append(m.text) if "Content Security Policy" in m.text else None
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> Tab:
        self.page.goto(address)
        self.page.wait_for_selector("#app[data-ready]", timeout=90_000)
        return self

    def names(self) -> list[str]:
        return list(self.page.locator(".list .class-name").all_inner_texts())

    def listed(self, name: str, there: bool = True) -> None:
        """Wait until the list of classes has this name, or no longer has it."""
        row = self.page.locator(".list .class-name", has_text=re.compile(f"^{re.escape(name)}$"))
        row.wait_for(state="visible" if there else "detached")

    def choose(self, name: str) -> None:
        self.page.locator(".class-main", has_text=re.compile(f"^{re.escape(name)}")).first.click()
        self.page.locator(".panel-title", has_text=name).wait_for()

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)

    def answer(self, text: str) -> None:
        """Type into the open dialog and confirm it."""
        field = self.page.locator("dialog[open] [data-first]")
        field.fill(text)
        field.press("Enter")
        self.page.locator("dialog[open]").wait_for(state="detached")

    def refused(self, text: str) -> None:
        """Wait until the dialog, still open, shows this reason."""
        self.page.locator("dialog[open] .problem", has_text=text).wait_for()

    def leave(self) -> None:
        """Close the dialog with one Escape."""
        self.press("Escape")
        self.page.locator("dialog[open]").wait_for(state="detached")

    def lit(self) -> set[str]:
        """Names that are highlighted on the map."""
        self.page.wait_for_timeout(300)
        return set(self.page.locator(".map-label.lit:visible").all_inner_texts())

    def said(self, text: str) -> Any:
        toast = self.page.locator(".toast", has_text=text).last
        toast.wait_for(timeout=60_000)
        return toast

    def get(self, path: str) -> Any:
        return self.page.evaluate("async (p) => (await fetch('api/' + p)).json()", path)

    def array(self, path: str, kind: str) -> np.ndarray:
        raw = self.page.evaluate(
            "async (p) => [...new Uint8Array(await (await fetch('api/' + p)).arrayBuffer())]", path
        )
        return np.frombuffer(bytes(raw), dtype=kind)

    def places(self, xy: np.ndarray) -> np.ndarray:
        """Positions of map points on the canvas, in pixels."""
        x, y, scale = (float(v) for v in self.page.locator(".map").get_attribute("data-frame").split())
        box = self.page.locator(".map-canvas").bounding_box()
        return (xy - (x, y)) * (scale, -scale) + (box["width"] / 2, box["height"] / 2)

    def drawing(self) -> np.ndarray:
        """The pixels of the map's canvas right after drawing, RGBA."""
        self.page.wait_for_function(  # until it has its final size: a new canvas has 300 x 150 pixels
            """() => {
                const canvas = document.querySelector(".map-canvas");
                return Math.abs(canvas.height - canvas.clientHeight * devicePixelRatio) < 2;
            }"""
        )
        width, height, pixels = self.page.evaluate("""async () => {
            const canvas = document.querySelector(".map-canvas");
            const { width, height } = canvas;
            const copy = new OffscreenCanvas(width, height).getContext("2d");
            document.querySelector("[title^='Whole map']").click();
            await new Promise((r) => requestAnimationFrame(() => { copy.drawImage(canvas, 0, 0); r(); }));
            const { data } = copy.getImageData(0, 0, width, height);
            let text = "";
            for (let k = 0; k < data.length; k += 8192) {
                text += String.fromCharCode(...data.subarray(k, k + 8192));
            }
            return [width, height, btoa(text)];
        }""")
        return np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)

    def lasso(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a box with the lasso, in map coordinates."""
        box = self.page.locator(".map-canvas").bounding_box()
        corners = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)])
        path = np.add(self.places(corners), (box["x"], box["y"])).tolist()
        mouse = self.page.mouse
        mouse.move(*path[0])
        mouse.down()
        for corner in path[1:]:
            mouse.move(*corner, steps=6)
        mouse.up()


class Server:
    """`cdknet explore` as a process."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        command = [*CDKNET, "explore", str(folder), "--no-browser", "--json"]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "cdknet explore printed no address"
        self.address: str = json.loads(line)["url"]
        self.port = int(re.search(r":(\d+)/", self.address)[1])  # type: ignore[index]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
