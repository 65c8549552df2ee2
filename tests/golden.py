"""Digests of tiny fits: a refactoring must not change a single bit of what is learned.

    python tests/golden.py record digests.json    with the code as it was
    python tests/golden.py check digests.json     with the code as it is

Bits depend on the processor and the version of torch, so digests are compared on one machine and are not
committed. Run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cdknet import ClassDiscovery

warnings.simplefilter("ignore")

QUICK = {
    "random_state": 3,
    "unlabelled": "new",
    "calibrate": False,
    "pretrain_epochs": 3,
    "discover_epochs": 3,
    "view_steps": 6,
    "label_epochs": 3,
    "head_steps": 6,
    "expand_epochs": 2,
    "expand_steps": 4,
    "kmeans_restarts": 2,
    "n_new_classes": 3,
}
DETECTOR = {"unlabelled": "mixed", "detector": "softmax", "pretrain_epochs": 60, "early_stopping": False}
Digests = dict[str, str]


def digest(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        array = np.ascontiguousarray(value)
        head = repr((array.shape, array.dtype.str)).encode()
        return hashlib.sha256(head + array.tobytes()).hexdigest()[:16]
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def untimed(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in ("seconds", "when")}
    if isinstance(value, list):
        return [untimed(v) for v in value]
    return value


def blobs(
    shape: tuple[int, ...], n: int = 210, n_old: int = 4, n_new: int = 3, seed: int = 0, apart: float = 1.3
) -> tuple:
    """Overlapping groups, so that methods differ."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(0, apart, (n_old + n_new, *shape))
    truth = np.arange(n) % (n_old + n_new)
    X = (centers[truth] + generator.normal(0, 1.0, (n, *shape))).astype(np.float32)
    return X, np.where(truth < n_old, truth, -1)


def of_model(model: ClassDiscovery, X: np.ndarray) -> Digests:
    parts = {
        "classes": model.classes_,
        "labels": model.labels_,
        "confidence": model.confidence_,
        "embedding": model.embedding_,
        "pseudo": model.pseudo_labels_,
        "proba": model.predict_proba(X),
        "U": model.spectral_embedding_,
        "U_rows": model.spectral_rows_,
        "history": untimed(model.history_),
        "chosen": model.chosen_,
        "calibration": untimed(model.calibration_),
        "tuning": untimed(model.tuning_),
        "validation": model.validation_accuracy_,
        "given_accuracy": model.given_accuracy_,
    }
    stages = getattr(model, "stage_networks_", {})
    parts |= {f"features of {name}": model.transform(X, stage=name) for name in sorted(stages)}
    return {name: digest(part) for name, part in parts.items()}


def fit(X: np.ndarray, y: np.ndarray, **options: Any) -> Digests:
    return of_model(ClassDiscovery(**{**QUICK, **options}).fit(X, y), X)


