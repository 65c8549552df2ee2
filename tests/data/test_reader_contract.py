"""The contract for every reader: valid samples, or one ValueError that names the file, nothing else."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specimens import SPECIMENS, Specimen, check_valid, some_samples

from cdknet.data import Samples

every_kind = pytest.mark.parametrize("kind", SPECIMENS)
binary_kinds = pytest.mark.parametrize("kind", [k for k, s in SPECIMENS.items() if not s.is_text])
fuzzing = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def made(kind: str, folder: Path) -> tuple[Specimen, Path]:
    specimen = SPECIMENS[kind]
    path = folder / f"some-images{specimen.suffix}"
    specimen.make(path, *some_samples())
    return specimen, path


def read_or_refuse(specimen: Specimen, path: Path) -> Samples | None:
    """Valid samples, or None if the reader refused with a ValueError that names the file."""
    refusal = None
    try:
        samples = specimen.read(path)
    except ValueError as error:
        refusal = error
    if refusal is None:
        check_valid(samples, path.stat().st_size)
        return samples
    assert type(refusal) is ValueError
    assert path.name in str(refusal), refusal
    assert "\n" not in str(refusal)
    return None


@every_kind
def test_a_valid_file_is_read(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    assert read_or_refuse(specimen, path) is not None


@every_kind
def test_a_missing_file_is_a_file_not_found_error(kind, tmp_path):
    path = tmp_path / f"absent{SPECIMENS[kind].suffix}"
    with pytest.raises(FileNotFoundError, match=r"absent.*no such file"):
        SPECIMENS[kind].read(path)


@every_kind
def test_a_folder_in_the_place_of_a_file_is_refused(kind, tmp_path):
    path = tmp_path / f"folder{SPECIMENS[kind].suffix}"
    path.mkdir()
    with pytest.raises(ValueError, match="folder"):
        SPECIMENS[kind].read(path)


@every_kind
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_never_waited_for(kind, tmp_path):
    path = tmp_path / f"pipe{SPECIMENS[kind].suffix}"
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"pipe.*regular file"):
        SPECIMENS[kind].read(path)


@every_kind
def test_an_unreadable_file_is_a_permission_error(kind, tmp_path, monkeypatch):
    specimen, path = made(kind, tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # chmod would not stop an administrator
    with pytest.raises(PermissionError, match=path.name):
        specimen.read(path)


@every_kind
def test_an_empty_file_is_refused(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"must hold data\. Got an empty file"):
        specimen.read(path)


@binary_kinds
def test_a_file_of_another_kind_is_refused(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    content = path.read_bytes()
    path.write_bytes(b"%PDF" * 3 + content[12:] + b"#")
    with pytest.raises(ValueError, match=path.name):
        specimen.read(path)


@every_kind
def test_a_file_truncated_anywhere_is_refused_or_still_valid(kind, tmp_path):
    """Every length below 300 and some above. Text may stay valid, and images without their last bytes too."""
    specimen, path = made(kind, tmp_path)
    content = path.read_bytes()
    rng = random.Random(0)
    lengths = {*range(min(300, len(content))), len(content) - 1, *rng.sample(range(len(content)), 60)}
    survived = []
    for length in sorted(lengths):
        path.write_bytes(content[:length])
        if read_or_refuse(specimen, path) is not None:
            survived.append(length)
    if not specimen.is_text:
        slack = 24 if kind in ("png", "jpeg", "webp") else 0  # checksums and end marks after the last pixel
        assert all(length >= len(content) - slack for length in survived), survived


@every_kind
def test_bytes_after_the_end_are_refused_or_harmless(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    with path.open("ab") as file:
        file.write(b"\0" * 5)
    samples = read_or_refuse(specimen, path)
    assert samples is None or not specimen.ends_exactly


@every_kind
@fuzzing
@given(data=st.data())
def test_changed_bytes_are_refused_or_still_valid(kind, data):
    with tempfile.TemporaryDirectory() as folder:
        specimen, path = made(kind, Path(folder))
        content = bytearray(path.read_bytes())
        near = min(len(content), 128)  # half of the changes are in the header, where sizes are declared
        place = st.one_of(st.integers(0, near - 1), st.integers(0, len(content) - 1))
        for at, value in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=8)):
            content[at] = value
        path.write_bytes(content)
        read_or_refuse(specimen, path)


@every_kind
@fuzzing
@given(content=st.binary(min_size=1, max_size=200))
def test_any_bytes_at_all_are_refused_or_valid(kind, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"some-images{SPECIMENS[kind].suffix}"
        path.write_bytes(content)
        read_or_refuse(SPECIMENS[kind], path)


@every_kind
def test_reading_leaves_the_file_as_it_was(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    before = path.read_bytes()
    specimen.read(path)
    assert path.read_bytes() == before


@every_kind
def test_reading_twice_gives_the_same(kind, tmp_path):
    specimen, path = made(kind, tmp_path)
    one, two = specimen.read(path), specimen.read(path)
    np.testing.assert_array_equal(one.X, two.X)
    np.testing.assert_array_equal(one.ids, two.ids)
