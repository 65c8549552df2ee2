"""DEC and DAC in their own papers' plain setting: ten MNIST digits, no labels. Are our rivals straw men?

    python benchmarks/rivals_plain.py [dec] [dac] [--seeds 1]

Scores are of all the images that were clustered, the first ones of MNIST's training part. The papers report
accuracies of .843 (DEC) and .978 (DAC), of all 70,000. A finished run is a line in
results/rivals_plain.jsonl, which `cdknet reproduce page` reads; running again goes on where it stopped, to
the epoch. Sized for one core and some half an hour a run: fewer images and epochs than the papers, in
bfloat16.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cdknet import data
from cdknet.core.metrics import scores
from cdknet.fit.pipeline import keep_freed_memory
from cdknet.methods.dac import plain_dac
from cdknet.methods.dec import plain_dec
from cdknet.methods.objective import Discovery
from cdknet.reproduce.paper import PLAIN
from cdknet.runs.checkpoints import FolderCheckpoint
from cdknet.training.history import History

METHODS: dict[str, Callable[..., Discovery]] = {"dec": plain_dec, "dac": plain_dac}
SETTINGS: dict[str, dict[str, Any]] = {
    "dec": {
        "images": 60_000,
        "layer_epochs": 20,
        "autoencoder_epochs": 150,
        "epochs": 20,
        "in_bfloat16": True,
    },
    "dac": {"images": 20_000, "epochs": 4, "last": 0.875, "in_bfloat16": True},
}


def run_cell(method: str, seed: int, folder: Path) -> dict[str, Any]:
    settings = dict(SETTINGS[method])
    mnist = data.load("mnist")
    images = settings.pop("images")
    X, y = mnist.X_train[:images], mnist.y_train[:images]
    checkpoint = FolderCheckpoint(folder, {"method": method, "seed": seed, **SETTINGS[method]})
    history = History([show])
    start = time.process_time()
    result = METHODS[method](X, 10, **settings, seed=seed, history=history, checkpoint=checkpoint)
    found = scores(y, result.pseudo_labels.numpy())
    return {
        **{name: round(value, 4) for name, value in found._asdict().items()},
        "seconds": round(sum(row["seconds"] for row in history)),
        "cpu_seconds_of_last_start": round(time.process_time() - start),
        "epochs": len(history),
    }


def show(row: dict[str, Any]) -> None:
    cells = (f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("  " + "  ".join(cells), flush=True)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="dec, dac; both by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/rivals_plain.jsonl"))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.methods if name not in METHODS]
    if unknown:
        parser.error(f"METHOD must be any of {', '.join(METHODS)}. Got {', '.join(unknown)}.")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    results: Path = arguments.results
    results.parent.mkdir(parents=True, exist_ok=True)
    cells = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for seed in range(arguments.seeds):
        for method in arguments.methods or list(METHODS):
            key = {"method": method, "seed": seed, "settings": SETTINGS[method]}
            if any(all(cell.get(k) == v for k, v in key.items()) for cell in cells):
                continue
            print(f"{method}, seed {seed}", flush=True)
            folder = results.parent / f"rivals_plain-{method}-{seed}.partial"
            cell = {**key, "cores": arguments.threads, **run_cell(method, seed, folder)}
            cells.append(cell)
            with results.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
    print("\nmethod  seed    acc    nmi    ari  reported acc")
    for cell in cells:
        numbers = "".join(f"{cell[name]:7.3f}" for name in ("acc", "nmi", "ari"))
        print(f"{cell['method']:6}  {cell['seed']:4}{numbers}  {PLAIN[cell['method']]:12.3f}")


if __name__ == "__main__":
    main()
