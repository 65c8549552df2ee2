"""The orderings that the paper claims, each tested over the seeds that both sides have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.reproduce.markdown import section
from experiments.reproduce.plan import DATASETS, IMAGES, Cell, canonical_cell
from experiments.reproduce.runner import Lines, seeds_of


class Claim(NamedTuple):
    """The paper says that `better` beats `worse`, in ACC on held-out samples."""

    text: str
    better: tuple[str, dict[str, Any]]
    worse: tuple[str, dict[str, Any]]
    datasets: tuple[str, ...] = DATASETS


CLAIMS = (
    Claim("Expansion helps CD-KNet", ("cd-knet-exp", {}), ("cd-knet", {})),
    Claim("Expansion helps UCD-KNet", ("ucd-knet-exp", {}), ("ucd-knet", {})),
    Claim("Expansion helps SSCD", ("sscd-exp", {}), ("sscd", {})),
    Claim("Old labels help: lambda 10 beats 0", ("cd-knet-exp", {}), ("ucd-knet-exp", {})),
    Claim("lambda 0 beats infinity", ("ucd-knet", {}), ("cd-knet-inf", {}), ("fashion-mnist",)),
    Claim("CD-KNet-Exp beats SSCD-Exp", ("cd-knet-exp", {}), ("sscd-exp", {})),
    Claim("CD-KNet-Exp beats DEC", ("cd-knet-exp", {}), ("dec", {}), IMAGES),
    Claim("CD-KNet-Exp beats DAC", ("cd-knet-exp", {}), ("dac", {}), IMAGES),
    Claim(
        "Last two layers beat the last", ("cd-knet-exp", {}), ("cd-knet-exp", {"expansion": "last"}), IMAGES
    ),
    Claim("Last two layers beat all", ("cd-knet-exp", {}), ("cd-knet-exp", {"expansion": "all"}), IMAGES),
    Claim("CD-KNet-Exp beats k-means on samples (our own question)", ("cd-knet-exp", {}), ("k-means", {})),
)
ENOUGH = Claim(
    "A kernel on 3-5 % of the samples does as well as on 10 %",
    ("cd-knet-exp", {}),
    ("cd-knet-exp", {"subsample": 0.10}),
)


def claims_table(lines: Lines) -> str:
    """Each ordering that the paper claims, tested over the seeds that both sides have."""
    out = []
    for claim in CLAIMS:
        for dataset in claim.datasets:
            differences = paired(lines, dataset, claim)
            if differences:
                n, mean, p = len(differences), float(np.mean(differences)), p_greater(differences)
                numbers = [str(n), f"{mean:+.3f}", f"{p:.3f}"]
                out.append([claim.text, dataset, *numbers, verdict(mean, p, n)])
    for dataset in DATASETS:
        found = seeds_of(lines, Cell(dataset, "cd-knet-exp", 0))
        for word, when in (("new classes competing", "old_after"), ("among old classes", "old_among_old")):
            gaps = [line[when] - line["old_before"] for line in found if line.get(when) is not None]
            out += _within(f"Old-class accuracy is preserved, {word}", dataset, gaps, 0.01)
    for dataset in IMAGES:
        gaps = paired(lines, dataset, ENOUGH)
        out += _within(ENOUGH.text, dataset, gaps, 0.03)
    return section("claims", ["claim", "set", "seeds", "difference:", "p:", "verdict"], out)


def _within(text: str, dataset: str, gaps: Sequence[float], allowed: float) -> list[list[str]]:
    """The row of a claim that at most `allowed` is lost: gaps + `allowed` are above 0."""
    if not gaps:
        return []
    spare = np.add(gaps, allowed)
    p = p_greater(spare.tolist())
    stated = f"{text} (within {allowed:g})".replace("0.", ".")
    word = verdict(float(spare.mean()), p, len(gaps))
    return [[stated, dataset, str(len(gaps)), f"{np.mean(gaps):+.3f}", f"{p:.3f}", word]]


def paired(lines: Lines, dataset: str, claim: Claim) -> list[float]:
    """Differences in ACC between the sides of a claim, for each seed that both have."""
    pairs = []
    for seed in range(100):
        sides = [
            canonical_cell(dataset, method, seed, "quick", changes).key
            for method, changes in (claim.better, claim.worse)
        ]
        if all(key in lines for key in sides):
            better, worse = (lines[key]["test"]["acc"] for key in sides)
            pairs.append(better - worse)
    return pairs


def p_greater(differences: Sequence[float]) -> float:
    """p of a one-sided t-test that the mean is above 0; 1/2 for a single value or no spread."""
    from scipy.stats import t

    n = len(differences)
    deviation = float(np.std(differences, ddof=1)) if n > 1 else 0.0
    if deviation == 0:
        return 0.5
    return float(t.sf(np.mean(differences) / (deviation / math.sqrt(n)), n - 1))


def verdict(difference: float, p: float, n: int) -> str:
    """held, reversed or open: see pages/claims.md."""
    if n < 2:
        return "open (one seed)"
    if p < 0.05:
        return "held"
    if p > 0.95:
        return "reversed"
    return "open, " + ("leaning to held" if difference > 0 else "leaning against")
