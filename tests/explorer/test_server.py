"""The explorer's server over a real socket: what it answers, and how it changes a review."""

import csv
import http.client
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from servermaker import SCRIPT, Client, Serving

from cdknet.explorer.folder import open_run
from cdknet.explorer.report import report_data
from cdknet.explorer.session import Session, export

from runmaker import make_run

# Answers


def test_the_run_is_described(client):
    about = client.json("/api/run")
    assert (about["kind"], about["n_samples"], about["n_old"]) == ("image", 300, 3)
    assert about["truth_names"] == [f"true {i}" for i in range(5)]
    assert about["scores"]["acc"] == 1.0
    assert about["confusion"]["counts"] == [[60, 0], [0, 60]]
    assert about["source"] == "made-up.npz", "no folders of the machine"


def test_the_run_says_how_far_to_trust_it(tmp_path):
    run = make_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["notes"] = ["column 'a' was left out"]
    config["confidence"] = {"overall": 0.9, "calibration": {"calibrated": True, "accuracy": 0.85}}
    (run / "config.json").write_text(json.dumps(config))
    about = Session(open_run(run)).about()
    assert about["confidence"].startswith("about 90 of 100 unlabelled samples")
    assert about["notes"] == ["column 'a' was left out"]


def test_arrays_come_as_bytes(client, run):
    opened = open_run(run)
    places = np.frombuffer(client.get("/api/map"), "<f4").reshape(-1, 2)
    np.testing.assert_array_equal(places, opened.places)
    assert np.abs(places).max() == pytest.approx(1)
    assert np.frombuffer(client.get("/api/assignment"), "<u2").tolist() == opened.assignment.tolist()
    assert np.frombuffer(client.get("/api/given"), "u1").tolist() == opened.given.tolist()
    assert np.frombuffer(client.get("/api/confidence"), "u1")[0] == 255
    truth = np.frombuffer(client.get("/api/truth"), "<u2")
    assert truth[:8].tolist() == [0, 1, 2, 3, 4, 0, 1, 65535]


def test_every_class_has_a_card_and_its_samples(client):
    state = client.json("/api/state")
    assert state["revision"] == 0
    assert [c["kind"] for c in state["classes"]] == ["old"] * 3 + ["new"] * 2
    assert sum(c["size"] for c in state["classes"]) == 300
    for c in state["classes"]:
        card = client.json(f"/api/classes/{c['id']}")
        assert {k: card[k] for k in c} == c
        for order in ("central", "unsure", "name"):
            listed = client.json(f"/api/classes/{c['id']}/samples?order={order}&limit=1000")
            assert listed["total"] == c["size"] == len(set(listed["samples"]))
        assert len(card["central"]) == len(card["unsure"]) == len(card["outliers"]) == 24
        assert -1 <= c["cohesion"] <= 1
        some = client.json(f"/api/classes/{c['id']}/samples?offset=10&limit=5&order=name")["samples"]
        assert some == listed["samples"][10:15]


def test_samples_are_named_and_found(client):
    sample = client.json("/api/samples/50")
    assert (sample["id"], sample["class"], sample["given"], sample["truth"]) == (
        f"{SCRIPT} 50",
        0,
        True,
        "true 0",
    )
    found = client.json("/api/search?q=" + urllib.parse.quote("ROW 29"))
    assert found["total"] == 11
    assert {s["id"] for s in found["samples"]} >= {"row 29", "row 290"}
    assert client.json("/api/search?q=row")["total"] == 294
    assert len(client.json("/api/search?q=row")["samples"]) == 50
    assert client.json("/api/samples/300", 404)["error"]


def test_noise_starts_as_rejected_and_can_be_moved_back(mixed):
    state = mixed.json("/api/state")
    noise = mixed.json("/api/classes/65535/samples")["samples"]
    assert state["rejected"] == len(noise) == 9
    assert [c["size"] for c in state["classes"]] == [59, 59, 59, 57, 57], "and none is in the last class"
    assert sum(c["given"] for c in state["classes"]) == 120
    rows = json.loads(mixed.get("/api/export?format=json"))
    assert [i for i, row in enumerate(rows) if row["rejected"]] == noise
    mixed.act(kind="move", samples=noise[:2], to=3)
    assert mixed.json("/api/state")["rejected"] == 7
    mixed.post("/api/undo", {"revision": 1})
    assert mixed.json("/api/state")["rejected"] == 9


