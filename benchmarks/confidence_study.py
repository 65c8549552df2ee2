"""Is the confidence of a fit worth believing? What CD-KNet+-Exp expects of itself, against the truth.

Fits the default to each set with its calibration on hidden old classes, then compares `confidence_` of the
unlabelled samples with what they really are. The truth is for this report alone: nothing is chosen by it.

    python benchmarks/confidence_study.py [SET ...] [--seeds 2] [--cache FOLDER]

A finished fit is a line in results/confidence.jsonl, which `cdknet reproduce page` reads; running again goes
on where it stopped. `--cache` takes stage 2 from the cache of `cdknet reproduce` where it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from cdknet import ClassDiscovery, data
from cdknet.core.metrics import new_class_confidence
from cdknet.fit.pipeline import keep_freed_memory
from cdknet.trust.confidence import HALVES

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist", "rf-50-sim", "cifar-100")


def run_cell(name: str, seed: int, cache: Path | None) -> dict[str, Any]:
    problem = data.load(name).problem("paper", seed=seed)
    start = time.perf_counter()
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes,
        random_state=seed,
        stage_cache=None if cache is None else cache / name,
    ).fit(problem.train.X, problem.train.y)
    found = new_class_confidence(problem.train_truth, model.labels_, model.confidence_)
    facts = model.calibration_
    return {
        **{k: None if v is None else round(v, 4) for k, v in found._asdict().items()},
        "rehearsed": [round(a, 4) for a in facts.get("accuracies", [])],
        "error_on_old": facts.get("error_after"),
        "halves": HALVES,
        "slope": facts.get("slope"),
        "offset": facts.get("offset"),
        "calibrate_seconds": facts.get("seconds"),
        "seconds": round(time.perf_counter() - start),
    }


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="where `cdknet reproduce --cache` keeps stages")
    parser.add_argument("--results", type=Path, default=Path("results/confidence.jsonl"))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sets if name not in SETS]
    if unknown:
        parser.error(f"SET must be any of {', '.join(SETS)}. Got {unknown[0]}.")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    kept = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    done = {(line["set"], line["seed"]) for line in map(json.loads, kept) if line.get("halves") == HALVES}
    for seed in range(arguments.seeds):
        for name in arguments.sets or SETS:
            if (name, seed) in done:
                continue
            line = {
                "set": name,
                "seed": seed,
                "cores": os.cpu_count(),
                **run_cell(name, seed, arguments.cache),
            }
            with arguments.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
