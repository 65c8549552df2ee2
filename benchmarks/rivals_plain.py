"""Are our rivals implemented well? DEC and DAC in the setting of their own papers: MNIST, no labels.

    python benchmarks/rivals_plain.py [dec] [dac] [--seeds 1]

Scores are over all images that were clustered, the first ones of MNIST's training part. The papers report
accuracies of .843 (DEC) and .978 (DAC) over all 70,000. The settings fit one core and about half an hour per
run: fewer images and epochs than the papers, in bfloat16.

Each finished run is a line in results/rivals_plain.jsonl, which `cdknet reproduce page` reads. Run again to
resume, also in the middle of a run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import check_names, finished, start, study_parser
from cdknet import data
from cdknet.core.metrics import scores
from cdknet.methods.base import Discovery
from cdknet.methods.dac import plain_dac
from cdknet.methods.dec import plain_dec
from cdknet.runs.checkpoints import FolderCheckpoint
from cdknet.runs.files import append_jsonl
from cdknet.training.context import FitContext
from cdknet.training.history import History
from cdknet.training.memory import keep_freed_memory
from experiments.reproduce.paper import PLAIN

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
    """Cluster MNIST with one method; `folder` has its checkpoint."""
    settings = dict(SETTINGS[method])
    mnist = data.load("mnist")
    images = settings.pop("images")
    X, y = mnist.X_train[:images], mnist.y_train[:images]
    checkpoint = FolderCheckpoint(folder, {"method": method, "seed": seed, **SETTINGS[method]})
    history = History([show])
    start = time.process_time()
    context = FitContext(seed=seed, history=history, checkpoint=checkpoint)
    result = METHODS[method](X, 10, **settings, context=context)
    found = scores(y, result.pseudo_labels.numpy())
    return {
        **{name: round(value, 4) for name, value in found._asdict().items()},
        "seconds": round(sum(row["seconds"] for row in history)),
        "cpu_seconds_of_last_start": round(time.process_time() - start),
        "epochs": len(history),
    }


def show(row: dict[str, Any]) -> None:
    """Print one epoch."""
    cells = (f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("  " + "  ".join(cells), flush=True)


def main() -> None:
    parser = study_parser(__doc__, "rivals_plain.jsonl", seeds=1)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="dec, dac; both by default")
    arguments = start(parser)
    check_names(parser, "METHOD", arguments.methods, METHODS)
    keep_freed_memory()
    results: Path = arguments.results
    cells = finished(results)
    for seed in range(arguments.seeds):
        for method in arguments.methods or list(METHODS):
            key = {"method": method, "seed": seed, "settings": SETTINGS[method]}
            if any(all(cell.get(k) == v for k, v in key.items()) for cell in cells):
                continue
            print(f"{method}, seed {seed}", flush=True)
            folder = results.parent / f"rivals_plain-{method}-{seed}.partial"
            cell = {**key, "cores": arguments.threads, **run_cell(method, seed, folder)}
            cells.append(cell)
            append_jsonl(results, cell)
            shutil.rmtree(folder, ignore_errors=True)
    print("\nmethod  seed    acc    nmi    ari  reported acc")
    for cell in cells:
        numbers = "".join(f"{cell[name]:7.3f}" for name in ("acc", "nmi", "ari"))
        print(f"{cell['method']:6}  {cell['seed']:4}{numbers}  {PLAIN[cell['method']]:12.3f}")


if __name__ == "__main__":
    main()