def test_the_probability_of_being_new_is_sent(mixed):
    about = mixed.json("/api/run")
    assert about["has_mixture"] is True
    assert about["cannot_return"] is None
    assert about["mixture"].startswith(
        "57 of 180 unlabelled samples were recognised as old classes, 9 set aside"
    )
    assert list(about).index("mixture") < list(about).index("confidence")
    novelty = np.frombuffer(mixed.get("/api/novelty"), "u1")
    given = np.frombuffer(mixed.get("/api/given"), "u1") == 1
    kinds = {c["id"]: c["kind"] for c in mixed.json("/api/state")["classes"]}
    assigned = np.frombuffer(mixed.get("/api/assignment"), "<u2").tolist()
    old = np.array([kinds.get(c) == "old" for c in assigned])
    new = np.array([kinds.get(c) == "new" for c in assigned])
    assert not novelty[given].any()
    assert 0 < novelty[old & ~given].max() <= 0.4 * 255 < novelty[new].min()
    sample = mixed.json("/api/samples/3")
    assert sample["novelty"] == pytest.approx(novelty[3] / 255, abs=0.003)
    rows = json.loads(mixed.get("/api/export?format=json"))
    assert rows[3]["novelty"] == sample["novelty"]


def test_what_is_old_goes_to_the_class_that_it_resembles_most(tmp_path):
    run = make_run(tmp_path / "run", mixture=True)
    best = open_run(run).best_old
    with Serving(run) as client:
        before = np.frombuffer(client.get("/api/assignment"), "<u2")
        mine = before == 3
        answer = client.act(kind="old", **{"class": 3})
        assert answer["changed"] == {"samples": 57, "classes": [0, 1, 2, 3]}
        after = np.frombuffer(client.get("/api/assignment"), "<u2")
        assert after[mine].tolist() == best[mine].tolist()
        assert after[~mine].tolist() == before[~mine].tolist()
        client.act(422, kind="old", samples=[0])
        client.act(422, kind="old", samples=[4], to=[1])
    with Serving(run) as client:
        assert np.frombuffer(client.get("/api/assignment"), "<u2").tolist() == after.tolist()
        client.post("/api/undo", {"revision": 1})
        assert np.frombuffer(client.get("/api/assignment"), "<u2").tolist() == before.tolist()


def test_a_label_that_was_given_says_what_a_sample_is(tmp_path):
    """Whatever else a sample with a given label resembles, it returns to the class of that label."""
    opened = open_run(make_run(tmp_path / "run", mixture=True))
    vars(opened.contents)["best_old"] = np.full(300, 2)
    given = opened.given
    assert opened.best_old[given].tolist() == opened.assignment[given].tolist()
    assert set(opened.best_old[~given].tolist()) == {2}


def test_a_run_without_a_mixture_says_so(fresh):
    about = fresh.json("/api/run")
    assert (about["has_mixture"], about["mixture"]) == (False, None)
    assert "resembles most" in about["cannot_return"]
    assert fresh.act(422, kind="old", **{"class": 3})["error"] == about["cannot_return"]
    assert fresh.json("/api/samples/3")["novelty"] is None


@pytest.mark.parametrize("name", ["plus", "paper"])
def test_a_run_of_version_0_1_0_opens(name, tmp_path):
    run = shutil.copytree(Path(__file__).parent.parent / "runs/0.1.0" / name, tmp_path / "run")
    session = Session(open_run(run))
    assert session.about()["has_mixture"] is False
    assert session.state()["rejected"] == 0
    assert set(session.labels()["novelty"]) == {0.0, 1.0}, "unlabelled samples were taken to be new"
    assert report_data(session)["novelty"] is None


