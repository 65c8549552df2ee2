"""How many new classes? What `count_new_classes` finds, and what simple rules find in the same features.

    python benchmarks/n_classes.py [SET ...] [--results FILE]

Each cell is a set with some of its classes old (half of their samples labelled) and some new, at most
`PER_CLASS` samples of a class. Rivals see the features of the first of the two short fits, of the unlabelled
samples that look new: the best silhouette of k-means, the largest eigengap of a neighbour graph, HDBSCAN,
each less the number of old classes that are hidden there. The true number only enters the report. Each
finished cell is a line in the results file; run again to resume.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import torch

from bench import check_names, finished, print_table, start, study_parser
from cdknet import ClassDiscovery, data
from cdknet.core.clustering import cluster
from cdknet.core.neighbors import neighbor_graph
from cdknet.core.openworld import UNLABELED, OpenWorldProblem, hide_classes, mix
from cdknet.core.seeds import derive_seed
from cdknet.core.spectral import graph_embedding
from cdknet.inputs.labels import encode_labels
from cdknet.runs.files import append_jsonl
from cdknet.training.context import FitContext
from cdknet.training.memory import keep_freed_memory
from cdknet.trust import n_classes

SETS = ("digits", "wifi-csi-30", "mnist", "fashion-mnist")
PER_CLASS = 300
SPLITS = {  # old classes, new ones, share of old samples among the unlabelled ones (None: as it comes)
    "digits": [(o, n, None) for o, n in ((7, 3), (5, 5), (6, 4), (8, 2), (4, 6), (8, 1), (9, 0))],
    "mnist": [(7, 3, None), (5, 5, None), (6, 4, 0.0)],
    "fashion-mnist": [(7, 3, None), (5, 5, None), (6, 4, 0.0)],
    "wifi-csi-30": [(10, 4, None), (12, 10, None), (15, 15, None), (20, 10, None)],
}
MOST = 3  # times the true number: as far as rivals look, at least 12


def problem_of(name: str, n_old: int, n_new: int, share: float | None, seed: int) -> OpenWorldProblem:
    """The cell as a problem; the seed draws which classes are old, new and left out."""
    whole = data.load(name).problem("paper", seed=0)
    X, y = np.asarray(whole.train.X), whole.train_truth.y
    draw = np.random.default_rng(seed)
    classes = draw.permutation(np.unique(y))
    old, new = classes[:n_old], classes[n_old : n_old + n_new]
    parts = [draw.permutation(np.flatnonzero(y == c))[:PER_CLASS] for c in (*old, *new)]
    rows = np.sort(np.concatenate(parts))
    hidden = new if n_new else old[-1:]  # hide_classes wants one; without new ones, its labels come back
    seen, truth = hide_classes(X[rows], y[rows], hidden.tolist())
    problem = OpenWorldProblem(seen, truth, X[:1], truth)
    if n_new:
        return mix(problem, labelled=0.5, share=share, seed=seed)
    labelled = draw.random(len(rows)) < 0.5
    known = np.where(labelled, y[rows], UNLABELED)
    return OpenWorldProblem(type(seen)(X[rows], known), truth, X[:1], truth)


def counted(problem: OpenWorldProblem, seed: int) -> tuple[n_classes.Count, torch.Tensor, int]:
    """What `count_new_classes` finds; features of its first fit that look new, and classes hidden there."""
    labels, X = encode_labels(problem.train.y, len(problem.train.y)), np.asarray(problem.train.X)
    context, n_old = FitContext(seed=seed), len(labels.old_classes)
    params, folds = ClassDiscovery().checked_params(), n_classes.hidden_folds(labels.targets, seed)
    sights = []
    for number, hidden in enumerate(folds):
        plan = n_classes.counting_plan(params, tuple(X.shape[1:]), n_old, len(hidden), context)
        inner = context.changed(seed=derive_seed(seed, "count", number))
        sights.append(n_classes.sight(X, labels.targets, hidden, plan, inner))
    curves = [n_classes.curve_of(sight.seen) for sight in sights]
    found = n_classes.summed_up(curves, [hidden.tolist() for hidden in folds], n_old)
    seen, z = sights[0]
    return found, z[torch.from_numpy(seen.unlabelled & (seen.p_new > 0.5))], len(folds[0])


def silhouette(z: torch.Tensor, most: int) -> int:
    from sklearn.metrics import silhouette_score

    scores = {
        k: silhouette_score(z.numpy(), cluster(z, k, restarts=3).numpy(), sample_size=3000, random_state=0)
        for k in range(2, most + 1)
    }
    return max(scores, key=lambda k: scores[k])


def eigengap(z: torch.Tensor, most: int) -> int:
    values = graph_embedding(neighbor_graph(z), most + 1, centered=False).values
    return int((values[:-1] - values[1:]).argmax()) + 1


def hdbscan(z: torch.Tensor, most: int) -> int:
    from sklearn.cluster import HDBSCAN

    return int(HDBSCAN(min_cluster_size=max(5, len(z) // 100), copy=True).fit_predict(z.numpy()).max()) + 1


RIVALS = {"silhouette": silhouette, "eigengap": eigengap, "HDBSCAN": hdbscan}


def run_cell(name: str, split: tuple[int, int, float | None], seed: int) -> dict[str, Any]:
    n_old, n_new, share = split
    problem = problem_of(name, n_old, n_new, share, seed)
    begun = time.perf_counter()
    found, z, hidden = counted(problem, seed)
    most = max(12, MOST * n_new) + hidden
    rivals = {rival: rule(z, most) if len(z) > most + 1 else 0 for rival, rule in RIVALS.items()}
    return {
        "set": name,
        "old": n_old,
        "new": n_new,
        "share": share,
        "seed": seed,
        "found": found.value,
        "low": found.low,
        "high": found.high,
        "uncertain": found.report["uncertain"],
        "by_fold": found.report["by_fold"],
        "rivals": {rival: max(0, k - hidden) for rival, k in rivals.items()},
        "seconds": round(time.perf_counter() - begun),
    }


def report(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        between = f"{line['found']} ({line['low']}-{line['high']})" + ("?" if line["uncertain"] else "")
        name = f"{line['set']}, {line['old']} old, seed {line['seed']}"
        rows.append([name, str(line["new"]), between, *(str(line["rivals"][rival]) for rival in RIVALS)])
    print_table(["", "new", "found", *RIVALS], rows)
    errors = {"found": [abs(line["found"] - line["new"]) for line in lines]}
    errors |= {rival: [abs(line["rivals"][rival] - line["new"]) for line in lines] for rival in RIVALS}
    inside = sum(line["low"] <= line["new"] <= line["high"] for line in lines)
    means = ", ".join(f"{name} {np.mean(values):.2f}" for name, values in errors.items())
    print(f"\nMean absolute error: {means}. The interval holds the truth in {inside} of {len(lines)}.")


def main() -> None:
    parser = study_parser(__doc__, "n_classes.jsonl", seeds=1)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    arguments = start(parser)
    check_names(parser, "SET", arguments.sets, SETS)
    keep_freed_memory()
    keys = ("set", "old", "new", "share", "seed")
    done = {tuple(line[key] for key in keys) for line in finished(arguments.results)}
    for seed in range(arguments.seeds):
        for name in arguments.sets or SETS:
            for split in SPLITS[name]:
                if (name, *split, seed) not in done:
                    line = run_cell(name, split, seed)
                    append_jsonl(arguments.results, line)
                    print(json.dumps(line), flush=True)
    report(finished(arguments.results))


if __name__ == "__main__":
    main()
