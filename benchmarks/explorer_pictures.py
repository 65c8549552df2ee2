"""Take the pictures of the explorer in docs/pictures, in headless Chromium.

    python benchmarks/explorer_pictures.py RUN [--truth truth.csv] [--out docs/pictures]

RUN is a run of `cdknet demo`, which includes its truth. A copy of it is reviewed; RUN itself is not changed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

CDKNET = [sys.executable, "-c", "from cdknet.cli import main; main()"]
DRAW = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZES = {"desk": ({"width": 1440, "height": 900}, 1), "phone": ({"width": 390, "height": 844}, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(asked.run, Path(folder) / "demo-run")
        (copy / "review.jsonl").unlink(missing_ok=True)
        command = [*CDKNET, "explore", str(copy), "--no-browser", "--json", "--port", "0"]
        server = subprocess.Popen(
            [*command, "--truth", str(asked.truth or copy / "truth.csv")], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout
            take(json.loads(server.stdout.readline())["url"], asked.out)
        finally:
            server.terminate()
            server.wait()


def take(address: str, out: Path) -> None:
    """Take all pictures of the explorer at this address."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=chromium, args=DRAW)

        def shot(
            name: str, act: Callable[[Any], None], place: str, *, size: str = "desk", dark: bool = False
        ) -> None:
            viewport, ratio = SIZES[size]
            page = browser.new_page(
                viewport=viewport,
                device_scale_factor=ratio,
                color_scheme="dark" if dark else "light",
                has_touch=size == "phone",
            )
            page.goto(address)
            page.wait_for_selector("#app[data-ready]")
            page.evaluate("h => { location.hash = h }", place)
            page.wait_for_timeout(900)
            act(page)
            page.wait_for_timeout(900)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture = picture.quantize(
                256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
            )
            picture.save(out / f"explorer-{name}.png", optimize=True)
            page.close()

        def nothing(page: Any) -> None:
            pass

        shot("map", nothing, "#/map")
        shot("lasso", lasso, "#/map")
        shot("class-dark", hover, "#/map/9", dark=True)
        shot("split", split, "#/map/9")
        shot("rename", rename, "#/map/5")
        shot("classes", nothing, "#/classes/5")
        shot("scores-dark", nothing, "#/scores", dark=True)
        shot("training", nothing, "#/training")
        shot("keys-dark", lambda page: page.keyboard.press("?"), "#/map", dark=True)
        shot("phone", nothing, "#/map", size="phone")
        shot("phone-class", nothing, "#/map/7", size="phone")
        shot("phone-classes-dark", nothing, "#/classes", size="phone", dark=True)
        shot("phone-dark", nothing, "#/map/9", size="phone", dark=True)
        browser.close()


def at(page: Any, sample: int) -> tuple[float, float]:
    """The position of a sample of the map on the screen."""
    x, y, scale = (float(v) for v in page.locator(".map").get_attribute("data-frame").split())
    box = page.locator(".map-canvas").bounding_box()
    read = "async i => { const a = await (await fetch('api/map')).arrayBuffer();"
    px, py = page.evaluate(read + " return [...new Float32Array(a).slice(2 * i, 2 * i + 2)] }", sample)
    return box["x"] + (px - x) * scale + box["width"] / 2, box["y"] + box["height"] / 2 - (py - y) * scale


def central(page: Any, class_id: int) -> int:
    """The most central sample of a class."""
    card = page.evaluate("async i => (await fetch('api/classes/' + i)).json()", class_id)
    return int(card["central"][0])


def lasso(page: Any) -> None:
    page.keyboard.press("l")
    x, y = at(page, central(page, 7))
    loop = [(-90, -10), (-60, -42), (10, -50), (80, -32), (95, 5), (60, 36), (-20, 42), (-80, 25)]
    page.mouse.move(x + loop[0][0], y + loop[0][1])
    page.mouse.down()
    for dx, dy in loop[1:]:
        page.mouse.move(x + dx, y + dy, steps=5)
    page.mouse.up()


def hover(page: Any) -> None:
    page.mouse.move(*at(page, central(page, 9)))


def split(page: Any) -> None:
    page.keyboard.press("s")
    page.wait_for_timeout(400)
    page.keyboard.press("Enter")
    page.wait_for_selector(".toast")


def rename(page: Any) -> None:
    page.keyboard.press("u")  # undo the split of the picture before
    page.wait_for_timeout(900)
    for toast in page.locator(".toast [aria-label=Dismiss]").all():
        toast.click()
    page.keyboard.press("r")
    page.wait_for_timeout(500)
    sample = page.evaluate("async i => (await fetch('api/samples/' + i)).json()", central(page, 5))
    page.keyboard.type(WORDS[int(sample["truth"].removeprefix("digit "))])


if __name__ == "__main__":
    main()