@pytest.mark.parametrize("kind", ["image", "colour", "radio", "vector"])
def test_pictures_of_every_kind(kind, tmp_path):
    session = Session(open_run(make_run(tmp_path / "run", kind=kind)))
    with Image.open(io.BytesIO(session.picture(3))) as picture:
        picture.load()
        assert picture.size == {"image": (8, 8), "colour": (12, 10)}.get(kind, picture.size)
    with Image.open(io.BytesIO(session.sheet(list(range(7)), 48))) as sheet:
        assert sheet.size == (7 * 48, 48)
        assert len(np.unique(np.asarray(sheet.convert("L")))) > 1, "something is drawn"
    values = session.sample(3)["values"]
    assert (values is not None) == (kind == "vector")
    if kind == "vector":
        assert values[2][0] == "column 2"
        assert values[2][1] == pytest.approx(float(session.run.samples[3, 2]), rel=1e-5)


def test_samples_are_shown_by_the_rule_that_chooses_the_network():
    from cdknet.explorer.samples import Drawer
    from cdknet.nets.architectures import choose_architecture

    network = {"image": ("paper-mnist", "paper-cifar"), "radio": ("paper-rf",), "vector": ("mlp",)}
    for shape in [(5,), (28, 28), (8, 8), (3, 32, 32), (2, 64), (2, 31), (3, 30), (1, 6, 6), (64, 2)]:
        assert choose_architecture(shape) in network[Drawer(np.zeros((1, *shape), np.float32)).kind]


def test_a_picture_that_the_browser_has_is_not_sent_again(client):
    status, headers, _ = client.raw("GET", "/api/samples/1/picture", headers={"X-Cdknet-Token": client.token})
    assert (status, headers["content-type"]) == (200, "image/png")
    assert client.get("/api/samples/1/picture", 304, **{"If-None-Match": headers["etag"]}) == b""
    assert client.get("/api/sheet?samples=1,2,3&size=32")[:4] == b"\x89PNG"
    for bad in ("samples=", "samples=1,,2", "samples=1&size=5000", "samples=" + ",".join("1" * 201)):
        client.get(f"/api/sheet?{bad}", 422)
    client.get("/api/sheet?samples=1,300", 404)


def test_an_older_run_without_samples_still_opens(tmp_path):
    session = Session(open_run(make_run(tmp_path / "run", samples=False)))
    assert session.about()["has_samples"] is False
    assert "--data" in session.about()["samples_note"]
    with pytest.raises(LookupError, match="does not store its samples"):
        session.picture(0)
    X = np.zeros((300, 8, 8), np.float32)
    assert Session(open_run(tmp_path / "run", samples=X)).picture(0)
    with pytest.raises(ValueError, match="must have the shape"):
        open_run(tmp_path / "run", samples=X[:9])
    with pytest.raises(ValueError, match="in place of 'row 0'"):
        open_run(tmp_path / "run", samples=X, sample_ids=[f"x{i}" for i in range(300)])


def test_samples_that_were_changed_on_disk_are_detected(tmp_path):
    from cdknet.runs.format import read_config, verify_samples

    run = make_run(tmp_path / "run")
    verify_samples(run, read_config(run))
    content = bytearray((run / "samples.npy").read_bytes())
    content[-1] ^= 1
    (run / "samples.npy").write_bytes(content)
    open_run(run)  # quick: sizes only
    with pytest.raises(ValueError, match="SHA-256"):
        verify_samples(run, read_config(run))
    (run / "samples.npy").write_bytes(content[:-1])
    with pytest.raises(ValueError, match="damaged"):
        open_run(run)


# Actions


def test_actions_change_the_state_and_can_be_undone(fresh):
    answer = fresh.act(kind="rename", **{"class": 3}, name=SCRIPT)
    assert answer == {
        "revision": 1,
        "summary": f"new-1 is now {SCRIPT}",
        "changed": {"samples": 0, "classes": [3]},
    }
    fresh.act(kind="split", **{"class": 4}, k=2)
    fresh.act(kind="move", samples=[0, 1, 2], to=None, name="odd")
    fresh.act(kind="reject", samples=[5, 6])
    state = fresh.json("/api/state")
    assert [c["id"] for c in state["classes"]] == [0, 1, 2, 3, 4, 5, 6]
    assert state["rejected"] == 2
    assert fresh.json("/api/classes/65535/samples")["samples"] == [5, 6]
    assigned = np.frombuffer(fresh.get("/api/assignment"), "<u2")
    for c in state["classes"]:
        assert c["size"] == (assigned == c["id"]).sum()
    past = fresh.json("/api/journal?limit=2")
    assert past["total"] == 4
    assert [e["revision"] for e in past["entries"]] == [4, 3]
    for revision in range(4, 8):
        fresh.post("/api/undo", {"revision": revision})
    assert fresh.json("/api/state")["classes"][3]["name"] == "new-1"
    assert fresh.post("/api/undo", {"revision": 8}, 422)["error"]
    fresh.post("/api/redo", {"revision": 8})
    assert fresh.json("/api/state")["classes"][3]["name"] == SCRIPT


