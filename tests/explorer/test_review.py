"""The review: undo restores the state, the journal defines it, and nothing is ever lost."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet.explorer.journal import JOURNAL, Journal, Stale
from cdknet.explorer.review import (
    MOST_CLASSES,
    REJECTED,
    Review,
    ReviewError,
    change_of,
    ids_of,
    resolve,
)

N = 24


def start(n: int = N) -> Review:
    return Review.start(np.arange(n) % 5, ["a", "b", "c", "new-1", "new-2"], 3)


def halves(rows, k):
    return np.arange(len(rows)) % k


def resembled(n: int = N):
    """The old class that each sample resembles most: its own, or the three in turn."""
    return np.where(np.arange(n) % 5 < 3, np.arange(n) % 5, np.arange(n) % 3).astype(np.uint16)


def journal(folder, n: int = N) -> Journal:
    return Journal(Path(folder) / JOURNAL, start(n), "run")


def do(j: Journal, **action):
    return j.do(j.revision, action, halves, resembled())


# What a person may do: mostly possible actions, now and then impossible ones.

ids = st.integers(0, 12)
rows = st.lists(st.integers(0, N), min_size=0, max_size=5)
names = st.sampled_from(["a", "x", "y", "z", "new-1", "", "-1", "<script>", "a" * 101, "tab\t"])
steps = st.one_of(
    st.fixed_dictionaries({"kind": st.just("rename"), "class": ids, "name": names}),
    st.fixed_dictionaries({"kind": st.just("merge"), "classes": st.lists(ids, max_size=3), "into": ids}),
    st.fixed_dictionaries({"kind": st.just("split"), "class": ids, "k": st.integers(0, 5)}),
    st.fixed_dictionaries({"kind": st.just("move"), "samples": rows, "to": st.none() | ids}),
    st.fixed_dictionaries({"kind": st.just("move"), "samples": rows, "to": st.none(), "name": names}),
    st.fixed_dictionaries({"kind": st.just("mark_old"), "class": ids, "old": ids}),
    st.fixed_dictionaries({"kind": st.just("old"), "samples": rows}),
    st.fixed_dictionaries({"kind": st.just("old"), "class": ids}),
    st.fixed_dictionaries({"kind": st.just("reject"), "samples": rows}),
    st.fixed_dictionaries({"kind": st.just("reject"), "class": ids}),
    st.fixed_dictionaries({"kind": st.just("note"), "class": ids, "text": st.sampled_from(["", "n", "m"])}),
    st.fixed_dictionaries({"kind": st.just("dismiss"), "class": ids, "hint": st.just("split")}),
    st.fixed_dictionaries({"kind": st.just("dismiss"), "class": ids, "hint": st.just("merge"), "with": ids}),
    st.sampled_from(["undo", "redo"]),
)


def play(j: Journal, played) -> None:
    for step in played:
        before = j.review.copy()
        try:
            if isinstance(step, str):
                getattr(j, step)(j.revision)
            else:
                j.do(j.revision, step, halves, resembled())
        except ReviewError:
            assert j.review.same_as(before), "a refused action changes nothing"


@given(st.lists(steps, max_size=25))
def test_undoing_everything_restores_the_start_and_redoing_everything_the_end(played):
    with tempfile.TemporaryDirectory() as folder:
        j = journal(folder)
        play(j, played)
        end = j.review.copy()
        depth = 0
        while j.undo_summary is not None:
            j.undo(j.revision)
            depth += 1
        assert j.review.same_as(start())
        for _ in range(depth):
            j.redo(j.revision)
        assert j.review.same_as(end)


@given(st.lists(steps, max_size=25))
def test_reading_the_journal_gives_the_same_state(played):
    with tempfile.TemporaryDirectory() as folder:
        j = journal(folder)
        play(j, played)
        again = journal(folder)
        assert again.review.same_as(j.review)
        assert again.review.next_id == j.review.next_id
        assert (again.revision, again.undo_summary, again.redo_summary) == (
            j.revision,
            j.undo_summary,
            j.redo_summary,
        )
        assert [(e.revision, e.summary, e.undone) for e in again.entries] == [
            (e.revision, e.summary, e.undone) for e in j.entries
        ]


@given(st.lists(steps, max_size=25))
def test_ids_are_never_used_twice_and_every_sample_has_an_existing_class(played):
    with tempfile.TemporaryDirectory() as folder:
        j = journal(folder)
        given_out = set(j.review.classes)
        for step in played:
            done = len(j.entries)
            play(j, [step])
            if len(j.entries) > done:
                made = {i for i, (b, a) in j.entries[-1].change.classes.items() if b is None and a}
                assert not made & given_out
                given_out |= made
            assert set(np.unique(j.review.assignment).tolist()) <= j.review.classes.keys() | {REJECTED}
            taken = [record.name for record in j.review.classes.values()]
            assert len(set(taken)) == len(taken)
            assert [r.kind for r in j.review.classes.values()][:3] == ["old"] * 3


def test_each_action_does_what_it_says(tmp_path):
    j = journal(tmp_path)
    members = {i: j.review.members(i).tolist() for i in range(5)}
    assert do(j, kind="rename", **{"class": 3}, name="  seven ").summary == "new-1 is now seven"
    assert j.review.classes[3].name == "seven"
    done = do(j, kind="merge", classes=[3, 4], into=3)
    assert (done.samples, done.classes) == (len(members[4]), [3, 4])
    assert 4 not in j.review.classes
    done = do(j, kind="split", **{"class": 3}, k=3)
    assert done.classes == [3, 5, 6]
    assert {j.review.classes[i].name for i in (5, 6)} == {"seven (2)", "seven (3)"}
    done = do(j, kind="move", samples=[0, 0, 1], to=None, name="odd")
    assert (done.samples, j.review.assignment[:2].tolist()) == (2, [7, 7])
    do(j, kind="mark_old", **{"class": 5}, old=1)
    assert 5 not in j.review.classes
    do(j, kind="reject", **{"class": 6})
    assert 6 not in j.review.classes
    assert (j.review.assignment == REJECTED).any()
    back = np.flatnonzero(j.review.assignment == REJECTED).tolist()
    do(j, kind="move", samples=back, to=7)
    assert not (j.review.assignment == REJECTED).any()
    do(j, kind="note", **{"class": 7}, text="why?")
    assert j.review.classes[7].note == "why?"
    assert do(j, kind="reject", **{"class": 0}).samples == len(members[0]) - 1
    assert 0 in j.review.classes, "an old class stays, without samples"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"kind": "merge", "classes": [0, 3], "into": 3}, "must be new to be merged"),
        ({"kind": "merge", "classes": [3], "into": 3}, "at least one class besides"),
        ({"kind": "rename", "class": 3, "name": "a"}, "merge the two classes"),
        ({"kind": "rename", "class": 3, "name": "new-1"}, "must differ from the present name"),
        ({"kind": "rename", "class": 3, "name": "-1"}, "unlabelled"),
        ({"kind": "rename", "class": 3, "name": "\ud800"}, "one line"),
        ({"kind": "rename", "class": 99, "name": "x"}, "an existing class"),
        ({"kind": "rename", "class": True, "name": "x"}, "an existing class"),
        ({"kind": "split", "class": 3, "k": 1}, "k must be from 2"),
        ({"kind": "split", "class": 3, "k": 2.5}, "whole number"),
        ({"kind": "move", "samples": [99], "to": 3}, "from 0 to 23"),
        ({"kind": "move", "samples": "012", "to": 3}, "a list"),
        ({"kind": "move", "samples": [3], "to": 3}, "of other classes"),
        ({"kind": "mark_old", "class": 0, "old": 1}, "must be new to be marked"),
        ({"kind": "mark_old", "class": 3, "old": 4}, "must be old to be chosen"),
        ({"kind": "note", "class": 3, "text": "x" * 5000}, "at most 4000"),
        ({"kind": "reject", "samples": [1], "class": 3}, "samples or a class"),
        ({"kind": "reject"}, "an existing class"),
        ({"kind": "old", "samples": [3], "class": 3}, "samples or a class"),
        ({"kind": "old", "samples": [0, 1]}, "only samples of known classes"),
        ({"kind": "old", "class": 0}, "must be new to be moved"),
        ({"kind": "old"}, "an existing class"),
        ({"kind": "erase"}, "kind must be one of"),
        ({}, "kind must be one of"),
    ],
)
def test_impossible_actions_are_explained_and_not_written(action, message, tmp_path):
    j = journal(tmp_path)
    with pytest.raises(ReviewError, match=message):
        j.do(0, action, halves, resembled())
    assert j.review.same_as(start())
    assert journal(tmp_path).revision == 0


def test_samples_that_are_old_go_to_the_class_that_each_resembles_most(tmp_path):
    j = journal(tmp_path)
    do(j, kind="reject", samples=[9])
    before = j.review.copy()
    done = do(j, kind="old", samples=[0, 3, 4, 8, 9, 13])
    assert done.summary == "5 samples moved to known classes: 2 to a, 2 to b, 1 to c"
    assert j.review.assignment[[0, 3, 4, 8, 9, 13]].tolist() == [0, 0, 1, 2, 0, 1]
    assert 3 in j.review.classes, "as after any move"
    moved = j.review.copy()
    done = do(j, kind="old", **{"class": 4})
    assert done.summary == "new-2 moved to known classes: 1 to b, 1 to c"
    assert 4 not in j.review.classes
    assert j.review.assignment[[14, 19]].tolist() == resembled()[[14, 19]].tolist() == [2, 1]
    end = j.review.copy()

    # the journal alone says where they went
    again = journal(tmp_path)
    assert again.review.same_as(end)
    again.undo(again.revision)
    assert again.review.same_as(moved), "one action, one undo"
    again.undo(again.revision)
    assert again.review.same_as(before)
    again.redo(again.revision)
    assert journal(tmp_path).review.same_as(moved)


def test_an_empty_class_that_is_old_is_removed(tmp_path):
    j = journal(tmp_path)
    do(j, kind="old", samples=j.review.members(3).tolist())
    assert do(j, kind="old", **{"class": 3}).summary == "new-1 moved to known classes"
    assert 3 not in j.review.classes


def test_a_summary_names_few_classes(tmp_path):
    review = Review.start(np.full(10, 5), [*"abcde", "new-1"], 5)
    best = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4], dtype=np.uint16)
    action = resolve(review, {"kind": "old", "class": 5}, halves, best)
    assert change_of(review, action).summary.endswith(": 3 to a, 2 to b, 2 to c, 3 to others")


def test_a_run_that_does_not_say_what_is_old_moves_nothing(tmp_path):
    j = journal(tmp_path)
    with pytest.raises(ReviewError, match="resembles most"):
        j.do(0, {"kind": "old", "class": 3}, halves)
    assert j.revision == 0


def test_a_journal_cannot_move_samples_to_a_new_class_as_old(tmp_path):
    review = start()
    action = resolve(review, {"kind": "old", "samples": [3, 8]}, halves, np.full(N, 4, dtype=np.uint16))
    with pytest.raises(ReviewError, match="must be old"):
        change_of(review, action)
    with pytest.raises(ReviewError, match="a class for each of 1 sample"):
        change_of(review, {**action, "samples": [3]})


def test_noise_of_a_run_is_rejected_from_the_start():
    assert ids_of(np.array([0, -1, 2, 1]), [0, 4, 9]).tolist() == [0, REJECTED, 9, 4]


def test_a_name_that_a_class_once_had_is_not_chosen_for_another(tmp_path):
    j = journal(tmp_path)
    do(j, kind="rename", **{"class": 3}, name="six")
    do(j, kind="move", samples=[0], to=None)
    assert j.review.classes[5].name == "new-3", "new-1 was the name of class 3"
    j.undo(j.revision)
    do(j, kind="move", samples=[1], to=None)
    assert j.review.classes[6].name == "new-4", "also where the class was undone"
    again = journal(tmp_path)
    do(again, kind="move", samples=[2], to=None)
    assert again.review.classes[7].name == "new-5", "also after a restart"
    do(again, kind="rename", **{"class": 3}, name="new-1")
    assert again.review.classes[3].name == "new-1", "a person may choose it"


def test_a_class_with_braces_in_its_name_can_be_split_again(tmp_path):
    j = journal(tmp_path)
    do(j, kind="rename", **{"class": 3}, name="{a} {} {")
    for _ in range(2):
        do(j, kind="split", **{"class": 3}, k=2)
    names = {record.name for record in j.review.classes.values()}
    assert {"{a} {} {", "{a} {} { (2)", "{a} {} { (3)"} <= names


def test_a_dismissed_hint_stays_hidden_until_the_class_changes(tmp_path):
    j = journal(tmp_path)
    do(j, kind="dismiss", **{"class": 3, "hint": "split"})
    done = do(j, kind="dismiss", **{"class": 3, "hint": "merge", "with": 4})
    assert done.summary == "hint to merge new-1 and new-2 dismissed"
    assert j.review.dismissed(3, "split", None)
    assert j.review.dismissed(3, "merge", 4)
    assert j.review.dismissed(4, "merge", 3)
    assert not j.review.dismissed(4, "split", None)
    do(j, kind="rename", **{"class": 3}, name="x")
    assert j.review.dismissed(3, "split", None)
    do(j, kind="move", samples=j.review.members(3)[:1].tolist(), to=0)
    assert not j.review.dismissed(3, "split", None)
    assert not j.review.dismissed(4, "merge", 3)
    j.undo(j.revision)
    assert j.review.dismissed(3, "split", None)
    assert j.review.dismissed(3, "merge", 4)
    with pytest.raises(ReviewError, match="split or merge"):
        do(j, kind="dismiss", **{"class": 3, "hint": "dance"})
    with pytest.raises(ReviewError, match="dismissed already"):
        do(j, kind="dismiss", **{"class": 3, "hint": "split"})


def test_a_class_that_cannot_be_separated_is_not_split(tmp_path):
    j = journal(tmp_path)
    with pytest.raises(ReviewError, match="can be separated"):
        j.do(0, {"kind": "split", "class": 3, "k": 2}, lambda rows, k: np.zeros(len(rows), int))


def test_ids_end_before_the_id_of_rejected_samples():
    review = start()
    review.next_id = MOST_CLASSES
    with pytest.raises(ReviewError, match="at most"):
        resolve(review, {"kind": "move", "samples": [1], "to": None}, halves)
    with pytest.raises(ReviewError, match="an unused id"):
        change_of(review, {"kind": "move", "samples": [1], "to": REJECTED, "name": "x"})


def test_a_new_action_discards_what_could_be_redone(tmp_path):
    j = journal(tmp_path)
    do(j, kind="rename", **{"class": 3}, name="x")
    j.undo(1)
    assert j.redo_summary is not None
    do(j, kind="rename", **{"class": 3}, name="y")
    assert j.redo_summary is None
    with pytest.raises(ReviewError, match="to redo"):
        j.redo(3)
    assert [e.undone for e in j.entries] == [True, False]


# Files


def test_a_stale_write_is_refused_and_writes_nothing(tmp_path):
    a, b = journal(tmp_path), journal(tmp_path)
    do(a, kind="rename", **{"class": 3}, name="x")
    with pytest.raises(Stale) as caught:
        b.do(0, {"kind": "rename", "class": 4, "name": "y"}, halves)
    assert caught.value.revision == 1
    assert b.review.same_as(a.review), "it has read what the other did"
    b.do(1, {"kind": "rename", "class": 4, "name": "y"}, halves)
    a.catch_up()
    assert a.review.same_as(b.review)
    assert journal(tmp_path).revision == 2


TAILS = {
    "nothing": b"",
    "zeros": b"\0" * 40,
    "incomplete": b'{"revision": 4, "do"\n',
    "not text": b"\xff\xfe\n",
    "long": b'{"do": "' + b"x" * 900,
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_an_incomplete_last_line_is_removed_wherever_it_ends(tail, tmp_path):
    j = journal(tmp_path)
    for name in "xyz":
        do(j, kind="rename", **{"class": 3}, name=name)
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end] + (tail if end == last else b""))
        again = journal(tmp_path)
        assert again.revision == 2
        assert again.review.classes[3].name == "y"
        do(again, kind="rename", **{"class": 3}, name="w")
        assert journal(tmp_path).review.classes[3].name == "w"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [lines[0], b"garbage", *lines[2:]], "not JSON"),
        (lambda lines: [lines[0], *lines[2:]], "revision 2 after 0"),
        (lambda lines: [*lines[:2], lines[2].replace(b'"class":3', b'"class":77'), *lines[3:]], "revision 2"),
        (lambda lines: [b'{"format":"other"}', *lines[1:]], "first line"),
        (lambda lines: [lines[0].replace(b'"run":"run"', b'"run":"another"'), *lines[1:]], "of this run"),
    ],
)
def test_a_damaged_journal_is_refused(damage, message, tmp_path):
    j = journal(tmp_path)
    for name in "xyz":
        do(j, kind="rename", **{"class": 3}, name=name)
    path = tmp_path / JOURNAL
    path.write_bytes(b"\n".join(damage(path.read_bytes().split(b"\n"))))
    with pytest.raises(ReviewError, match=message):
        journal(tmp_path)


def test_nothing_is_written_into_a_run_that_replaced_the_opened_one(tmp_path):
    (tmp_path / "run").mkdir()
    opened = journal(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "old")
    (tmp_path / "run").mkdir()
    with pytest.raises(ReviewError, match="replaced by another one"):
        do(opened, kind="rename", **{"class": 3}, name="x")
    assert not list((tmp_path / "run").iterdir())


def test_a_journal_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / JOURNAL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic|links"):
        do(journal(tmp_path / "run"), kind="rename", **{"class": 3}, name="x")
    assert (tmp_path / "elsewhere").read_text() == ""


def test_a_full_disk_changes_neither_the_state_nor_the_file(tmp_path, monkeypatch):
    j = journal(tmp_path)
    do(j, kind="rename", **{"class": 3}, name="x")
    before = (tmp_path / JOURNAL).read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cdknet.explorer.journal.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        do(j, kind="rename", **{"class": 3}, name="y")
    assert (tmp_path / JOURNAL).read_bytes() == before
    assert j.review.classes[3].name == "x"
    monkeypatch.undo()
    do(j, kind="rename", **{"class": 3}, name="z")
    assert journal(tmp_path).review.classes[3].name == "z"


WRITER = """
import sys
import numpy as np
from pathlib import Path
from cdknet.explorer.journal import JOURNAL, Journal, Stale
from cdknet.explorer.review import Review

