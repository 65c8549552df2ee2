"""Can the confidence of a fit be trusted? What CD-KNet+-Exp expects of itself, against the truth.

Fits the default to each set, with its calibration on hidden old classes. Then compares `confidence_` of the
unlabelled samples with their true classes. The truth is for this report alone: nothing is chosen by it.

    python benchmarks/confidence_study.py [SET ...] [--seeds 2] [--cache FOLDER]

Each finished fit is a line in results/confidence.jsonl, which `cdknet reproduce page` reads; run again to
resume. With `--cache`, stage 2 comes from the cache of `cdknet reproduce` if it is there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bench import check_names, finished, start, study_parser
from cdknet import ClassDiscovery, data
from cdknet.core.metrics import new_class_confidence
from cdknet.runs.files import append_jsonl
from cdknet.training.memory import keep_freed_memory
from cdknet.trust.confidence import HALVES

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist", "rf-50-sim", "cifar-100")


def run_cell(name: str, seed: int, cache: Path | None) -> dict[str, Any]:
    """Fit one set, and score its confidence."""
    problem = data.load(name).problem("paper", seed=seed)
    start = time.perf_counter()
    model = ClassDiscovery(
        n_new_classes=problem.n_new_classes,
        random_state=seed,
        unlabelled="new",
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
    parser = study_parser(__doc__, "confidence.jsonl", seeds=2)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--cache", type=Path, help="the folder given to `cdknet reproduce --cache`")
    arguments = start(parser)
    check_names(parser, "SET", arguments.sets, SETS)
    keep_freed_memory()
    lines = finished(arguments.results)
    done = {(line["set"], line["seed"]) for line in lines if line.get("halves") == HALVES}
    for seed in range(arguments.seeds):
        for name in arguments.sets or SETS:
            if (name, seed) in done:
                continue
            line = {"set": name, "seed": seed, "cores": os.cpu_count()}
            line |= run_cell(name, seed, arguments.cache)
            append_jsonl(arguments.results, line)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
