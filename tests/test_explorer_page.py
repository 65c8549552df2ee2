"""The page of the explorer, in a real browser: a person's way through it, and what must never happen."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runmaker import make_run

ROOT = Path(__file__).parent.parent
STATIC = ROOT / "src/cdknet/explorer/static"
WEB = ROOT / "web/src"
CDKNET = [sys.executable, "-c", "from cdknet.cli import main; main()"]

# --- without a browser


def test_the_bundle_is_built_from_the_sources_beside_it() -> None:
    """The hash that `npm run build` writes into app.js is that of web/src as it is now."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    digest = hashlib.sha256()
    for path in sorted(p for p in WEB.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(WEB.parent).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    first = (STATIC / "app.js").read_text(encoding="utf-8").splitlines()[0]
    assert digest.hexdigest() in first, "web/src has changed: run `npm ci && npm run build` in web/."


def test_the_page_asks_nothing_of_the_network() -> None:
    text = "".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "app.css", "index.html")
    )
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\"'`) ]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_no_text_can_become_markup() -> None:
    """The sources hold none of the ways by which a string turns into elements or code."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    for path in WEB.rglob("*.ts"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser",
            path.read_text(encoding="utf-8"),
        )
        assert not found, f"{path.name} uses {found}"


# Machado, Oliveira, Fernandes 2009, severity 1
VISION = {
    "full": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def _linear(hex_colour: str) -> np.ndarray:
    c = np.array([int(hex_colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return lab @ np.cbrt(lms @ np.clip(linear, 0, 1))


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_class_colours_stay_apart_for_every_kind_of_colour_vision(theme: str) -> None:
    """0.1 in OKLab is five times the difference that is just seen (0.02); full colour vision gets eight."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    block = re.search(rf"{theme} = \[(.*?)\]", (WEB / "palette.ts").read_text(encoding="utf-8"), re.S)
    assert block
    colours = re.findall(r"#[0-9a-f]{6}", block[1])
    assert len(colours) == 10
    for vision, matrix in VISION.items():
        seen = [_oklab(matrix @ _linear(c)) for c in colours]
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
        assert min(gaps) > (0.16 if vision == "full" else 0.1)
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    column = 0 if theme == "LIGHT" else 1
    assert [m[column] for m in re.findall(r"--c\d: light-dark\((\S+), (\S+)\)", css)] == colours


def test_a_class_has_about_the_same_hue_by_day_and_by_night() -> None:
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--c\d: light-dark\((\S+), (\S+)\)", css)
    assert len(pairs) == 10
    for pair in pairs:
        (_, a, b), (_, c, d) = (_oklab(_linear(colour)) for colour in pair)
        turn = np.degrees(np.arctan2(b, a) - np.arctan2(d, c))
        assert abs((turn + 180) % 360 - 180) < 36, pair


def _contrast(a: str, b: str) -> float:
    y = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (y[1] + 0.05) / (y[0] + 0.05)


