"""The explorer's page in a real browser: a complete review, and what must never happen."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pagemaker import Server, Tab, cdknet

from runmaker import make_run

WEB = Path(__file__).parent.parent.parent / "web/src"
browser_test = pytest.mark.slow


@browser_test
def test_a_review_from_the_first_look_to_a_refined_classifier(
    browser: Any, serve: Callable[..., Server], digits: Path, reviewable: Path, tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(reviewable, "--truth", str(digits / "truth.csv")).address)
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

    # merge, visible in the list and on the map, and undone
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
    tab.said("split into 2")
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
    page.locator(".list .class-name", has_text="set aside").wait_for()
    tab.choose(five)
    tab.press("o")
    tab.answer("3")
    tab.listed(five, False)

    # reload: nothing is lost
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
    cdknet("predict", reviewable.parent / "taught", digits / "digits.npz", "--out", tmp_path / "new.csv")
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

    # a dialog, and an Undo, are about what was there when they came up
    second.choose("mink")
    second.press("r")
    second.page.locator("dialog[open]").wait_for()
    first.choose("mink")
    first.press("r")
    first.answer("heron")
    done = first.said("heron")
    done.hover()  # so that it stays
    second.said("heron")
    second.answer("stoat")
    second.said("Not done: rename mink to stoat")
    second.choose("new-2")
    second.press("r")
    second.answer("stoat")
    first.said("Changed in another tab")
    done.get_by_text("Undo").click()
    first.said("Not done: undo")
    assert {"heron", "stoat"} <= set(first.names())
    assert first.troubles == second.troubles == []


@browser_test
def test_a_killed_server_loses_nothing_and_the_page_reconnects(
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

    cdknet("report", folder, "-o", tmp_path / "report.html")
    report = Tab(browser).open((tmp_path / "report.html").as_uri())
    assert HOSTILE in report.names()
    for each in (tab, report):
        assert each.page.locator("#app img[onerror], #app script, #app b").count() == 0
        assert each.troubles == []


@browser_test
def test_a_report_opens_from_disk_and_changes_nothing(browser: Any, digits: Path, tmp_path: Path) -> None:
    cdknet("report", digits / "run", "--truth", digits / "truth.csv", "-o", tmp_path / "report.html")
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
def test_a_page_without_its_token_says_what_to_do(
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
def test_a_read_only_run_offers_no_action(browser: Any, serve: Callable[..., Server], tmp_path: Path) -> None:
    """Also: a run without samples has no pictures, and says why."""
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", samples=False), "--read-only").address)
    tab.choose("new-1")
    assert tab.page.locator(".card-samples .thumb").first.inner_text().isdigit()
    assert "does not store its samples" in tab.page.locator(".card-samples .quiet").first.inner_text()
    assert not any("api/sheet" in address for address in tab.requests)
    for action in ("Rename", "Merge", "Split", "Refine", "Undo"):
        assert tab.page.get_by_role("button", name=action).count() == 0
    assert tab.page.get_by_role("button", name="Export").count() == 1
    tab.press("r")
    assert tab.page.locator("dialog[open]").count() == 0
    assert tab.troubles == []


@browser_test
def test_the_map_highlights_the_selection_and_not_what_moves_under_a_resting_pointer(
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
def test_a_refused_action_stays_in_its_dialog_with_the_reason(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    field = page.locator("dialog[open] [data-first]")
    tab.choose("new-1")
    tab.press("r")
    field.fill("new-2")
    field.press("Enter")
    tab.refused("name must be unique")
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
    # an unused name is proposed for a refinement, a used one is refused
    (tmp_path / "run-refined").mkdir()
    tab.press("f")
    field.wait_for()
    assert field.input_value() == "run-refined-2"
    field.fill("run-refined")
    field.press("Enter")
    tab.refused("does not exist yet")
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
def test_keys_do_only_what_was_meant(browser: Any, serve: Callable[..., Server], tmp_path: Path) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    # a key held down changes one thing
    for name in ("heron", "stork"):
        tab.choose("new-1" if name == "heron" else "heron")
        tab.press("r")
        tab.answer(name)
        tab.listed(name)
    page.keyboard.down("u")
    tab.listed("heron")
    page.keyboard.down("u")  # it repeats
    page.wait_for_timeout(500)
    page.keyboard.up("u")
    assert "heron" in tab.names()
    # Enter that takes a word of an input method chooses no class and no sample
    composed = """e => e.dispatchEvent(new KeyboardEvent("keydown",
        { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))"""
    field = page.locator("dialog[open] [data-first]")
    tab.press("m")
    field.press("ArrowDown")
    field.evaluate(composed)
    assert page.locator("dialog[open]").count() == 1
    tab.leave()
    tab.press("/")
    field.fill("row 1")
    page.locator("dialog[open] [aria-selected=true]").wait_for()
    field.evaluate(composed)
    assert page.locator("dialog[open]").count() == 1
    tab.leave()
    # the box that was ticked keeps the keyboard
    box = page.locator(".class-row", has_text="new-2").locator(".class-check")
    box.focus()
    tab.press("Space")
    page.locator(".class-row.chosen", has_text="new-2").wait_for()
    assert box.evaluate("e => e === document.activeElement")
    assert tab.troubles == []


@browser_test
def test_unavailable_actions_are_disabled_with_the_reason(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """And on the training page no label is clipped, and a stage of two rows is not drawn as a curve."""
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
    tab.press("j")
    tab.press("a")
    page.locator(".picks-count strong", has_text="60").wait_for()
    bar = page.locator(".picks").bounding_box()
    for button in page.locator(".picks button").all():
        box = button.bounding_box()
        assert box["x"] >= bar["x"]
        assert box["x"] + box["width"] <= bar["x"] + bar["width"]
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


# A mixture of old and new


@browser_test
def test_what_was_recognised_as_known_can_be_seen_and_selected(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", mixture=True)).address)
    page = tab.page
    given, assignment = tab.array("given", "u1") == 1, tab.array("assignment", "<u2")
    recognised = np.flatnonzero(~given & (assignment < 3))
    sure = tab.array("confidence", "u1")
    assert len(recognised) == 57
    facts = page.locator(".panel .facts").inner_text()
    assert re.search(r"Recognised as known\s+57 samples", facts)
    assert re.search(r"Set aside as noise\s+9", facts)

    # all of them, from the list and by key
    page.locator(".list .recognised", has_text="57 recognised").click()
    assert page.locator(".picks-count strong").inner_text() == "57"
    shown = [int(e.get_attribute("data-sample")) for e in page.locator(".panel .thumb").all()]
    assert set(shown) == set(recognised)
    assert (np.diff(sure[shown].astype(int)) >= 0).all(), "the least sure first"
    tab.press("Escape")
    tab.press("g")
    assert page.locator(".picks-count strong").inner_text() == "57"
    tab.press("Escape")

    # those of one class
    tab.choose("kind 1")
    here = page.locator(".recognised-here")
    assert "Recognised here: 19 of 59 samples came without a label" in here.inner_text()
    first = int(here.locator(".thumb").first.get_attribute("data-sample"))
    mine = recognised[assignment[recognised] == 1]
    assert sure[first] == sure[mine].min()
    here.get_by_text("Select all 19").click()
    assert page.locator(".picks-count strong").inner_text() == "19"
    tab.press("Escape")
    tab.choose("new-1")
    page.locator(".card-samples h3", has_text="Most central").wait_for()
    assert page.locator(".recognised-here").count() == 0

    # one of them that is new after all
    tab.choose("kind 1")
    here.locator(".thumb").first.click()
    tab.press("v")
    tab.answer("new-1")
    tab.said("moved to new-1")
    page.locator(".list .recognised", has_text="56 recognised").wait_for()
    assert tab.troubles == []


@browser_test
def test_samples_that_are_known_go_to_the_classes_they_resemble(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run", mixture=True)).address)
    page = tab.page
    start = tab.array("assignment", "<u2")
    # a whole class: it is gone, and one undo brings it back
    tab.choose("new-1")
    page.locator(".panel").get_by_role("button", name="Each to a known class").click()
    tab.said("new-1 moved to known classes: 19 to kind")
    tab.listed("new-1", False)
    after = tab.array("assignment", "<u2")
    assert set(after[start == 3].tolist()) == {0, 1, 2}
    page.reload()
    page.wait_for_selector("#app[data-ready]")
    tab.listed("new-1", False)
    tab.press("u")
    tab.listed("new-1")
    assert tab.array("assignment", "<u2").tolist() == start.tolist()
    # noise, from the list
    page.locator(".class-main", has_text="set aside").click()
    assert page.locator(".picks-count strong").inner_text() == "9"
    tab.press("Shift+O")
    tab.said("9 samples moved to known classes")
    page.locator(".class-main", has_text="set aside").wait_for(state="detached")
    assert page.locator(".picks").is_hidden()
    # what is known already stays where it is
    tab.press("Escape")
    tab.choose("kind 0")
    tab.press("Shift+O")
    tab.said("kind 0 is a known class already")
    page.locator(".panel .thumb").first.click()
    page.locator(".picks").get_by_role("button", name="Known").click()
    tab.said("Got only samples of known classes")
    page.locator(".tabs [data-view=journal]").click()
    page.locator(".journal-what", has_text="9 samples moved to known classes").wait_for()
    assert tab.troubles == []


@browser_test
def test_the_map_shows_how_likely_a_sample_is_new(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", n=120, mixture=True)
    tab = Tab(browser).open(serve(folder).address)
    cdknet("report", folder, "-o", tmp_path / "report.html")
    report = Tab(browser).open((tmp_path / "report.html").as_uri())
    block = re.search(r"NOVEL = .*?light: \[(.*?)\]", (WEB / "palette.ts").read_text(encoding="utf-8"))
    assert block
    scale = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in re.findall(r"#[0-9a-f]{6}", block[1])]
    xy, novelty = tab.array("map", "<f4").reshape(-1, 2), tab.array("novelty", "u1") / 255
    noise, given = tab.array("assignment", "<u2") == 65535, tab.array("given", "u1") == 1
    for each in (tab, report):
        each.press("5")
        legend = each.page.locator(".legend")
        assert legend.locator(".strip").count() == 1
        assert re.search(r"known, 0 %\s*100 %, new", legend.inner_text())
        each.page.wait_for_timeout(300)
        drawing, at, checked = each.drawing(), each.places(xy), 0
        for i, (x, y) in enumerate(at):
            alone = np.linalg.norm(np.delete(at, i, axis=0) - (x, y), axis=1).min() > 10
            if alone and not noise[i] and not given[i]:
                wanted = [np.interp(novelty[i], [0, 1 / 3, 2 / 3, 1], c) for c in zip(*scale, strict=True)]
                assert np.abs(drawing[int(y), int(x), :3].astype(int) - wanted).max() <= 8
                checked += 1
        assert checked > 15
        # and the sample says it in words
        each.choose("new-1")
        each.page.locator(".panel .thumb").first.hover()
        each.page.locator(".hover-card.free", has_text="P(new)").wait_for()
        each.page.locator(".panel .thumb").first.click()
        each.page.locator(".picks-count").click()
        each.page.locator(".sample-details dt", has_text="P(new)").wait_for()
        assert each.troubles == []


@browser_test
def test_a_run_without_a_mixture_has_nothing_of_it(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    tab = Tab(browser).open(serve(make_run(tmp_path / "run")).address)
    page = tab.page
    assert page.locator(".segments.on-map").inner_text().split("\n") == ["Class", "Known / new", "Confidence"]
    assert not any("api/novelty" in address for address in tab.requests)
    tab.press("?")
    assert not any("recognised" in line for line in page.locator("dialog[open] dd").all_inner_texts())
    tab.leave()
    tab.choose("new-1")
    button = page.locator(".panel").get_by_role("button", name="Each to a known class")
    assert button.is_disabled()
    assert "resembles most" in button.get_attribute("title")
    tab.press("Shift+O")
    tab.said("resembles most")
    page.locator(".panel .thumb").first.click()
    assert page.locator(".picks").get_by_role("button", name="Known").is_disabled()
    page.locator(".panel .thumb").first.hover()
    page.locator(".hover-card.free", has_text="confidence").wait_for()
    assert page.locator(".hover-card.free", has_text="P(new)").count() == 0
    # a sample that a person moves was not recognised
    tab.press("v")
    tab.answer("kind 0")
    tab.said("moved to kind 0")
    assert page.locator(".recognised, .recognised-here").count() == 0
    assert tab.troubles == []


@browser_test
def test_the_run_page_says_how_many_classes_and_what_the_mixture_is(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    def altered(route: Any) -> None:
        answer = route.fetch()
        said = {"count": "between 4 and 6 new classes, perhaps 5", "mixture": "about 60 of 100 are new"}
        said |= {"confidence": "about 90 of 100 are right"}
        route.fulfill(response=answer, json={**answer.json(), **said})

    tab = Tab(browser)
    tab.page.route("**/api/run", altered)
    tab.open(serve(make_run(tmp_path / "run", mixture=True)).address)
    tab.page.locator(".tabs [data-view=run]").click()
    said = tab.page.locator(".page:visible .block p").all_inner_texts()
    number = "Between 4 and 6 new classes, perhaps 5."
    assert said == [number, "About 60 of 100 are new.", "About 90 of 100 are right."]
    assert tab.troubles == []
