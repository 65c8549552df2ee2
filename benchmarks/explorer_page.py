"""Frame rate of the explorer's map, in headless Chromium with software rendering.

    python benchmarks/explorer_page.py [--points 100000] [--out results/explorer_page.json]

A map of this many points in 40 classes is panned, then zoomed, for three seconds each, by one pointer or
wheel event per frame. Frames are counted as the browser shows them. With a graphics card it is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CDKNET = [sys.executable, "-c", "from cdknet.cli import main; main()"]
DRAW = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]

MOVE = """async (kind) => {
  const canvas = document.querySelector(".map-canvas");
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const fire = (type, dx, dy) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, button: 0, buttons: 1, clientX: x + dx, clientY: y + dy, bubbles: true }));
  canvas.setPointerCapture = () => {};
  if (kind === "pan") fire("pointerdown", 0, 0);
  const gaps = [];
  let last = await new Promise(requestAnimationFrame);
  const end = last + 3000;
  for (let k = 0; last < end; k++) {
    if (kind === "pan") fire("pointermove", 120 * Math.sin(k / 9), 80 * Math.cos(k / 7));
    else canvas.dispatchEvent(new WheelEvent("wheel", {
      deltaY: k % 60 < 30 ? -40 : 40, clientX: x, clientY: y, cancelable: true }));
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - last);
    last = now;
  }
  if (kind === "pan") fire("pointerup", 0, 0);
  gaps.sort((a, b) => a - b);
  const total = gaps.reduce((a, b) => a + b, 0);
  const slowest = gaps[Math.floor(gaps.length * 0.99)];
  return { frames_a_second: 1000 * gaps.length / total, slowest_1_percent_ms: slowest };
}"""


def measure(n: int) -> dict[str, Any]:
    """Time to the first map, frame rates, and the cost of a pointer move."""
    from playwright.sync_api import sync_playwright

    from runmaker import make_run

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        run = make_run(Path(folder) / "run", n=n, n_old=20, n_new=20, samples=False)
        server = subprocess.Popen(
            [*CDKNET, "explore", str(run), "--no-browser", "--json", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout
            address = json.loads(server.stdout.readline())["url"]
            browser = play.chromium.launch(executable_path=chromium, args=DRAW)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            started = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".map[data-frame]", timeout=120_000)
            result: dict[str, Any] = {"points": n, "seconds_to_first_map": time.perf_counter() - started}
            result["drawn_by"] = page.locator(".map").get_attribute("data-plot")
            page.wait_for_timeout(1000)
            for kind in ("pan", "zoom"):
                result[kind] = page.evaluate(MOVE, kind)
            hover = "() => { const t = performance.now(); const c = document.querySelector('.map-canvas');"
            hover += " for (let k = 0; k < 200; k++) c.dispatchEvent(new PointerEvent('pointermove',"
            hover += " {clientX: 400 + 2 * k, clientY: 300 + k})); return (performance.now() - t) / 200 }"
            result["hover_ms"] = page.evaluate(hover)
            browser.close()
            return result
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    results = [measure(n) for n in asked.points]
    text = json.dumps(results, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
