"""Folders of images: the layout, the resize rule, grey or colour, and harmful images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from specimens import make_images, some_samples

from cdknet import data


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **options)


def refused(folder, match, **options):
    with pytest.raises(ValueError, match=match):
        data.open(folder, **options)


def test_a_flat_folder_has_no_labels(tmp_path):
    X, _ = some_samples(3, 8)
    for i in range(3):
        save(tmp_path / f"{i}.png", X[i])
    samples = data.open(tmp_path)
    assert samples.y is None
    assert samples.ids.tolist() == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(samples.X, X)
    assert samples.notes == ("not resized: every image has 8 x 8 pixels", "grey: no image has colour")


def test_class_folders_are_labels_and_the_unlabelled_folder_is_none(tmp_path):
    for folder in ("cat", "dog", "Unlabelled"):
        save(tmp_path / folder / "a.png", np.zeros((8, 8)))
    assert data.open(tmp_path).y.tolist() == ["-1", "cat", "dog"]
    assert data.open(tmp_path).ids.tolist() == ["Unlabelled/a.png", "cat/a.png", "dog/a.png"]


@pytest.mark.parametrize("shape", [(8, 8), (40, 100), (100, 40), (8, 64), (300, 300)])
def test_resizing_keeps_a_constant_image_constant_and_the_centre_central(shape, tmp_path):
    save(tmp_path / "constant" / "a.png", np.full(shape, 77))
    centred = np.zeros(shape)
    h, w = shape
    short = min(h, w)
    centred[(h - short) // 2 : (h + short) // 2, (w - short) // 2 : (w + short) // 2] = 200
    save(tmp_path / "centred" / "a.png", centred)
    samples = data.open(tmp_path, image_size=16)
    assert samples.X.shape == (2, 16, 16)
    assert (samples.X[samples.y == "constant"] == 77).all()
    inner = samples.X[samples.y == "centred"][0, 2:-2, 2:-2]
    assert np.abs(inner.astype(int) - 200).max() <= 20  # everything outside the centre square is cropped


def test_the_notes_state_the_resize_rule(tmp_path):
    save(tmp_path / "a.png", np.zeros((20, 30)))
    assert data.open(tmp_path).X.shape == (1, 20, 30)
    save(tmp_path / "b.png", np.zeros((30, 20)))
    samples = data.open(tmp_path)
    assert samples.X.shape == (2, 32, 32)
    assert samples.notes[0].startswith("resized to 32 x 32 (sizes differ): shorter side scaled to 32")
    assert data.open(tmp_path, image_size=20).notes[0].startswith("resized to 20 x 20 (as requested)")
    (tmp_path / "b.png").unlink()
    save(tmp_path / "a.png", np.zeros((65, 65)))
    assert data.open(tmp_path).notes[0].startswith("resized to 32 x 32 (larger than 64 pixels)")
    for size in (0, 3, 5000):
        refused(tmp_path, "image_size must be from 4 to 1024", image_size=size)


def test_colour_is_decided_once_for_the_folder(tmp_path):
    X, y = some_samples(6, 8)
    make_images(tmp_path, X, y)
    coloured = np.zeros((8, 8, 3))
    coloured[..., 0] = 250
    save(tmp_path / "zebra" / "late.png", coloured)
    samples = data.open(tmp_path)
    assert samples.X.shape == (7, 3, 8, 8)
    assert "colour: at least one image has colour" in samples.notes
    np.testing.assert_array_equal(samples.X[-1], coloured.transpose(2, 0, 1))
    for i, name in enumerate(samples.ids[:-1]):
        grey = X[int(name.split("/")[1].removesuffix(".png"))]
        np.testing.assert_array_equal(samples.X[i], np.stack([grey] * 3))


def test_size_and_colour_can_be_requested(tmp_path):
    coloured = np.zeros((8, 8, 3))
    coloured[..., 0] = 250
    save(tmp_path / "a.png", coloured)
    save(tmp_path / "b.png", np.full((20, 30), 7))
    grey = data.open(tmp_path, shape=(8, 10))
    assert grey.X.shape == (2, 8, 10)
    assert (grey.X[0] == 75).all()  # .299 x 250
    assert (grey.X[1] == 7).all()
    assert data.open(tmp_path, shape=(1, 8, 8)).X.shape == (2, 1, 8, 8)
    (tmp_path / "a.png").unlink()
    np.testing.assert_array_equal(data.open(tmp_path, shape=(3, 8, 8)).X, np.full((1, 3, 8, 8), 7))
    same = data.open(tmp_path, shape=(20, 30))
    assert same.notes == ("not resized: every image has 20 x 30 pixels", "grey: as requested")
    for shape in ((2, 198), (4, 8, 8), (64,), (8, 5000)):
        refused(tmp_path, "shape must be height x width", shape=shape)
    refused(tmp_path, "without image_size", shape=(8, 8), image_size=8)


def test_a_colour_file_without_colour_is_grey(tmp_path):
    grey = some_samples(1, 8)[0][0]
    save(tmp_path / "a.png", np.stack([grey] * 3, axis=-1))
    np.testing.assert_array_equal(data.open(tmp_path).X[0], grey)


def test_transparency_is_shown_on_white_and_noted(tmp_path):
    pixels = np.zeros((8, 8, 4))
    pixels[:4, :, 3] = 255
    save(tmp_path / "a.png", pixels)
    samples = data.open(tmp_path)
    np.testing.assert_array_equal(samples.X[0], np.repeat([0, 255], 4)[:, None] * np.ones((1, 8)))
    assert "1 images with transparency shown on white" in samples.notes


def test_sixteen_bit_images_are_scaled_not_clipped(tmp_path):
    deep = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    np.testing.assert_array_equal(data.open(tmp_path).X[0], deep // 257)


def test_photographs_are_turned_upright(tmp_path):
    pixels = np.zeros((8, 16), np.uint8)
    pixels[:, 8:] = 255  # right half white
    turned = Image.Exif()
    turned[0x0112] = 6  # rotate a quarter turn clockwise
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=turned, quality=95)
    X = data.open(tmp_path).X[0]
    assert X.shape == (16, 8)
    assert X[:7].mean() < 10
    assert X[9:].mean() > 245


def test_files_that_are_not_images_are_left_out_and_noted(tmp_path):
    save(tmp_path / "cat" / "a.png", np.zeros((8, 8)))
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "README.md").write_text("x")
    (tmp_path / ".DS_Store").write_text("x")
    (tmp_path / "cat" / "Thumbs.db").write_text("x")
    samples = data.open(tmp_path)
    assert "2 files that are not images were left out: README.md, cat/notes.txt" in samples.notes


def test_ambiguous_layouts_are_refused(tmp_path):
    refused(tmp_path, r"must hold images .*Got neither")
    (tmp_path / "cat").mkdir()
    refused(tmp_path, "class folder cat/ must hold an image")
    save(tmp_path / "cat" / "a.png", np.zeros((8, 8)))
    save(tmp_path / "loose.png", np.zeros((8, 8)))
    refused(tmp_path, r"Got both.*Move the loose images into unlabelled/")
    (tmp_path / "loose.png").unlink()
    save(tmp_path / "cat" / "deeper" / "a.png", np.zeros((8, 8)))
    refused(tmp_path, "Got the folder cat/deeper/")


def test_another_format_under_an_image_name_is_refused(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    refused(tmp_path, r"a\.png: not a valid PNG, JPEG or WebP image")


def test_a_file_name_with_odd_characters_is_unchanged(tmp_path):
    save(tmp_path / "größe 1, «a».png", np.zeros((8, 8)))
    assert data.open(tmp_path).ids.tolist() == ["größe 1, «a».png"]


def test_a_file_name_that_is_not_text_is_refused(tmp_path):
    save(tmp_path / "a.png", np.zeros((8, 8)))
    try:
        (tmp_path / "a.png").rename(tmp_path / "a\udcff.png")
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    refused(tmp_path, "paths must be valid Unicode")