def test_a_stale_write_gets_a_conflict(fresh):
    fresh.act(kind="rename", **{"class": 3}, name="x")
    stale = {"revision": 0, "action": {"kind": "rename", "class": 4, "name": "y"}}
    answer = fresh.post("/api/actions", stale, 409)
    assert answer["revision"] == 1
    assert fresh.json("/api/state")["classes"][4]["name"] == "new-2"
    assert fresh.post("/api/undo", {"revision": 0}, 409)["revision"] == 1


def test_two_servers_on_one_run_see_each_other(tmp_path):
    run = make_run(tmp_path / "run")
    with Serving(run) as one, Serving(run) as two:
        one.act(kind="rename", **{"class": 3}, name="by one")
        assert two.json("/api/state")["classes"][3]["name"] == "by one"
        two.act(kind="split", **{"class": 3}, k=2)
        state = one.json("/api/state")
        assert state == two.json("/api/state")
        assert one.post("/api/undo", {"revision": 1}, 409)["revision"] == 2


def test_events_report_changes(fresh):
    connection = http.client.HTTPConnection("127.0.0.1", fresh.port, timeout=20)
    connection.request("GET", "/api/events", headers={"X-Cdknet-Token": fresh.token})
    stream = connection.getresponse()
    assert json.loads(stream.readline().removeprefix(b"data: ")) == {"revision": 0, "summary": None}
    stream.readline()
    fresh.act(kind="rename", **{"class": 3}, name="x")
    event = {"revision": 1, "summary": "new-1 is now x"}
    assert json.loads(stream.readline().removeprefix(b"data: ")) == event
    connection.close()


def test_a_read_only_session_changes_nothing(tmp_path):
    with Serving(make_run(tmp_path / "run"), read_only=True) as client:
        assert client.json("/api/run")["read_only"] is True
        client.act(403, kind="rename", **{"class": 3}, name="x")
        client.post("/api/refine", {"out": "more"}, 403)
    assert not (tmp_path / "run" / "review.jsonl").exists()


def test_a_dismissed_hint_is_not_shown(tmp_path):
    run = make_run(tmp_path / "run", n=600)
    with Serving(run) as client:
        client.act(kind="merge", classes=[3, 4], into=3)
        hints = client.json("/api/classes/3")["hints"]
        assert [hint["kind"] for hint in hints] == ["split"]
        assert "gap" in hints[0]["reason"]
        client.act(kind="dismiss", **{"class": 3, "hint": "split"})
        assert client.json("/api/classes/3")["hints"] == []
        client.post("/api/undo", {"revision": 2})
        assert client.json("/api/classes/3")["hints"] == hints


def test_formats_that_cannot_be_written_say_why(fresh, monkeypatch):
    assert fresh.json("/api/run")["formats"] == {"csv": None, "parquet": None, "json": None}
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    formats = fresh.json("/api/run")["formats"]
    assert formats["csv"] is None
    assert formats["parquet"] == fresh.json("/api/export?format=parquet", 501)["error"]


def test_options_are_listed_with_their_help(fresh, tmp_path):
    """Only those that the run's method reads; of an unknown method, all that are declared."""
    about = fresh.json("/api/run")
    assert about["option_help"].keys() == {"expansion", "label_weight"}
    assert "layers that grow" in about["option_help"]["expansion"]
    run = make_run(tmp_path / "other", options={"method": "cd-knet", "heads": 4, "discover_epochs": 20})
    about = Session(open_run(run)).about()
    assert about["options"] == {"method": "cd-knet", "discover_epochs": 20}
    assert about["option_help"].keys() == about["options"].keys()
    run = make_run(tmp_path / "unknown", options={"method": "magic", "heads": 4, "discover_epochs": 20})
    about = Session(open_run(run)).about()
    assert about["options"] == {"method": "magic", "heads": 4, "discover_epochs": 20}
    assert about["option_help"].keys() == about["options"].keys()


