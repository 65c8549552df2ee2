"""all-MiniLM-L6-v2: a BERT of six layers, and the mean of its outputs over the tokens, at unit length."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from .registry import Apply, Encoder

WORDS, PLACES, WIDTH, LAYERS, HEADS, INNER = 30_522, 512, 384, 6, 12, 1536
PADDING = 0  # the token of that name


class Layer(nn.Module):
    """Attention among the tokens of a text, then a small network on each token."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.attended_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.outer_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, used: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            part(x).view(n, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=used[:, None, None, :])
        x = self.attended_norm(x + self.attended(mixed.transpose(1, 2).reshape(n, length, WIDTH)))
        return self.outer_norm(x + self.outer(F.gelu(self.inner(x))))  # type: ignore[no-any-return]


class MiniLM(nn.Module):
    """Tokens (n, length), and which of them are of the text, to vectors (n, 384) of unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.types = nn.Embedding(2, WIDTH)  # the first or the second text of a pair: always the first here
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: Tensor, used: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.types.weight[0])
        for layer in self.layers:
            x = layer(x, used)
        weight = used[:, :, None].to(x.dtype)
        return F.normalize((x * weight).sum(dim=1) / weight.sum(dim=1), dim=1)


# From the names in the file to ours.
NAMES = (
    (r"^embeddings\.word_embeddings", "words"),
    (r"^embeddings\.position_embeddings", "places"),
    (r"^embeddings\.token_type_embeddings", "types"),
    (r"^embeddings\.LayerNorm", "norm"),
    (r"^encoder\.layer\.", "layers."),
    (r"attention\.self\.", ""),
    (r"attention\.output\.dense", "attended"),
    (r"attention\.output\.LayerNorm", "attended_norm"),
    (r"intermediate\.dense", "inner"),
    (r"output\.dense", "outer"),
    (r"output\.LayerNorm", "outer_norm"),
)
UNUSED = re.compile(r"pooler\.|embeddings\.position_ids")


def load(encoder: Encoder) -> Apply:
    """The function that encodes a batch of texts."""
    assert encoder.tokenizer is not None
    tokens_of, content = encoder.read(encoder.tokenizer), encoder.read(encoder.weights)
    from safetensors.torch import load as read_weights
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokens_of.decode())
    tokenizer.enable_truncation(encoder.reads_at_most or PLACES)
    tokenizer.no_padding()
    weights = {}
    for name, value in read_weights(content).items():
        if not UNUSED.match(name):
            for pattern, ours in NAMES:
                name = re.sub(pattern, ours, name)
            weights[name] = value
    with torch.device("meta"):  # without values: all of them come from the file
        model = MiniLM()
    model.load_state_dict(weights, assign=True)
    model.eval()

    @torch.inference_mode()
    def apply(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        tokens = torch.full((len(rows), max(map(len, rows))), PADDING)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
        used = torch.arange(tokens.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        vectors: NDArray[np.float32] = model(tokens, used).numpy()
        return vectors

    return apply
