"""Equal inputs give equal bits: repeated fits, each in a process of its own; and with one and two threads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.reliability import Figures, tries

FIT = """
import json, sys
import numpy as np
from sklearn.datasets import load_digits
from cdknet import ClassDiscovery
digits = load_digits()
rows = np.random.default_rng(int(sys.argv[1])).choice(len(digits.target), 260, replace=False)
X, t = digits.images[rows], digits.target[rows]
y = np.where((t < 5) & (np.arange(260) % 2 == 0), t, -1)
model = ClassDiscovery(
    n_new_classes=5, random_state=int(sys.argv[1]), calibrate=False, discover_epochs=3, expand_epochs=3,
    expand_steps=0, view_steps=20,
).fit(X, y)
proba = model.predict_proba(X)
print(json.dumps([model.labels_.tolist(), proba.tobytes().hex(), model.confidence_.tobytes().hex()]))
"""


def _fit(seed: int, threads: int) -> Any:
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(seed)], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def fits(count: int, seed: int, folder: Path) -> Figures:
    """The same fit `count` times with one thread: labels, probabilities and confidences to the bit."""
    digests = [hashlib.sha256(json.dumps(_fit(seed, 1)).encode()).hexdigest() for _ in tries(count)]
    most = Counter(digests).most_common(1)[0][1]
    return {
        "fits": len(digests),
        "different_results": len(set(digests)),
        "broken": len(digests) - most,
        "examples": [],
    }


def threads(count: int, seed: int, folder: Path) -> Figures:
    """How many labels of 260 differ between one thread and two: not promised, as --seed's help says."""
    differ = []
    for k in tries(count):
        one, two = _fit(seed + k, 1), _fit(seed + k, 2)
        differ.append(sum(a != b for a, b in zip(one[0], two[0], strict=True)))
    return {"fits": len(differ), "samples": 260, "labels_that_differ": differ, "broken": 0, "examples": []}
