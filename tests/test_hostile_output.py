"""What a command writes: to the terminal, into a CSV, and at a place that somebody else may be using."""

import csv
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdknet import ClassDiscovery
from cdknet.cli import main
from cdknet.cli.base import console
from cdknet.inputs.labels import encode_labels
from cdknet.runs.files import check_writable, claimed, spreadsheet_bytes, write_through

from contracts import blob_problem

X, Y, _ = blob_problem()
QUICK = ["--new-classes", "2", "--unlabelled", "new", "--method", "cd-knet", "--no-calibrate"]
QUICK += [
    "--expand-steps",
    "0",
    "--pretrain-epochs",
    "2",
    "--discover-epochs",
    "2",
    "--expand-epochs",
    "2",
    "--view-steps",
    "6",
]


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    return tmp_path / "data.npz"


# A spreadsheet that reads the file in any of its usual ways starts a formula at one of these.
STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"


@pytest.mark.parametrize("cell", [
    "=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\n\n=1", " =1", "\uff1d1", "\uff0b1",
    "\uff20x", "\uff0dx", '"=1', "a;=1", "a\t=1", "a\n=1", "x;\uff1d1", "\ufeff=1", "\u200b=1",
])  # fmt: skip
def test_no_cell_is_a_formula_whatever_separates_cells(cell):
    (got,) = next(
        csv.reader(io.StringIO(spreadsheet_bytes(["x"], [[cell]]).decode().partition("\n")[2], newline=""))
    )
    for separator in ("\0", ";", "\t", "\n", "\r"):
        for part in got.split(separator):
            seen = part.lstrip(' \t\r\n"\ufeff\u200b')
            assert seen[:1] not in STARTS or seen == "", (separator, part)


def test_numbers_and_plain_text_are_unchanged():
    cells = ["-1", "+2.5", "1e-3", "cat", "a-b", "x = 1", "", "row 7", "it's"]
    table = list(csv.reader(io.StringIO(spreadsheet_bytes(["x"], [[c] for c in cells]).decode(), newline="")))
    assert [row[0] if row else "" for row in table[1:]] == cells
    assert spreadsheet_bytes(["a", "b"], [[True, None], [np.False_, 1.5]]) == b"a,b\n1,\n0,1.5\n"


def test_predict_writes_no_formula(data, tmp_path):
    ids = np.array(["=1+1", "\n=2", *(f"row {i}" for i in range(2, len(X)))])
    np.savez(tmp_path / "ids.npz", X=X, y=Y, ids=ids)
    ClassDiscovery(
        n_new_classes=2, method="cd-knet", unlabelled="new", expand_steps=0, pretrain_epochs=1,
        discover_epochs=1, expand_epochs=1, calibrate=False, random_state=0,
    ).fit(X, Y).save(tmp_path / "run")  # fmt: skip
    assert (
        main(["predict", str(tmp_path / "run"), str(tmp_path / "ids.npz"), "--out", str(tmp_path / "o.csv")])
        == 0
    )
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:3]] == ["'=1+1", "'\n'=2"]


def test_the_terminal_gets_no_control_character_of_a_name(capsys):
    console().print("a\x1b[2Jb\u202ec\x07", markup=False)
    assert capsys.readouterr().out == "a\\x1b[2Jb\\u202ec" + "\n"
    assert main(["show", "x\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_the_end_of_a_file_is_no_interruption(monkeypatch, capsys):
    """The parser of commands takes an EOFError for Ctrl-D."""

    def ends(*args):
        raise EOFError("No data left in file")

    monkeypatch.setattr("cdknet.runs.evaluate.evaluate_run", ends)
    assert main(["evaluate", "run", "--truth", "truth.csv"]) == 2
    assert capsys.readouterr().err.strip() == (
        "cdknet: A file must be complete. Got one that ends early: No data left in file"
    )


@pytest.mark.parametrize("label", [-(2**70), 2**70, 10**5000, -(10**5000)], ids=range(4))
def test_labels_beyond_64_bits_are_refused(label):
    for y in ([0, 1, label], np.array([0, 1, label], dtype=object), [0.5, 1, label]):
        with pytest.raises(ValueError, match=r"y must hold|Unknown label type"):
            encode_labels(y, 3)


def test_a_second_fit_into_the_same_folder_is_refused_before_it_trains(data, tmp_path, capsys):
    out = tmp_path / "deep" / "run"
    with claimed(out):
        assert main(["discover", str(data), "--out", str(out), *QUICK]) == 2
        assert "another process is making right now" in capsys.readouterr().err
    assert not out.parent.exists(), "the folder that was made for the claim is removed again"
    assert main(["discover", str(data), "--out", str(out), *QUICK]) == 0
    assert sorted(p.name for p in out.parent.iterdir()) == ["run"]


def test_a_claim_ends_with_its_process(tmp_path):
    code = "from pathlib import Path; import sys, os\nfrom cdknet.runs.files import claimed\n"
    code += "c = claimed(Path(sys.argv[1])); c.__enter__(); os._exit(1)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")]).returncode == 1
    assert (tmp_path / ".run.lock").exists()
    with claimed(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_folder_that_cannot_be_written_is_noticed_before_the_work():
    with pytest.raises(PermissionError, match=r"must lie in a folder you may write to\. Got /proc"):
        check_writable(Path("/proc/x"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_with_the_name_of_the_file():
    with pytest.raises(OSError, match="/dev/full") as caught:
        write_through(Path("/dev/full"), b"x")
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_fills_up_leaves_what_can_be_resumed_and_says_how(data, tmp_path, monkeypatch, capsys):
    import cdknet.cli.fits as fits

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/samples.npy")

    command = ["discover", str(data), "--out", str(tmp_path / "run"), *QUICK]
    with monkeypatch.context() as patch:
        patch.setattr(fits, "_save", full)
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "run/samples.npy" in said
        assert "Add --resume to continue." in said
        patch.setattr(ClassDiscovery, "fit", full)
        assert main([*command[:3], str(tmp_path / "other"), *command[4:]]) == 2
        assert not (tmp_path / "other.partial").exists(), "nothing was learned: nothing stays"
    assert main([*command, "--resume"]) == 0
    assert not (tmp_path / "run.partial").exists()
