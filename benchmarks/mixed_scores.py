"""What tells old from new among unlabelled samples? Decided on hidden *old* classes.

    python benchmarks/mixed_scores.py [SET ...] --cache FOLDER [--results FILE]

Each problem hides some old classes of a set and mixes unlabelled samples of the others in: half of these
have labels, and a fifth of those become spies. CD-KNet+ is trained as for a fit, with half the steps. Then
each score of "looks old" sorts the pool. The truth of the hidden classes only enters the report.

The cache has what the trainings gave (minutes each), so that scores can be compared again in seconds. Each
problem is a line in the results file; run again to resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor

from bench import check_names, finished, print_table, start, study_parser
from cdknet.core.mixture import AXES, MANY_COLUMNS, combined, forest_share, smoothed, sort_pool
from cdknet.core.openworld import UNLABELED, mix
from cdknet.fit.pipeline import build, with_spies
from cdknet.fit.plan import resolve
from cdknet.methods.cdknet_plus import learn
from cdknet.nets.network import embed, flat_inputs
from cdknet.options import all_options
from cdknet.runs.files import append_jsonl
from cdknet.training.context import FitContext
from cdknet.training.memory import keep_freed_memory
from cdknet.training.problem import Problem
from choose_defaults import fold_problem, old_classes

SETS = ("digits", "fashion-mnist", "mnist", "wifi-csi-30")
PACE, BATCH = 0.5, 256  # as in rehearsals
FOLDS: dict[str, list[tuple[int, ...]]] = {
    "digits": [(3, 4), (0, 1), (1, 3)],
    "mnist": [(3, 4), (0, 1), (1, 3)],
    "fashion-mnist": [(2, 4), (0, 3), (1, 3), (0, 2), (3, 4), (1, 4), (0, 1)],  # most with a look-alike known
}
SHARES = (0.5, 0.2, 0.8)
SCORES = ("heads", "forest", "both")


def hidden_sets(dataset: str) -> list[tuple[Any, ...]]:
    """The old classes that each fold hides."""
    if dataset in FOLDS:
        return FOLDS[dataset]
    _, old = old_classes(dataset)
    orders = [np.random.default_rng(fold).permutation(old) for fold in range(2)]
    return [tuple(sorted(order[: len(old) // 3].tolist())) for order in orders]


def trained(dataset: str, fold: int, share: float) -> dict[str, NDArray[Any]]:
    """What a score can read of the pool, whose spies come last, and of the labelled samples after it."""
    hidden = hidden_sets(dataset)[fold]
    problem = mix(fold_problem(dataset, hidden, fold), labelled=0.5, share=share, seed=fold)
    X, y = problem.train.X, problem.train.y
    old = np.unique(y[y != UNLABELED])
    context = FitContext(seed=fold)
    params = {name: option.default for name, option in all_options().items()}
    params |= {"method": "cd-knet+", "n_new_classes": len(hidden), "unlabelled": "mixed"}
    plan = resolve(params, tuple(X.shape[1:]), len(old), context)
    plan = plan.rehearsal(len(hidden), len(old), PACE, BATCH, mixed=True)
    known = Problem.from_arrays(X, np.where(y == UNLABELED, UNLABELED, np.searchsorted(old, y)))
    network, _ = build(known, plan, context)
    pool = with_spies(known, context.seed)
    learned = learn(network, pool, plan.options, context)
    rows = torch.cat([pool.new_rows, pool.old_rows])
    z = embed(learned.network, pool.inputs, rows, normalize=True).features
    with torch.inference_mode():
        mass = learned.heads.old_mass(z)
    flat = flat_inputs(learned.network, pool.inputs, rows)
    if flat.shape[1] > MANY_COLUMNS:  # what the forest would do, kept small
        U, s, _ = torch.pca_lowrank(flat, AXES)
        flat = U * s
    return {
        "z": z.numpy(),
        "mass": mass.numpy(),
        "flat": flat.numpy(),
        "is_new": problem.train_truth.is_new[rows.numpy()],
        "n_pool": np.array(len(pool.new_rows)),
        "n_spies": np.array(pool.n_spies),
    }


def compared(found: dict[str, NDArray[Any]]) -> dict[str, dict[str, float]]:
    """AUROC, balanced accuracy and share found by each score."""
    n, n_spies = int(found["n_pool"]), int(found["n_spies"])
    z, mass, flat = (torch.from_numpy(found[name]) for name in ("z", "mass", "flat"))
    heads, forest = smoothed(mass[:n], z[:n]), forest_share(flat[:n], flat[n:])
    scores = dict(zip(SCORES, (heads, forest, combined([heads, forest], n_spies)), strict=True))
    is_old = ~found["is_new"][: n - n_spies]
    return {name: _scored(score, is_old, n_spies) for name, score in scores.items()}


def _scored(score: Tensor, is_old: NDArray[np.bool_], n_spies: int) -> dict[str, float]:
    found = sort_pool(score, torch.zeros(len(score), dtype=torch.long), n_spies, 1)
    said_old = ~found.is_new.numpy()
    return {
        "auroc": round(float(roc_auc_score(is_old, score[: len(is_old)].numpy())), 4),
        "balanced": round(float((said_old[is_old].mean() + (~said_old)[~is_old].mean()) / 2), 4),
        "share": round(found.share, 4),
        "true": round(float(is_old.mean()), 4),
        "holds": bool(found.low <= is_old.mean() <= found.high),
    }


def report(lines: list[dict[str, Any]]) -> None:
    """Print the means by set and score."""
    rows = []
    for name in [*dict.fromkeys(line["set"] for line in lines), "all"]:
        some = [line for line in lines if name in (line["set"], "all")]
        for score in SCORES:
            cells = [line["scores"][score] for line in some]
            error = [abs(cell["share"] - cell["true"]) for cell in cells]
            means = [np.mean([cell[key] for cell in cells]) for key in ("auroc", "balanced")]
            values = [f"{value:.3f}" for value in (*means, float(np.mean(error)))]
            rows.append([f"{name}, {score}", str(len(cells)), *values, str(sum(c["holds"] for c in cells))])
    print_table(["", "problems", "AUROC", "balanced", "error of the share", "interval right"], rows)


def main() -> None:
    parser = study_parser(__doc__, "mixed_scores.jsonl")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SETS)}")
    parser.add_argument("--cache", type=Path, required=True, help="folder of what the trainings gave")
    parser.add_argument("--only-cached", action="store_true", help="train nothing")
    arguments = start(parser)
    check_names(parser, "SET", arguments.sets, SETS)
    keep_freed_memory()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    done = {(line["set"], line["fold"], line["share"]) for line in finished(arguments.results)}
    for share in SHARES:
        for name in arguments.sets or SETS:
            for fold in range(len(hidden_sets(name)) if share == 0.5 else 2):
                path = arguments.cache / f"{name}-{fold}-{share}.npz"
                if (name, fold, share) in done or (arguments.only_cached and not path.exists()):
                    continue
                if not path.exists():
                    np.savez(path, **trained(name, fold, share))
                with np.load(path) as saved:
                    scores = compared(dict(saved))
                hidden = [str(c) for c in hidden_sets(name)[fold]]
                line = {"set": name, "fold": fold, "share": share, "hidden": hidden, "scores": scores}
                append_jsonl(arguments.results, line)
    report(finished(arguments.results))


if __name__ == "__main__":
    main()