start = Review.start(np.arange(24) % 5, ["a", "b", "c", "new-1", "new-2"], 3)
j = Journal(Path(sys.argv[1]) / JOURNAL, start, "run")
mine, k = sys.argv[2], 0
while True:
    try:
        done = j.do(j.revision, {"kind": "note", "class": 3, "text": f"{mine} {k}"}, None)
    except Stale:
        continue
    print(done.revision, f"{mine} {k}", flush=True)
    k += 1
"""


def writer(folder, name):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name], stdout=subprocess.PIPE, text=True
    )


def test_kill_9_at_any_moment_loses_no_confirmed_action(tmp_path):
    for round in range(4):
        process = writer(tmp_path, f"w{round}")
        first = process.stdout.readline()  # it has started
        time.sleep(0.01 * round + 0.003)
        os.kill(process.pid, signal.SIGKILL)
        lines = [first, *process.communicate()[0].splitlines(keepends=True)]
        confirmed = [line.split(" ", 1) for line in lines if line.endswith("\n")]
        j = journal(tmp_path)
        for revision, text in confirmed:
            action = json.loads((tmp_path / JOURNAL).read_bytes().split(b"\n")[int(revision)])["do"]
            assert action["text"] == text.strip()
        assert j.revision <= int(confirmed[-1][0]) + 1, "at most the unfinished action is there as well"
        do(j, kind="rename", **{"class": 3}, name=f"after {round}")


def test_two_processes_at_once_write_one_valid_journal(tmp_path):
    both = [writer(tmp_path, name) for name in "pq"]
    for process in both:
        process.stdout.readline()
    time.sleep(0.3)
    confirmed = []
    for process in both:
        process.kill()
        confirmed += [int(line.split()[0]) for line in process.communicate()[0].splitlines()]
    j = journal(tmp_path)  # raises if a line is lost, repeated or mixed up
    assert len(confirmed) == len(set(confirmed))
    assert j.revision >= max(confirmed)
    authors = {e.change.classes[3][1].note[0] for e in j.entries}
    assert authors == {"p", "q"}
