"""Which cells the tables on mixed unlabelled data have, and the options of each. No torch here.

Protocol (`cdknet.core.openworld.mix`): half of the samples of each old class are labelled. The other half and
the samples of new classes are unlabelled. The share of old samples among the unlabelled ones is as it comes
("gcd", after Generalized Category Discovery), or set by dropping samples at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.reproduce.plan import TITLES, Cell, check_names

LABELLED = 0.5  # the share of each old class that is labelled
SHARES: dict[str, float | None] = {"gcd": None, "0": 0.0, "0.2": 0.2, "0.5": 0.5, "0.8": 0.8}
FIRST_SHARES = ("gcd", "0.5")  # run before the others
OPEN_SETS = {
    "digits": "scikit-learn's digits, 0-4 old, 5-9 new",
    "mnist": "MNIST, 0-4 old, 5-9 new",
    "fashion-mnist": "Fashion-MNIST, 0-4 old, 5-9 new",
    "wifi-csi-30": "wifi-csi-30, 20 devices old, 10 new",
    "rf-50-sim": "rf-50-sim, 35 devices old, 15 new, drawn by the seed",
    "cifar-100": "CIFAR-100, 80 old, 20 new (GCD's split)",
}
NEW_CLASSES = {"cifar-100": tuple(range(80, 100))}  # where they are not those of the paper

# Version of what no option records: how unlabelled samples are sorted, and the rivals. Results of an earlier
# version are run again.
OPEN_VERSION = 2

DEFAULT = "cd-knet+-exp"
# The rows: the row of the paper's tables whose options and budget they share, and the options on top.
_MIXED = {"unlabelled": "mixed", "calibrate": False}
FITTED: dict[str, tuple[str, dict[str, Any]]] = {
    DEFAULT: (DEFAULT, {"unlabelled": "mixed", "calibrate": True}),
    "today": (DEFAULT, {"unlabelled": "new", "calibrate": False}),
    "simgcd": ("simgcd", _MIXED),
    "orca": ("orca", _MIXED),
    "cd-knet-exp": ("cd-knet-exp", _MIXED),
    "sscd": ("sscd", _MIXED),
    "sscd-softmax": ("sscd", {**_MIXED, "detector": "softmax"}),
    "spectral": ("spectral", _MIXED),
}
ON_FEATURES = ("ss-k-means-z", "pim-z")  # read the features of the default's own fit, and are run with it
ON_SAMPLES = ("ss-k-means",)
OPEN_TITLES = {
    DEFAULT: "CD-KNet+-Exp (default)",
    "today": "CD-KNet+-Exp, all unlabelled taken to be new",
    "simgcd": TITLES["simgcd"],
    "orca": TITLES["orca"],
    "cd-knet-exp": "CD-KNet-Exp, our detector first",
    "sscd": "SSCD, our detector first",
    "sscd-softmax": "SSCD with its own detector (softmax)",
    "spectral": "spectral, our detector first",
    "ss-k-means-z": "semi-supervised k-means on Z",
    "pim-z": "PIM on Z",
    "ss-k-means": "semi-supervised k-means on samples",
}


class OpenCell(NamedTuple):
    """One fit, or one rival on fixed features: a data set, a method, a seed, and a share of old samples."""

    dataset: str
    method: str
    seed: int
    share: str = "gcd"

    @property
    def fit(self) -> OpenCell | None:
        """The cell whose fit this one needs: its own or, for a rival on Z, the default's; None: no fit."""
        if self.method in ON_SAMPLES:
            return None
        return self._replace(method=DEFAULT) if self.method in ON_FEATURES else self

    @property
    def options(self) -> dict[str, Any]:
        """The options passed to the estimator, besides n_new_classes and the seed."""
        if self.fit is None:
            return {}
        row, changes = FITTED[self.fit.method]
        return Cell(self.dataset, row, self.seed).options | changes

    @property
    def key(self) -> str:
        """The cell as text."""
        return f"{self.dataset} {self.method} open share={self.share} seed={self.seed}"

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> OpenCell:
        """The cell that a line in results/ describes under "cell"."""
        return cls(**saved)


def plan_open(
    *,
    seeds: int = 5,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    shares: Sequence[str] = (),
) -> list[OpenCell]:
    """Every cell, the most useful first: seed by seed, the default before the others, FIRST_SHARES first.

    Rivals that read the default's features come right after it: one fit gives them all.
    """
    check_names("datasets", datasets, OPEN_SETS)
    check_names("methods", methods, OPEN_TITLES)
    check_names("shares", shares, SHARES)
    chosen = [method for method in OPEN_TITLES if not methods or method in methods]
    with_default = [method for method in chosen if method == DEFAULT or method in ON_FEATURES]
    others = [method for method in chosen if method not in with_default]
    wanted = tuple(shares) or tuple(SHARES)
    first = [share for share in wanted if share in FIRST_SHARES]
    rest = [share for share in wanted if share not in FIRST_SHARES]
    return [
        OpenCell(dataset, method, seed, share)
        for seed in range(seeds)
        for group in (with_default, others)
        for some in (first, rest)
        for dataset in tuple(datasets) or OPEN_SETS
        for share in some
        for method in group
    ]