def test_exports_have_the_reviewed_labels(fresh):
    import pyarrow.parquet

    fresh.act(kind="rename", **{"class": 3}, name='=1+1, "quoted"')
    fresh.act(kind="reject", samples=[0])
    rows = json.loads(fresh.get("/api/export?format=json"))
    assert rows[3]["label"] == '=1+1, "quoted"'
    nothing, sure = {"label": None, "class": None, "kind": None}, {"confidence": 1.0, "novelty": 0.0}
    assert rows[0] == {"id": "row 0", **nothing, "given": True, **sure, "rejected": True}
    table = pyarrow.parquet.read_table(io.BytesIO(fresh.get("/api/export?format=parquet")))
    assert [dict(row, confidence=round(row["confidence"], 4)) for row in table.to_pylist()] == rows
    lines = list(csv.DictReader(io.StringIO(fresh.get("/api/export?format=csv").decode())))
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert lines[3]["label"] == "'" + rows[3]["label"], "no formula in a spreadsheet"
    assert [line["label"].lstrip("'") for line in lines] == [row["label"] or "" for row in rows]
    fresh.get("/api/export?format=xlsx", 422)


def test_a_csv_export_has_no_formula():
    names = ["=1+1", "+a", "-a", "@a", "\ta", "\ra", "-1", "-2.5", "a=1", ""]
    text = export({"id": names, "confidence": [-0.5] * 10}, "csv").decode()
    safe = ["'=1+1", "'+a", "'-a", "'@a", "'\ta", "'\ra", "-1", "-2.5", "a=1", ""]
    read = list(csv.reader(io.StringIO(text, newline="")))  # a carriage return is inside quotes
    assert read[1:] == [[name, "-0.5"] for name in safe]


# As a command


def explore(run: Path, *more: str) -> "tuple[subprocess.Popen[str], str]":
    command = [
        sys.executable,
        "-m",
        "cdknet.cli",
        "explore",
        str(run),
        "--no-browser",
        "--json",
        "--port",
        "0",
    ]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["url"]


class At:
    """A client by address."""

    def __new__(cls, url: str) -> Client:
        parts = urllib.parse.urlsplit(url)
        client = Client.__new__(Client)
        client.port, client.token = parts.port, urllib.parse.parse_qs(parts.query)["token"][0]
        for _ in range(100):
            try:
                client.json("/api/state")
                break
            except ConnectionError:
                time.sleep(0.05)
        return client


def test_a_killed_server_resumes_where_it_stopped(tmp_path):
    run = make_run(tmp_path / "run")
    process, url = explore(run)
    client = At(url)
    answered = 0

    def hammer():
        nonlocal answered
        try:
            for k in range(100_000):
                answered = client.post(
                    "/api/actions",
                    {"revision": k, "action": {"kind": "note", "class": 3, "text": f"note {k}"}},
                )["revision"]
        except (OSError, http.client.HTTPException):
            return  # killed

    thread = threading.Thread(target=hammer)
    thread.start()
    while answered < 20:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    thread.join()
    process.communicate()
    process, url = explore(run)
    client = At(url)
    state = client.json("/api/state")
    assert answered <= state["revision"] <= answered + 1
    assert state["classes"][3]["note"] == f"note {state['revision'] - 1}"
    for _ in range(5):
        state = client.json("/api/state")
        client.post("/api/undo", {"revision": state["revision"]})
    assert client.json("/api/journal")["entries"][4]["undone"] is True
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    connection.request("GET", "/api/events", headers={"X-Cdknet-Token": client.token})
    connection.getresponse().readline()  # a page is open
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    connection.close()
    assert (process.returncode, stderr) == (0, "")


def test_the_description_lists_the_api_and_nothing_else(client):
    described = client.json("/api/openapi.json")["paths"]
    assert {"/api/run", "/api/actions", "/api/classes/{class_id}/samples"} <= described.keys()
    assert all(path.startswith("/api/") for path in described)