def test_text_meets_wcag_aa_in_both_themes() -> None:
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    tokens = {m[0]: m[1:] for m in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    pairs = [(ink, ground) for ink in ("ink", "quiet") for ground in ("paper", "surface", "raised", "sunk")]
    pairs += [("on-accent", "accent"), ("warm", "warm-soft"), ("accent", "surface"), ("ink", "accent-soft")]
    for theme in (0, 1):
        for ink, ground in pairs:
            assert _contrast(tokens[ink][theme], tokens[ground][theme]) >= 4.5, (ink, ground, theme)


# --- with one

CHROMIUM = next((p for p in (os.environ.get("CHROMIUM"), shutil.which("chromium")) if p), None)
ARGUMENTS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
browser_test = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    pytest.importorskip("fastapi", reason="the extra [web] is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one in $CHROMIUM")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Tab:
    """A page of the explorer, and what went wrong on it."""

    def __init__(self, browser: Any, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)  # a machine may be busy; what must come still comes
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
        """Wait until the list of classes has this name, or has it no more."""
        row = self.page.locator(".list .class-name", has_text=re.compile(f"^{re.escape(name)}$"))
        row.wait_for(state="visible" if there else "detached")

    def choose(self, name: str) -> None:
        self.page.locator(".class-main", has_text=re.compile(f"^{re.escape(name)}")).first.click()
        self.page.locator(".panel-title", has_text=name).wait_for()

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)

    def answer(self, text: str) -> None:
        """Type into the dialog that is open, and say yes."""
        field = self.page.locator("dialog[open] [data-first]")
        field.fill(text)
        field.press("Enter")
        self.page.locator("dialog[open]").wait_for(state="detached")

    def refused(self, text: str) -> None:
        """The dialog is still open, and says why."""
        self.page.locator("dialog[open] .problem", has_text=text).wait_for()

    def leave(self) -> None:
        """Close the dialog: one Escape is enough."""
        self.press("Escape")
        self.page.locator("dialog[open]").wait_for(state="detached")

    def lit(self) -> set[str]:
        """Names that stand out on the map."""
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
        """Where points of the map are on its canvas, in pixels."""
        x, y, scale = (float(v) for v in self.page.locator(".map").get_attribute("data-frame").split())
        box = self.page.locator(".map-canvas").bounding_box()
        return (xy - (x, y)) * (scale, -scale) + (box["width"] / 2, box["height"] / 2)

    def drawing(self) -> np.ndarray:
        """What the canvas of the map holds right after it was drawn, RGBA."""
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
        """Draw a box of map coordinates with the lasso."""
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
    """`cdknet explore` as a process of its own."""

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


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(folder: Path, *arguments: str, port: int = 0) -> Server:
        started.append(Server(folder, *arguments, port=port))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on digits (0-4 known), its data and the truth."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    X, truth = data.images[:800], data.target[:800]
    np.savez(folder / "digits.npz", X=X, y=np.where(truth < 5, truth, -1))
    with (folder / "truth.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows([f"row {i}", str(label)] for i, label in enumerate(truth))
    quick = ("--method", "cd-knet", "--discover-epochs", "5", "--no-calibrate")
    _cdknet("discover", folder / "digits.npz", "--new-classes", "5", "--out", folder / "run", *quick)
    return folder


def _cdknet(*arguments: object) -> str:
    done = subprocess.run([*CDKNET, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture
def run(digits: Path, tmp_path: Path) -> Path:
    shutil.copytree(digits / "run", tmp_path / "run")
    return tmp_path / "run"


@browser_test
def test_from_the_first_look_to_a_classifier_that_knows_the_names(
    browser: Any, serve: Callable[..., Server], digits: Path, run: Path, tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(run, "--truth", str(digits / "truth.csv")).address)
    page = tab.page
    assert "token" not in page.url
    assert page.locator(".map").get_attribute("data-plot") == "webgl"
    before = tab.names()
    assert len(before) == 10

    # lasso: exactly the points of the map that lie in the box
    xy = tab.array("map", "<f4").reshape(-1, 2)
    assignment = tab.array("assignment", "<u2")
    fresh = [c for c in tab.get("state")["classes"] if c["kind"] == "new"]
    members = xy[assignment == fresh[0]["id"]]
    (x0, y0), (x1, y1) = np.quantile(members, [0.1, 0.9], axis=0).tolist()
    inside = np.flatnonzero(((xy >= (x0, y0)) & (xy <= (x1, y1))).all(axis=1))
    tab.press("l")
    tab.lasso(x0, y0, x1, y1)
    shown = page.locator(".picks-count strong").inner_text()
    assert abs(int(shown.replace(",", "")) - len(inside)) <= 2  # the mouse moves by whole pixels
    tab.press("c")  # a class of its own
    tab.said("moved to")
    assert len(tab.names()) == 11
    tab.press("Control+z")
    page.wait_for_function("() => document.querySelectorAll('.list .class-name').length === 10")
    tab.press("Escape")

    # rename
    one, two, three, four, five = (c["name"] for c in fresh)
    tab.choose(one)
    tab.press("r")
    tab.answer("heron")
    tab.said("heron")
    assert "heron" in tab.names()
    assert one not in tab.names()

    # merge, seen in the list and on the map, and taken back
    tab.choose(two)
    tab.press("m")
    tab.answer("heron")
    tab.said("merged into heron")
    assert two not in tab.names()
    assert page.locator(".map-label").count() == 9
    tab.press("u")
    tab.listed(two)
    tab.press("Shift+U")
    tab.listed(two, False)
    tab.press("u")
    tab.listed(two)

    # split
    tab.choose(three)
    tab.press("s")
    tab.answer("2")
    tab.said("split in 2")
    assert len(tab.names()) == 11

    # note, reject, mark as known
    tab.choose(four)
    tab.press("n")
    page.locator("dialog[open] textarea").fill("long legs\nask Ann")
    page.locator("dialog[open] button[type=submit]").click()
    page.locator(".panel .note", has_text="ask Ann").wait_for()
    page.locator(".panel .thumb").first.click()
    assert page.locator(".picks-count strong").inner_text() == "1"
    tab.press("x")
    page.locator(".list .class-name", has_text="rejected").wait_for()
    tab.choose(five)
    tab.press("o")
    tab.answer("3")
    tab.listed(five, False)

    # reload: all of it is still there
    named, state = tab.names(), tab.get("state")
    page.reload()
    page.wait_for_selector("#app[data-ready]")
    assert tab.names() == named
    assert tab.get("state") == state

    # export
    tab.press("e")
    with page.expect_download() as download:
        page.locator("dialog[open] .choice", has_text="CSV").click()
    download.value.save_as(tmp_path / "labels.csv")
    page.locator("dialog[open]").wait_for(state="detached")  # keys are for the page again
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 800
    heron = next(c["id"] for c in state["classes"] if c["name"] == "heron")
    exported = {i for i, row in enumerate(rows) if row["label"] == "heron"}
    assert exported == set(np.flatnonzero(tab.array("assignment", "<u2") == heron))

    # refine, watched from the page, and predict with the names
    tab.press("f")
    tab.answer("taught")
    page.locator(".refine-button.running").wait_for()
    tab.page.locator(".toast", has_text="Refined").wait_for(timeout=180_000)
    _cdknet("predict", run.parent / "taught", digits / "digits.npz", "--out", tmp_path / "new.csv")
    with (tmp_path / "new.csv").open(newline="") as file:
        predicted = [row["label"] for row in csv.DictReader(file)]
    agree = np.mean([predicted[i] == "heron" for i in exported])
    assert agree > 0.8
    assert tab.troubles == []


@browser_test
def test_each_point_has_the_colour_of_its_class(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", n=120)).address)
    block = re.search(r"LIGHT = \[(.*?)\]", (WEB / "palette.ts").read_text(encoding="utf-8"), re.S)
    assert block
    palette = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in re.findall(r"#[0-9a-f]{6}", block[1])]
    assignment = tab.array("assignment", "<u2")
    drawing = tab.drawing()
    at = tab.places(tab.array("map", "<f4").reshape(-1, 2))
    checked = 0
    for i, (x, y) in enumerate(at):
        others = at[assignment != assignment[i]]
        if np.linalg.norm(others - (x, y), axis=1).min() > 10:  # nothing of another class is drawn over it
            assert np.abs(drawing[int(y), int(x), :3].astype(int) - palette[assignment[i]]).max() <= 6
            checked += 1
    assert checked > 60


@browser_test
def test_two_tabs_see_each_other_and_never_overwrite(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(make_run(tmp_path / "run"))
    first, second = Tab(browser).open(server.address), Tab(browser).open(server.address)
    first.choose("new-1")
    first.press("r")
    first.answer("otter")
    second.said("otter")  # it came by itself
    assert "otter" in second.names()

    # a tab that hears nothing and acts on what it last saw
    deaf = Tab(browser)
    deaf.page.route("**/api/events", lambda route: route.abort())
    deaf.open(server.address)
    first.choose("otter")
    first.press("r")
    first.answer("beaver")
    second.said("beaver")
    assert "otter" in deaf.names()
    deaf.choose("otter")
    deaf.press("r")
    deaf.answer("mink")
    toast = deaf.said("changed somewhere else first")
    assert "Not done: rename otter to mink" in toast.inner_text()
    assert "beaver" in deaf.names()
    assert "mink" not in first.names()
    toast.get_by_text("Do it now").click()
    deaf.said("mink")
    first.said("mink")
    assert "mink" in first.names()
    assert first.troubles == second.troubles == []


@browser_test
def test_a_killed_server_loses_nothing_and_the_page_goes_on(
    browser: Any, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDKNET_TOKEN", "a-token-that-outlives-the-server")
    folder = make_run(tmp_path / "run")
    server = serve(folder)
    tab = Tab(browser).open(server.address)
    tab.choose("new-2")
    tab.press("r")
    tab.answer("plover")
    tab.said("plover")
    server.kill()
    tab.page.locator(".banner", has_text="does not answer").wait_for(timeout=60_000)
    tab.choose("new-1")
    tab.press("n")
    note = tab.page.locator("dialog[open] textarea")
    note.fill("a long thought")
    note.press("Control+Enter")
    tab.refused("does not answer")
    assert note.input_value() == "a long thought"

    serve(folder, port=server.port)
    tab.page.locator(".banner").wait_for(state="hidden", timeout=60_000)
    note.press("Control+Enter")
    tab.page.locator(".panel .note", has_text="a long thought").wait_for()
    assert "plover" in tab.names()
    assert "new-1" in tab.names()
    tab.press("Control+z")
    tab.page.locator(".panel .note").wait_for(state="detached")
    tab.press("Control+z")
    tab.page.locator(".list .class-name", has_text="new-2").wait_for()
    assert tab.troubles == []


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@browser_test
def test_names_and_notes_are_never_markup(browser: Any, serve: Callable[..., Server], tmp_path: Path) -> None:
    names = ["old <b>bold</b>", "</script><script>alert(3)</script>", "kind 2", "new-1", "new-2"]
    ids = [f"{HOSTILE} {i}" for i in range(300)]
    folder = make_run(tmp_path / "run", ids=ids, names=names)
    tab = Tab(browser).open(serve(folder).address)
    page = tab.page
    tab.choose("new-1")
    tab.press("r")
    tab.answer(HOSTILE)
    tab.said(HOSTILE)
    tab.choose(HOSTILE)
    tab.press("n")
    page.locator("dialog[open] textarea").fill(HOSTILE)
    page.locator("dialog[open] button[type=submit]").click()
    page.locator(".panel .note", has_text="onerror").wait_for()
    page.locator(".panel .thumb").first.click()
    page.locator(".panel .thumb").first.hover()
    page.locator(".hover-card.free .sample-name", has_text="onerror").wait_for()
    tab.press("/")
    page.locator("dialog[open] input").fill("script")
    page.locator(".pick", has_text="onerror").first.click()
    page.locator(".sample-title", has_text="onerror").wait_for()
    for view in ("classes", "training", "run", "journal", "map"):
        page.locator(f".tabs [data-view={view}]").click()
        page.wait_for_timeout(200)
    assert HOSTILE in tab.names()
    assert names[1] in tab.names()

    _cdknet("report", folder, "-o", tmp_path / "report.html")
    report = Tab(browser).open((tmp_path / "report.html").as_uri())
    assert HOSTILE in report.names()
    for each in (tab, report):
        assert each.page.locator("#app img[onerror], #app script, #app b").count() == 0
        assert each.troubles == []


@browser_test
def test_a_report_opens_from_disk_and_changes_nothing(browser: Any, digits: Path, tmp_path: Path) -> None:
    _cdknet("report", digits / "run", "--truth", digits / "truth.csv", "-o", tmp_path / "report.html")
    tab = Tab(browser).open((tmp_path / "report.html").as_uri())
    page = tab.page
    assert page.locator(".map").get_attribute("data-plot") == "webgl"
    deadline = time.monotonic() + 20  # a busy machine draws when it gets to it
    while not tab.drawing().any():
        assert time.monotonic() < deadline, "the map is blank"
        page.wait_for_timeout(200)
    assert len(tab.names()) == 10
    tab.choose("5")
    thumb = page.locator(".panel .thumb").first
    thumb.wait_for()
    assert "blob:" in thumb.evaluate("e => getComputedStyle(e).backgroundImage")
    for action in ("Rename", "Merge", "Split", "Refine", "Export", "Undo"):
        assert page.get_by_role("button", name=action).count() == 0
    tab.press("/")
    page.locator("dialog[open] input").fill("row 17")
    page.locator(".pick").first.click()
    page.locator(".sample-title", has_text="row 17").wait_for()
    page.locator(".tabs [data-view=scores]").click()
    page.locator(".matrix").wait_for()
    assert {u.split(":")[0] for u in tab.requests} <= {"file", "data", "blob"}
    assert tab.troubles == []


@browser_test
@pytest.mark.parametrize("kind", ["vector", "radio"])
def test_other_kinds_of_sample_have_pictures_too(
    browser: Any, serve: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", kind=kind)).address)
    tab.choose("new-1")
    tab.page.locator(".panel .thumb").nth(3).click()
    tab.page.locator(".picks-count").click()
    picture = tab.page.locator(".sample-details img.picture")
    picture.wait_for()
    tab.page.wait_for_function("() => document.querySelector('.sample-details img.picture').naturalWidth > 0")
    if kind == "vector":
        tab.page.locator(".values th", has_text="column 5").wait_for()
    assert tab.troubles == []


@browser_test
def test_every_action_has_a_key_and_every_control_a_name(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    tab.press("?")
    listed = page.locator("dialog[open] dd").all_inner_texts()
    for word in (
        "Rename",
        "Merge",
        "Split",
        "Move",
        "known class",
        "Reject",
        "note",
        "Undo",
        "Redo",
        "Export",
    ):
        assert any(word in line for line in listed), word
    tab.press("Escape")
    tab.press("j")
    page.locator(".panel-title", has_text="new-1").wait_for()
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select, canvas")]
        .filter((e) => e.checkVisibility() && !e.innerText && !e.ariaLabel && !e.labels?.length)
        .map((e) => e.outerHTML)""")
    assert nameless == []
    # Tab reaches the map, and arrows move it
    page.locator(".map-canvas").focus()
    before = page.locator(".map").get_attribute("data-frame")
    tab.press("ArrowRight")
    page.wait_for_function("b => document.querySelector('.map').dataset.frame !== b", arg=before)


@browser_test
def test_a_page_without_its_key_says_what_to_do(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(make_run(tmp_path / "run"))
    tab = Tab(browser)
    answer = tab.page.goto(server.address.split("?")[0])
    assert answer.status == 401
    assert "cdknet explore printed" in tab.page.inner_text("body")
    tab.open(server.address)
    time.sleep(0.1)
    tab.context.clear_cookies()
    tab.choose("new-1")
    tab.press("r")
    field = tab.page.locator("dialog[open] [data-first]")
    field.fill("locked out")
    field.press("Enter")
    tab.refused("Open the address")
    assert field.input_value() == "locked out"


@browser_test
def test_a_run_opened_to_look_at_offers_nothing_that_changes_it(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Also: a run without samples has no pictures, and says why."""
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", samples=False), "--read-only").address)
    tab.choose("new-1")
    assert tab.page.locator(".card-samples .thumb").first.inner_text().isdigit()
    assert "does not hold its samples" in tab.page.locator(".card-samples .quiet").first.inner_text()
    assert not any("api/sheet" in address for address in tab.requests)
    for action in ("Rename", "Merge", "Split", "Refine", "Undo"):
        assert tab.page.get_by_role("button", name=action).count() == 0
    assert tab.page.get_by_role("button", name="Export").count() == 1
    tab.press("r")
    assert tab.page.locator("dialog[open]").count() == 0
    assert tab.troubles == []


@browser_test
def test_the_map_lights_what_is_chosen_and_not_what_came_under_a_resting_pointer(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", n_new=4)).address)
    page = tab.page
    for name in ("new-2", "new-3", "new-4"):
        page.locator(".class-row", has_text=name).hover()
        assert name in tab.lit()
        page.locator(".class-row", has_text=name).locator(".class-check").click()
    assert tab.lit() == {"new-2", "new-3", "new-4"}
    tab.press("m")  # says which, and does nothing yet
    listed = page.locator("dialog[open] .pick")
    assert listed.locator(".pick-name").all_inner_texts() == ["new-2", "new-3", "new-4"]
    assert "keeps its name" in listed.first.inner_text()
    tab.press("Enter")
    tab.said("merged into new-2")
    assert tab.lit() == {"new-2"}, "the pointer rests where another class is now"
    # the merged class lies in several places: its name is at one of them
    xy, assignment = tab.array("map", "<f4").reshape(-1, 2), tab.array("assignment", "<u2")
    merged = next(c["id"] for c in tab.get("state")["classes"] if c["name"] == "new-2")
    label = page.locator(".map-label.lit").bounding_box()
    canvas = page.locator(".map-canvas").bounding_box()
    spot = (label["x"] + label["width"] / 2 - canvas["x"], label["y"] + label["height"] - canvas["y"])
    assert np.linalg.norm(tab.places(xy[assignment == merged]) - spot, axis=1).min() < 16
    # its own hint can be sent away, and comes back with undo
    page.locator(".panel .hint").get_by_text("Dismiss").click()
    page.locator(".panel .hint").wait_for(state="detached")
    tab.press("u")
    page.locator(".panel .hint").wait_for()
    # the message stands beside the card, not on it
    toast, panel = tab.said("Undone").bounding_box(), page.locator(".panel").bounding_box()
    assert toast["x"] + toast["width"] <= panel["x"]
    page.locator(".tabs [data-view=journal]").click()
    undone = page.locator(".journal .undone").first
    struck = "e => getComputedStyle(e).textDecorationLine"
    assert undone.locator(".journal-what").evaluate(struck) == "line-through"
    assert undone.locator(".journal-what", has_text="undone").count() == 0
    assert tab.troubles == []


@browser_test
def test_what_is_refused_stays_in_its_dialog_with_the_reason(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    field = page.locator("dialog[open] [data-first]")
    tab.choose("new-1")
    tab.press("r")
    field.fill("new-2")
    field.press("Enter")
    tab.refused("name must be of one class only")
    assert field.input_value() == "new-2"
    tab.answer("heron")
    tab.said("heron")
    # nothing is confusable here: nothing is proposed, and Enter alone merges nothing
    tab.press("m")
    assert page.locator("dialog[open] .pick").count() == 4
    assert page.locator("dialog[open] [aria-selected=true]").count() == 0
    field.press("Enter")
    assert page.locator("dialog[open]").count() == 1
    field.press("ArrowDown")
    assert page.locator("dialog[open] [aria-selected=true]").count() == 1
    tab.leave()
    # a free name is proposed for a refinement, a taken one refused
    (tmp_path / "run-refined").mkdir()
    tab.press("f")
    field.wait_for()
    assert field.input_value() == "run-refined-2"
    field.fill("run-refined")
    field.press("Enter")
    tab.refused("not there yet")
    tab.leave()
    # one Escape closes the search, whatever was typed
    tab.press("/")
    field.fill("row 1")
    tab.leave()
    tab.press("n")
    assert "saves it" in page.locator("dialog[open]").inner_text()
    tab.leave()
    # an export that fails says why
    page.route("**/api/export?format=json", lambda r: r.fulfill(status=501, json={"error": "no pens left"}))
    tab.press("e")
    page.locator("dialog[open] .choice", has_text="JSON").click()
    tab.refused("no pens left")
    assert tab.troubles == []


@browser_test
def test_what_cannot_be_had_is_greyed_out_with_the_reason(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """And the pages of figures: no label is cut off, no stage of two rows is a line."""
    history = [
        {"stage": "discover", "epoch": i + 1, "labels": -0.04 * (3 - i), "seconds": 1} for i in range(4)
    ]
    history += [{"stage": "calibrate", "epoch": i + 1, "accuracy": 0.9931 - 0.0002 * i} for i in range(2)]

    def altered(route: Any) -> None:
        answer = route.fetch()
        formats = {"csv": None, "json": None, "parquet": "Parquet needs pyarrow."}
        route.fulfill(response=answer, json={**answer.json(), "formats": formats, "history": history})

    tab = Tab(browser)
    page = tab.page
    page.route("**/api/run", altered)
    tab.open(serve(make_run(tmp_path / "run", samples=False)).address)
    refine = page.locator(".refine-button")
    assert refine.is_disabled()
    assert "--data" in refine.get_attribute("title")
    tab.press("f")
    tab.said("--data")
    tab.press("e")
    parquet = page.locator("dialog[open] .choice", has_text="Parquet")
    assert parquet.is_disabled()
    assert "needs pyarrow" in parquet.inner_text()
    tab.leave()
    page.locator(".tabs [data-view=training]").click()
    ticks = page.locator(".curve-box .tick")
    assert min(ticks.evaluate_all("all => all.map((t) => t.getBBox().x)")) >= 0
    assert not any(re.fullmatch(r"[-\u2212]0\.?0*", text) for text in ticks.all_text_contents())
    assert page.locator(".curve-box path.curve").count() == 1
    page.locator(".tabs [data-view=run]").click()
    assert "layers that grow" in page.locator(".plain th", has_text="expansion").inner_text()
    assert tab.troubles == []


@browser_test
def test_a_phone_has_each_button_once_and_with_its_name(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser, has_touch=True).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    page.set_viewport_size({"width": 360, "height": 780})
    assert "Refine" in page.locator(".refine-button").inner_text()
    page.locator(".bottom [data-view=classes]").click()
    page.locator(".gallery .thumb").first.click()
    page.locator(".bottom [data-view=map]").click()
    page.locator(".picks-count").click()
    assert page.get_by_role("button", name="New class").count() == 1
    wide = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    top = page.locator(".top").bounding_box()
    for button in page.locator(".top button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0 or "skip" in button.get_attribute("class")
        assert box["x"] + box["width"] <= top["width"]
    # a click on the map and keys after it leave no frame around it
    page.locator(".map-canvas").click(position={"x": 5, "y": 120})
    tab.press("j")
    outline = "e => getComputedStyle(e).outlineStyle"
    assert page.locator(".map-canvas").evaluate(outline) == "none"
    assert tab.troubles == []