def saved(X: np.ndarray, y: np.ndarray, **options: Any) -> Digests:
    """A run folder: what it says, and what the loaded model answers."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        ClassDiscovery(**{**QUICK, **options}).fit(X, y).save(folder)
        model = ClassDiscovery.load(folder)
        parts = {"labels.csv": (folder / "labels.csv").read_text(), "loaded": digest(model.predict_proba(X))}
        return {name: digest(part) for name, part in parts.items()} | of_model(model, X)


class Killed(Exception):
    pass


def resumed(stage: str, epoch: int) -> Digests:
    """A fit that dies at an epoch of a stage and is begun again from its checkpoint."""
    X, y = blobs((6,))

    def kill(row: dict[str, Any]) -> None:
        if row["stage"] == stage and row["epoch"] == epoch:
            raise Killed

    found: Digests = {}
    for method in ("cd-knet+", "cd-knet", "dec", "dac", "pairwise", "sscd-dynamic"):
        with tempfile.TemporaryDirectory() as place:
            options = {**QUICK, "method": method, "checkpoint_dir": Path(place) / "unfinished"}
            options |= {"view_steps": 400, "head_steps": 400} if method == "cd-knet+" else {}
            os.environ["CDKNET_CHECKPOINT_SECONDS"] = "0"
            try:
                ClassDiscovery(**options, watchers=[kill]).fit(X, y)
            except Killed:
                found[f"{method} killed"] = "yes"
            del os.environ["CDKNET_CHECKPOINT_SECONDS"]
            parts = of_model(ClassDiscovery(**options).fit(X, y), X)
            found |= {f"{method} {name}": part for name, part in parts.items()}
    return found


def encoder() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh())


def table() -> Digests:
    """A CSV with categories, gaps and yes/no, by the command line; then predict."""
    from cdknet.cli import main

    X, y = blobs((4,))
    generator = np.random.default_rng(1)
    found: Digests = {}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "table.csv"
        with data.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["id", "a", "b", "c", "d", "colour", "smokes", "label"])
            for i, (row, label) in enumerate(zip(X, y, strict=True)):
                colour = ["red", "green", "blue"][int(generator.integers(3))]
                cells = [f"{v:.4f}" for v in row]
                cells[1] = "" if i % 17 == 0 else cells[1]
                out.writerow(
                    [f"s{i}", *cells, colour, "yes" if i % 3 else "no", "" if label < 0 else f"k{label}"]
                )
        run = Path(place) / "run"
        flags = ["--view-steps", "6", "--head-steps", "6", "--expand-epochs", "1", "--expand-steps", "4"]
        flags += ["--fill", "--seed", "2", "--kmeans-restarts", "2", "--unlabelled", "new"]
        said = main(["discover", str(data), "--new-classes", "3", "--out", str(run), *flags, "--json"])
        found["exit"] = str(said)
        said = main(["predict", str(run), str(data), "--out", str(Path(place) / "p.csv"), "--json"])
        found["exit 2"] = str(said)
        found["labels"] = digest((run / "labels.csv").read_text())
        found["predicted"] = digest((Path(place) / "p.csv").read_text())
    return found


def refined() -> Digests:
    """A review (merge, reject), then refine, with and without expansion."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.session import Session
    from cdknet.fit.refine import refine

    try:
        from cdknet.fit.refine import refine
    except ImportError:
        from cdknet.fit.refine import refine

    found: Digests = {}
    X, y = blobs((6,))
    for name, options in {
        "plus": {},
        "paper": {"method": "cd-knet"},
        "centers": {"method": "cd-knet", "expansion": "none"},
        "voters": {"expansion": "none"},
        "all": {"method": "cd-knet", "expansion": "all"},
    }.items():
        with tempfile.TemporaryDirectory() as place:
            folder, out = Path(place) / "run", Path(place) / "out"
            ClassDiscovery(**{**QUICK, **options}).fit(X, y).save(folder)
            session = Session(open_run(folder))
            session.act(0, {"kind": "merge", "classes": [4, 5], "into": 4})
            session.act(1, {"kind": "reject", "samples": [4, 11]})
            refine(folder, out)
            model = ClassDiscovery.load(out)
            found |= {f"{name} {part}": value for part, value in of_model(model, X).items()}
            found[f"{name} labels.csv"] = digest((out / "labels.csv").read_text())
    return found


def by(shape: tuple[int, ...], **options: Any) -> Callable[[], Digests]:
    return lambda: fit(*blobs(shape), **options)


def cached() -> Digests:
    """Stages shared between fits that only cluster the features another way."""
    X, y = blobs((6,))
    found: Digests = {}
    with tempfile.TemporaryDirectory() as place:
        for readout in ("agreed", "spectral", "k-means", "heads"):
            parts = fit(X, y, readout=readout, stage_cache=place)
            found |= {f"{readout} {name}": part for name, part in parts.items()}
    return found


def names() -> Digests:
    X, y = blobs((6,))
    return saved(X, np.array(["" if c < 0 else f"class {c}" for c in y]))


