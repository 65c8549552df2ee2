"""Names, journals and requests that were made to do harm or to confuse."""

import base64
import json
import socket
import time
import tracemalloc
import zlib

import pytest
from servermaker import Serving

import cdknet.explorer.server as server
from cdknet.explorer.folder import open_run
from cdknet.explorer.journal import JOURNAL
from cdknet.explorer.review import ReviewError
from cdknet.explorer.session import Session

from runmaker import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", n=60)


def with_lines(run, *lines):
    """The run with a journal of these lines after its head."""
    head = {"format": "cdknet-review", "version": 1, "run": open_run(run).digest}
    text = [json.dumps(head), *(line if isinstance(line, str) else json.dumps(line) for line in lines)]
    (run / JOURNAL).write_text("\n".join(text) + "\n")
    return run


def packed(content):
    return base64.b64encode(zlib.compress(content)).decode()


BOMB = packed(b"\0" * 200_000_000)
GOOD = {"kind": "note", "class": 3, "text": "x"}


@pytest.mark.parametrize("do", [
    None, [], 0, "x", {}, {"kind": []}, {"kind": "rename"}, {"kind": "rename", "class": [], "name": "x"},
    {"kind": "rename", "class": 3, "name": {}}, {"kind": "merge", "classes": [[]], "into": 3},
    {"kind": "split", "class": 3, "ids": [5], "names": [None], "parts": packed(bytes(12))},
    {"kind": "split", "class": 3, "ids": [5], "names": ["x"], "parts": BOMB},
    {"kind": "split", "class": 3, "ids": None, "names": ["x"], "parts": ""},
    {"kind": "split", "class": 3, "ids": [5], "names": ["x"], "parts": 7},
    {"kind": "move", "samples": [10**30], "to": 3}, {"kind": "move", "samples": [0], "to": 10**30},
    {"kind": "old", "class": 3, "to": BOMB}, {"kind": "old", "samples": [0, 1], "to": "%%%"},
    {"kind": "dismiss", "class": 3, "hint": {}}, {"kind": "note", "class": 3, "text": 1.5},
])  # fmt: skip
def test_a_journal_with_an_impossible_action_is_refused_in_one_line(run, do):
    start = time.process_time()
    with pytest.raises(ReviewError, match="must be a complete review"):
        Session(open_run(with_lines(run, {"revision": 1, "when": "now", "do": do})))
    assert time.process_time() - start < 2


def test_packed_numbers_take_no_more_memory_than_there_are_samples(run):
    with_lines(run, {"revision": 1, "when": "now", "do": {"kind": "old", "class": 3, "to": BOMB}})
    opened = open_run(run)
    tracemalloc.start()
    with pytest.raises(ReviewError):
        Session(opened)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("line", [
    {"revision": True, "when": "now", "do": GOOD}, {"revision": 1.0, "when": "now", "do": GOOD},
    {"revision": 1, "when": "now"}, {"revision": 1, "undo": []}, "[" * 50_000 + "\n{}",
])  # fmt: skip
def test_a_journal_with_an_impossible_line_is_refused(run, line):
    with pytest.raises(ReviewError, match="must be a complete review"):
        Session(open_run(with_lines(run, line)))


@pytest.mark.parametrize("damage", ['{"revision": 2, "wh', '{"revision": 2, "when": #}\n', "\0\0\0\0\0\0\n"])
def test_a_damaged_last_line_is_reported_and_kept(run, damage):
    with_lines(run, {"revision": 1, "when": "now", "do": GOOD})
    with (run / JOURNAL).open("a") as file:
        file.write(damage)
    session = Session(open_run(run))
    assert f"a damaged line of {len(damage)} bytes" in session.left_out
    assert session.left_out in session.about()["notes"]
    assert session.revision == 1
    session.act(1, {"kind": "note", "class": 3, "text": "y"})
    assert (run / f"{JOURNAL}.removed").read_text() == damage.rstrip("\n") + "\n"
    again = Session(open_run(run))
    assert (again.revision, again.left_out) == (2, None)


@pytest.mark.parametrize(
    "name",
    ["cat\u200b", "\u202etac", "\u3164", "a\u2066b", "x\u00ad", "a\u200db", "\U000e0041bc", "\ufeffcat"],
)
def test_a_name_that_cannot_be_seen_whole_is_refused(run, name):
    session = Session(open_run(run))
    for action in ({"kind": "rename", "class": 3}, {"kind": "move", "samples": [3], "to": None}):
        with pytest.raises(ReviewError, match="characters that can be seen"):
            session.act(0, {**action, "name": name})
    for seen in (
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u0646\u0645\u06cc\u200c\u062f\u0627\u0646\u0645",
    ):
        session.act(session.revision, {"kind": "rename", "class": 3, "name": seen})


def test_letters_have_one_form_so_that_equal_names_are_equal(run):
    session = Session(open_run(run))
    session.act(0, {"kind": "rename", "class": 3, "name": "cafe\u0301"})
    assert session.journal.review.classes[3].name == "caf\u00e9"
    with pytest.raises(ReviewError, match="must be unique"):
        session.act(1, {"kind": "rename", "class": 4, "name": "caf\u00e9"})


def test_a_name_that_an_older_version_accepted_is_still_read(run):
    old = {"revision": 1, "when": "now", "do": {"kind": "rename", "class": 3, "name": "cat\u200b"}}
    assert Session(open_run(with_lines(run, old))).journal.review.classes[3].name == "cat\u200b"


@pytest.mark.parametrize("sent", [
    b"", b"GET / HT", b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /api/undo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
])  # fmt: skip
def test_a_request_that_never_arrives_whole_is_dropped(run, sent, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    with (
        Serving(run) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection,
    ):
        connection.sendall(sent)
        start = time.monotonic()
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass
        assert time.monotonic() - start < 8
        assert client.json("/api/state")["classes"]
