"""WordLlama: the mean of the fixed vectors of a text's tokens, at unit length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .registry import Apply, Encoder


def load(encoder: Encoder) -> Apply:
    """The function that encodes a batch of texts. The loader of the package may download: it is not used."""
    assert encoder.tokenizer is not None
    tokens_of, content = encoder.read(encoder.tokenizer), encoder.read(encoder.weights)
    from safetensors.numpy import load as read_weights
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokens_of.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    table = read_weights(content)["embedding.weight"].astype(np.float32)  # (tokens, d)

    def apply(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), table.shape[1]), np.float32)
        for i, encoding in enumerate(tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            vectors[i] = table[encoding.ids].mean(axis=0)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    return apply
