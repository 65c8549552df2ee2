"""Names, notes and ids that were made to run: in the page, the report, the terminal and a spreadsheet."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.reliability import Figures

CHROMIUM = next((p for p in (os.environ.get("CHROMIUM"), shutil.which("chromium")) if p), None)
RUN = "window.hit=1"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg/onload={RUN}//",
    f'"><img src=x onerror={RUN}>',
    f"'><img src=x onerror={RUN}>",
    f"' onmouseover={RUN} x='",
    f'" autofocus onfocus={RUN} x="',
    f"<iframe srcdoc='<script>{RUN}</script>'>",
    f"<a href=javascript:{RUN}>x</a>",
    f"javascript:{RUN}",
    f"<details open ontoggle={RUN}>",
    "<style>*{display:none}",
    f"<math><mtext></mtext><script>{RUN}</script></math>",
    "<!--",
    "-->",
    f"--><script>{RUN}</script>",
    "]]>",
    "</title>",
    "</textarea>",
    f"<base href=//x>{RUN}",
    f"<meta http-equiv=refresh content=0;url=javascript:{RUN}>",
    f"<object data=javascript:{RUN}>",
    f"<embed src=javascript:{RUN}>",
    f"<form action=javascript:{RUN}><button>",
    f"{{{{{RUN}}}}}",
    f"${{{RUN}}}",
    f"`;{RUN};`",
    f"\\u003cscript\\u003e{RUN}",
    f"&lt;script&gt;{RUN}",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"<script\n>{RUN}</script>",
    f"<input onfocus={RUN} autofocus>",
    f"<video onerror={RUN} src=x>",
    "=1+1",
    "=cmd|'/c calc'!A1",
    "+1+1",
    "-1+1+cmd",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "\uff1d1+1",
    "\uff0b1",
    "a;=1+1",
    '=HYPERLINK("http://x")',
    "=IMPORTXML(1)",
    "%3D1",
    " =1+1",
    '"=1+1',
    "x\n=1+1",
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x07x",
    "\x9b31m",
    "\x07",
    "\x08\x08",
    "\x1b[6n",
    "\u202etxt.exe",
    "\u2066x\u2069",
    "\u200bx",
    "[red]x[/red]",
    "[link=http://x]x[/link]",
    "[/]",
    "[bold",
    "\\[x]",
    "%s%n",
    "{0.__class__}",
]
STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"


def _attacked(folder: Path, payloads: list[str]) -> Path:
    """A run whose classes, ids, columns, source and notes are the attacks."""
    from cdknet.runs.format import Run, write_run

    n = max(60, len(payloads))
    rng = np.random.default_rng(0)
    names = [f"{k} {text}" for k, text in enumerate(payloads)] if len(payloads) < 4 else payloads
    names = list(dict.fromkeys(name for name in names if name.strip()))
    index = np.arange(n) % len(names)
    return write_run(
        folder / "run",
        Run(
            config={
                "options": {"method": "cd-knet", "kernel": payloads[0]},
                "blueprint": {"sample_shape": [4], "n_old_classes": 1, "n_new_classes": len(names) - 1},
                "classes": names,
                "seed": 0,
                "columns": [payloads[k % len(payloads)] for k in range(4)],
                "notes": payloads,
                "source": payloads[0],
                "tuning": {"tried": [], "chosen": "", "options": {}, "why": " ".join(payloads), "hidden": []},
            },
            history=[{"stage": payloads[0], "epoch": 1, "seconds": 0.1}],
            weights={"none": np.zeros(1, np.float32)},
            embedding={
                "features": rng.normal(0, 1, (n, 4)).astype(np.float32),
                "confidence": np.ones(n, np.float32),
                "map": rng.normal(0, 1, (n, 2)).astype(np.float32),
            },
            labels=[
                {
                    "id": f"{payloads[i % len(payloads)]}{'' if i < len(payloads) else i}",
                    "label": names[c],
                    "given": "0",
                }
                for i, c in enumerate(index)
            ],
            samples=rng.normal(0, 1, (n, 4)).astype(np.float32),
        ),
    )


def outputs(count: int, seed: int, folder: Path) -> Figures:
    """No name, note or id runs in the page, the report, the terminal, or the CSV in a spreadsheet."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.report import report_html
    from cdknet.explorer.session import Session

    payloads = PAYLOADS[:count]
    run = _attacked(folder, payloads)
    broken: list[str] = []
    shown = subprocess.run(
        [sys.executable, "-m", "cdknet.cli", "show", str(run)],
        capture_output=True,
        env={**os.environ, "FORCE_COLOR": ""},
    )
    said = shown.stdout.decode()
    odd = {
        c
        for c in said
        if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c in "\u202e\u2066\u2069\u200b"
    }
    if shown.returncode or odd:
        broken.append(f"terminal: exit {shown.returncode}, {sorted(map(ascii, odd))} {shown.stderr[-300:]!r}")
    session = Session(open_run(run))
    for row in csv.reader(io.StringIO(session.export("csv").decode(), newline="")):
        for cell in row:
            for separator in ("\0", ";", "\t", "\n", "\r"):
                parts = [part.lstrip(' \t\r\n"') for part in cell.split(separator)]
                broken += [
                    f"spreadsheet: {cell!r}"
                    for part in parts
                    if part[:1] and part[0] in STARTS and not _number(cell)
                ]
    (folder / "report.html").write_bytes(report_html(session))
    browsed = 0
    if CHROMIUM is not None:
        browsed = 2
        broken += _in_a_browser(run, folder / "report.html")
    return {"attacks": len(payloads), "outputs": 2 + browsed, "broken": len(broken), "examples": broken[:5]}


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _in_a_browser(run: Path, report: Path) -> list[str]:
    """What ran, or asked for a page elsewhere, while each class was opened in the page and in the report."""
    from playwright.sync_api import sync_playwright

    from cdknet.explorer.folder import open_run
    from cdknet.explorer.server import Explorer
    from cdknet.explorer.session import Session

    explorer = Explorer(Session(open_run(run)), host="127.0.0.1", port=0)
    server = threading.Thread(target=explorer.serve_forever)
    server.start()
    while not explorer.started:
        time.sleep(0.01)
    found: list[str] = []
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for where, address in (("page", explorer.address), ("report", report.as_uri())):
                page = browser.new_page()
                page.set_default_timeout(60_000)

                def dialog(shown: Any, where: str = where) -> None:
                    found.append(f"{where}: dialog {shown.message}")
                    shown.dismiss()

                def request(asked: Any, where: str = where, own: str = address.partition("?")[0]) -> None:
                    if not asked.url.startswith((own, "data:", "blob:", "http://127.0.0.1")):
                        found.append(f"{where}: asked for {asked.url[:100]}")

                page.on("dialog", dialog)
                page.on("request", request)
                page.goto(address)
                page.wait_for_selector("#app[data-ready]", timeout=90_000)
                classes = page.locator(".class-main")
                for k in range(min(classes.count(), 12)):
                    classes.nth(k).click()
                    page.wait_for_timeout(50)
                if page.evaluate("window.hit") is not None:
                    found.append(f"{where}: a name ran")
                page.close()
            browser.close()
    finally:
        explorer.should_exit = True
        server.join()
    return found