CASES: dict[str, Callable[[], Digests]] = {
    "cd-knet+": by((6,)),
    "cd-knet+ labels lead": by((6,), lead="labels"),
    "cd-knet+ no views": by((6,), view_weight=0.0, heads=2, head_targets="sharpened", readout="heads"),
    "cd-knet+ contrast": by((6,), view_term="contrast", spectral_weight=0.5, label_weight=0.0),
    "cd-knet+ unexpanded": by((6,), expansion="none"),
    "cd-knet+ many old": lambda: fit(*blobs((6,), n=340, n_old=31, n_new=3)),
    "cd-knet": by((6,), method="cd-knet"),
    "cd-knet lambda 0": by((6,), method="cd-knet", label_weight=0.0, expansion="none", readout="agreed"),
    "cd-knet lambda inf": by((6,), method="cd-knet", label_weight=float("inf"), expansion="last"),
    "cd-knet neighbors": by((6,), method="cd-knet", kernel="neighbors", normalize_features=False),
    "cd-knet small memory": by((6,), method="cd-knet", memory_limit=1e-4, subsample=0.9),
    "cd-knet novelty": lambda: fit(*blobs((6,), apart=4.0), **DETECTOR, method="cd-knet", readout="spectral"),
    "sscd": by((6,), method="sscd"),
    "sscd novelty": lambda: fit(*blobs((6,), apart=4.0), **DETECTOR, method="sscd", expansion="none"),
    "sscd-dynamic": by((6,), method="sscd-dynamic"),
    "spectral": by((6,), method="spectral", expansion="none"),
    "spectral expanded": by((6,), method="spectral"),
    "k-means on samples": by((6,), method="sscd", network="none", expansion="none", normalize_features=False),
    "spectral on pca": by((9,), method="spectral", network="pca", expansion="none", feature_size=4),
    "dec": by((6,), method="dec"),
    "dac": by((6,), method="dac"),
    "dac pictures": by((9, 9), method="dac"),
    "pairwise": by((6,), method="pairwise"),
    "grey images": by((12, 12)),
    "grey images, paper": by((12, 12), method="cd-knet", early_stopping=False),
    "colour images": by((3, 16, 16)),
    "colour images, paper": by((3, 12, 12), method="cd-knet"),
    "two channels": by((2, 12, 12)),
    "iq": by((2, 64)),
    "iq, paper": by((2, 64), method="cd-knet"),
    "iq heads": by((2, 64), heads=2, lead="views"),
    "short iq": by((2, 20)),
    "small pictures": by((4, 4)),
    "pixels": lambda: fit(np.clip(90 + 40 * blobs((8, 8))[0], 0, 255).astype(np.uint8), blobs((8, 8))[1]),
    "expansion all": by((12, 12), method="cd-knet", expansion="all"),
    "own encoder": lambda: fit(*blobs((6,)), encoder=encoder()),
    "own encoder, paper": lambda: fit(*blobs((6,)), encoder=encoder(), method="cd-knet"),
    "own views": lambda: fit(*blobs((6,)), views=own_views),
    "own clusterer": lambda: fit(*blobs((6,)), clusterer=own_clusterer),
    "own clusterer, dec": lambda: fit(*blobs((6,)), clusterer=own_clusterer, method="dec"),
    "calibrated": lambda: fit(*blobs((6,), n=240, n_old=6), calibrate=True),
    "calibrated, paper": lambda: fit(*blobs((6,), n=240, n_old=6), calibrate=True, method="cd-knet"),
    "calibrated grey": lambda: fit(*blobs((8, 8), n=240, n_old=6), calibrate=True),
    "tuned": lambda: fit(*blobs((6,), n=240, n_old=6), tune="old-classes", calibrate=True),
    "tuned, paper": lambda: fit(*blobs((6,), n=240, n_old=6), tune="old-classes", method="cd-knet"),
    "resume in stage 1": lambda: resumed("pretrain", 2),
    "resume in stage 2": lambda: resumed("discover", 2),
    "resume in stage 3": lambda: resumed("expand", 1),
    "stage cache": cached,
    "names, saved": names,
    "numbers, saved": lambda: saved(*blobs((6,)), method="cd-knet"),
    "voters, saved": lambda: saved(*blobs((6,)), expansion="none"),
    "tuned, saved": lambda: saved(*blobs((6,), n=240, n_old=6), tune="old-classes"),
    "table": table,
    "refine": refined,
}


def own_views(x: Any, generator: Any) -> Any:
    import torch

    return x + 0.1 * torch.randn(x.shape, generator=generator)


def own_clusterer(features: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    return (np.argsort(np.argsort(features[:, 0])) * n_clusters // len(features)).astype(int)


def main(arguments: list[str]) -> int:
    what, path, *only = arguments
    kept: dict[str, Digests] = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    bad = 0
    for name, case in CASES.items():
        if only and name not in only:
            continue
        try:
            found = case()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        if what == "record":
            kept[name] = found
            sys.stdout.write(f"{name}: {len(found)} digests {found.get('error', '')}\n")
        elif found != kept.get(name):
            bad += 1
            before = kept.get(name, {})
            parts = [k for k in found.keys() | before.keys() if found.get(k) != before.get(k)]
            sys.stdout.write(f"DIFFERS {name}: {sorted(parts)} {found.get('error', '')}\n")
        else:
            sys.stdout.write(f"same    {name}\n")
        sys.stdout.flush()
    if what == "record":
        Path(path).write_text(json.dumps(kept, indent=1))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
