"""Classes that can be read: words, columns, suggested names; in the API, the page, the report and `show`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pagemaker import Server, Tab, cdknet
from rich.console import Console
from sentences import HOSTILE, sentences
from servermaker import Serving

from cdknet.cli.tables import _traits_table
from cdknet.explorer.folder import open_run
from cdknet.explorer.reading import Columns, Words
from cdknet.explorer.report import report_html
from cdknet.explorer.session import SHORT, Session

from runmaker import make_run

TEXTS = sentences(300)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("texts") / "run", kind="vector", texts=TEXTS)


@pytest.fixture(scope="module")
def client(texts):
    with Serving(texts) as client:
        yield client


@pytest.fixture(scope="module")
def address(texts):
    server = Server(texts)
    yield server.address
    server.kill()


@pytest.fixture
def tab(browser):
    opened = []

    def new(**context):
        opened.append(Tab(browser, **context))
        return opened[-1]

    yield new
    for one in opened:
        one.context.close()


# Words and columns


def test_words_that_set_a_class_apart_come_first_and_common_ones_not_at_all():
    parcels, phones = ["the parcel is late, the parcel!"] * 4, ["the phone is hot"] * 4
    words = Words([*parcels, *phones]).of(np.arange(4), 2)
    assert [word.word for word in words] == ["parcel", "late"]
    assert words[0].here == 1
    assert words[0].elsewhere == 0


def test_words_are_read_in_any_script_and_a_single_text_has_words():
    words = Words(["Überweisung nach Zürich", "перевод денег", "plain words"]).of(np.array([1]), 3)
    assert {word.word for word in words} == {"перевод", "денег"}
    assert Words(["", "123 456"]).of(np.array([0]), 1) == []


def test_columns_that_differ_most_come_first_whatever_their_units_and_outliers():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 6)) * [1, 1e6, 1, 1, 1, 1]
    X[:50, 1] += 3e6
    X[:50, 2] -= 1.5
    X[60, 3] = 1e12  # one far value outside
    X[:, 4] = np.arange(200) < 45  # a category
    found = Columns(X, ["a", "b", "c", "d", "kind=x", "e=f"], ("kind",)).of(np.arange(50))
    assert {column.name for column in found[:3]} == {"b", "c", "kind=x"}
    named = {column.name: column for column in found}
    assert named["b"].effect > 0.9
    assert named["c"].effect < -0.6
    assert named["kind=x"].here == [0.9]
    assert named["kind=x"].elsewhere == [0.0]
    assert named["b"].here[1] == pytest.approx(3e6, rel=0.2)
    assert len(found) <= 5


def test_the_effect_is_the_share_of_pairs_in_order():
    values = np.array([1.0, 2, 2, 3, 5, 5])[:, None]
    (column,) = Columns(values, ["a"]).of(np.array([2, 4]))
    pairs = [np.sign(values[i, 0] - values[j, 0]) for i in (2, 4) for j in (0, 1, 3, 5)]
    assert column.effect == pytest.approx(np.mean(pairs), abs=1e-3)


# The API


def test_a_card_has_words_and_suggests_a_name_to_new_classes_only(client):
    assert client.json("/api/run")["kind"] == "text"
    card = client.json("/api/classes/4")
    assert card["words"][0]["word"] in ("battery", "phone")
    assert set(card["suggestion"].split(", ")) <= {word["word"] for word in card["words"]}
    assert client.json("/api/classes/0")["suggestion"] is None
    assert client.json("/api/classes/0")["words"][0]["word"] == "refund"


def test_texts_are_given_whole_for_one_sample_and_short_for_many(client):
    assert client.json("/api/samples/8")["text"] == TEXTS[8]
    assert client.json("/api/samples/8")["values"] is None
    first, long = client.json("/api/texts?samples=0,8")
    assert first == TEXTS[0]
    assert len(long) == SHORT
    assert long.endswith("…")
    client.get("/api/texts?samples=300", 404)
    client.get("/api/texts?samples=x", 422)
    client.get("/api/samples/8/picture", 404)


def test_search_finds_words_and_shows_them(client):
    found = client.json("/api/search?q=DRAINS")
    assert found["total"] == sum("drains" in text for text in TEXTS)
    assert all("drains" in hit["text"] for hit in found["samples"])
    assert client.json("/api/search?q=row%20299")["samples"][0]["text"] == TEXTS[299]
    assert client.json("/api/search?q=nowhere-to-be-found")["total"] == 0


def test_a_run_of_a_table_has_columns_and_one_without_names_has_none(tmp_path):
    run = make_run(tmp_path / "run", kind="vector")
    with Serving(run) as client:
        card = client.json("/api/classes/3")
        assert card["words"] == []
        assert len(card["columns"]) <= 5
        client.get("/api/texts?samples=0", 404)
        assert client.json("/api/samples/0")["text"] is None
    with Serving(make_run(tmp_path / "image")) as client:
        card = client.json("/api/classes/3")
        assert card["words"] == card["columns"] == []
        assert card["suggestion"] is None


def test_show_prints_words_and_a_sentence(texts):
    printed = cdknet("show", texts)
    assert "What sets the new classes apart" in printed
    assert "parcel" in printed
    facts = json.loads(cdknet("show", texts, "--json"))
    assert [one["name"] for one in facts["traits"]] == ["new-1", "new-2"]
    assert facts["traits"][1]["text"] in TEXTS


def test_show_prints_texts_as_they_are_and_obeys_none_of_them(capsys):
    word = {"word": "parcel", "here": 1.0, "elsewhere": 0.0}
    text = "[bold]parcel[/nonsense] \x1b[31m red\r\n\tend"
    trait = {
        "name": "new-1",
        "words": [word],
        "columns": [],
        "suggestion": None,
        "central": "a",
        "text": text,
    }
    for table in _traits_table([trait]):
        Console(width=120).print(table)
    printed = capsys.readouterr().out
    assert "[bold]parcel[/nonsense] [31m red end" in printed
    assert "\x1b" not in printed


# The report


def test_a_report_of_ten_thousand_sentences_stays_under_5_mb(tmp_path):
    run = make_run(tmp_path / "run", kind="vector", n=10_000, texts=sentences(10_000))
    page = report_html(Session(open_run(run)))
    assert len(page) < 5_000_000
    assert b"phone 9999 does not charge" in page
    assert b"<img src=x" not in page
    small = report_html(Session(open_run(run)), largest=len(page) - 200_000)
    assert len(small) <= len(page) - 200_000


# The page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_sentences_are_read_on_the_page_and_run_nothing(tab, address, width, theme):
    page = tab(color_scheme=theme)
    page.page.set_viewport_size({"width": width, "height": 844})
    page.open(address + "#/map/3")
    page.page.locator(".panel .sentence", has_text="parcel").first.wait_for()
    shown = page.page.locator(".panel .sentence").all_inner_texts()
    assert all("parcel" in text for text in shown)
    assert "parcel" in page.page.locator(".panel .words").inner_text()
    hostile = page.page.locator(".panel .sentence", has_text="<script>").first
    assert HOSTILE.replace("\u2028", " ")[:40] in hostile.inner_text()
    hostile.click()
    wide = page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "nothing sticks out of the page"
    assert page.page.evaluate("document.querySelectorAll('.panel img, .panel b').length") == 0
    assert page.troubles == []


def test_a_suggested_name_is_accepted_with_one_press_and_undone(tab, serve, tmp_path):
    run = make_run(tmp_path / "run", kind="vector", texts=TEXTS)
    page = tab().open(serve(run).address + "#/map/4")
    button = page.page.locator(".suggestion")
    button.wait_for()
    name = page.get("classes/4")["suggestion"]
    button.click()
    page.listed(name)
    page.said("Undo").locator("button", has_text="Undo").click()
    page.listed("new-2")


def test_a_word_is_searched_and_its_sentence_opened(tab, address):
    page = tab().open(address)
    page.press("/")
    page.page.locator("dialog[open] [data-first]").fill("drains")
    page.page.locator(".pick", has_text="drains overnight").first.click()
    page.page.locator(".whole-text", has_text="drains overnight").wait_for()
    assert page.troubles == []


def test_the_columns_of_a_table_fit_the_panel(tab, serve, tmp_path):
    run = make_run(tmp_path / "run", kind="vector", n=60)
    page = tab().open(serve(run).address + "#/map/3")
    table = page.page.locator(".panel .apart")
    table.wait_for()
    edge = page.page.locator(".panel").bounding_box()
    for part in (table, table.locator(".spread").first):
        box = part.bounding_box()
        assert box["x"] + box["width"] <= edge["x"] + edge["width"] - 10
    assert "column " in table.inner_text()
    page.page.locator(".panel .thumb").first.hover()
    name = page.get("samples/3")["marked"][0][0]
    page.page.locator(".hover-card.free .values", has_text=name).wait_for()


def test_a_report_shows_its_sentences_without_a_server(tab, texts, tmp_path):
    cdknet("report", texts, "-o", tmp_path / "report.html")
    page = tab().open((tmp_path / "report.html").as_uri() + "#/map/3")
    page.page.locator(".panel .sentence", has_text="parcel").first.wait_for()
    assert page.page.locator(".suggestion").count() == 0
    assert page.troubles == []
