"""Which cells the paper's tables and figures have, and the options of each. No torch here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

INFINITY = float("inf")

# The rows of the tables: the options of each method that differ from the defaults.
_ON_SAMPLES = {"standardize": False, "normalize_features": False, "expansion": "none"}
METHODS: dict[str, dict[str, Any]] = {
    "k-means": {"method": "sscd", "network": "none", **_ON_SAMPLES},
    "spectral": {"method": "spectral", "network": "pca", **_ON_SAMPLES},
    "sscd": {"method": "sscd", "expansion": "none"},
    "sscd-last": {"method": "sscd", "expansion": "last"},
    "sscd-dynamic": {"method": "sscd-dynamic", "expansion": "last", "discover_epochs": 4},
    "sscd-exp": {"method": "sscd"},
    "ucd-knet": {"method": "cd-knet", "label_weight": 0.0, "expansion": "none"},
    "ucd-knet-exp": {"method": "cd-knet", "label_weight": 0.0},
    "cd-knet": {"method": "cd-knet", "expansion": "none"},
    "cd-knet-exp": {"method": "cd-knet"},
    "cd-knet-inf": {"method": "cd-knet", "label_weight": INFINITY, "expansion": "none"},
    "cd-knet-inf-exp": {"method": "cd-knet", "label_weight": INFINITY},
    "dec": {"method": "dec", "expansion": "none", "discover_epochs": 10},
    "dac": {"method": "dac", "expansion": "none", "discover_epochs": 2},
    "pairwise": {"method": "pairwise", "expansion": "none"},
    "uno": {"method": "cd-knet+", "view_weight": 0.0, "heads": 4, "readout": "heads", "expansion": "none"},
    "simgcd": {
        "method": "cd-knet+",
        "view_term": "contrast",
        "view_weight": 1.0,
        "heads": 4,
        "head_targets": "sharpened",
        "readout": "heads",
        "expansion": "none",
    },
    "orca": {
        "method": "cd-knet+",
        "view_term": "contrast",
        "view_weight": 1.0,
        "heads": 4,
        "head_targets": "paired",
        "readout": "heads",
        "expansion": "none",
    },
    "simclr": {
        "method": "cd-knet+",
        "view_term": "contrast",
        "view_weight": 1.0,
        "label_weight": 0.0,
        "heads": 0,
        "readout": "spectral",
        "expansion": "none",
    },
    "cd-knet+": {"method": "cd-knet+", "expansion": "none"},
    "cd-knet+-exp": {"method": "cd-knet+"},
}
TITLES = {
    "k-means": "k-means on samples",
    "spectral": "spectral, 15-NN graph on 50 PCA axes",
    "sscd": "SSCD",
    "sscd-last": "SSCD, last layer grown (static)",
    "sscd-dynamic": "SSCD, last layer grown (dynamic)",
    "sscd-exp": "SSCD-Exp",
    "ucd-knet": "UCD-KNet",
    "ucd-knet-exp": "UCD-KNet-Exp",
    "cd-knet": "CD-KNet",
    "cd-knet-exp": "CD-KNet-Exp",
    "cd-knet-inf": "CD-KNet, lambda = inf",
    "cd-knet-inf-exp": "CD-KNet-Exp, lambda = inf",
    "dec": "DEC",
    "dac": "DAC",
    "pairwise": "pairwise similarity",
    "uno": "balanced heads (UNO's idea)",
    "simgcd": "contrast and sharpened heads (SimGCD's idea)",
    "orca": "contrast and paired heads (ORCA's idea)",
    "simclr": "contrast (SimCLR), then spectral",
    "cd-knet+": "CD-KNet+ (ours, not the paper's)",
    "cd-knet+-exp": "CD-KNet+-Exp (ours, not the paper's)",
}
BASELINES = ("k-means", "spectral")
SSCD = ("sscd", "sscd-last", "sscd-dynamic", "sscd-exp")
KNETS = ("ucd-knet", "ucd-knet-exp", "cd-knet", "cd-knet-exp")
RIVALS = ("dec", "dac", "pairwise")
MODERN = ("uno", "simgcd", "simclr")  # later than the paper; same networks and augmented views as ours
FOR_MIXED = ("orca",)  # rows of the tables on mixed data only
OURS = ("cd-knet+", "cd-knet+-exp")
IMAGES = ("mnist", "fashion-mnist", "cifar-100")
DATASETS = (*IMAGES, "rf-50-sim", "wifi-csi-30")

# Version of the clustering, which no option records. Results of an earlier version are stale.
# 1: spectral clustering split large classes in two, and clusterings that agreed on it were not questioned.
# 2: for vectors, clusters followed gaps even where there were more gaps than classes, and augmented views had
#    the same weight as those of pictures.
CLUSTERING_VERSION, VECTOR_VERSION = 2, 3
VECTORS = ("wifi-csi-30",)

# Budgets: options that are the same for every method on a data set.
_RATES = {"mnist": 0.03, "fashion-mnist": 0.05, "cifar-100": 0.05, "rf-50-sim": 0.05}
_EPOCHS = {"cifar-100": (70, 20, 30), "rf-50-sim": (25, 10, 25)}  # Table II; 50, 20, 30 for MNIST
_NEVER_ENOUGH = ("cifar-100", "rf-50-sim")  # accuracy stays below .8, the former default of `enough`
_LEARNING_RATES = {"mnist": 0.01, "fashion-mnist": 0.01, "cifar-100": 0.0001}
BUDGETS = ("quick", "paper")  # pages/budget-*.md describe them


def budget_options(budget: str, dataset: str) -> dict[str, Any]:
    """The options that a budget sets for a data set, for every method."""
    check_names("budget", [budget], BUDGETS)
    common: dict[str, Any] = {"precision": "fastest"}
    if dataset in _RATES:
        common |= {"subsample": _RATES[dataset], "min_subsample": 0}
    if budget == "quick":
        common |= {} if dataset in _NEVER_ENOUGH else {"enough": 1.0}
        first = 25 if dataset == "rf-50-sim" else 8
        return common | {"pretrain_epochs": first, "patience": 2, "expand_epochs": 1, "expand_steps": 400}
    first, second, third = _EPOCHS.get(dataset, (50, 20, 30))
    return common | {
        "pretrain_epochs": first,
        "early_stopping": False,
        "discover_epochs": second,
        "turn_tolerance": 0.0,
        "expand_epochs": third,
        "expand_steps": 0,
        "learning_rate": _LEARNING_RATES.get(dataset, 0.001),
    }


class Cell(NamedTuple):
    """One fit: a data set, a method, a seed, a budget, and options changed on top of them.

    The hidden classes are the paper's or, with `split`, as many drawn at random with that seed.
    """

    dataset: str
    method: str
    seed: int
    budget: str = "quick"
    changes: tuple[tuple[str, Any], ...] = ()
    split: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options passed to the estimator, besides n_new_classes and the seed."""
        own_budget = self.method in (*BASELINES, *MODERN, *FOR_MIXED, *OURS)
        budget = {} if own_budget else budget_options(self.budget, self.dataset)
        return budget | METHODS[self.method] | dict(self.changes)

    @property
    def clustering_version(self) -> int:
        """The version of the clustering that the result depends on; 0: on none."""
        options = self.options
        plus, readout = options["method"] == "cd-knet+", options.get("readout", "agreed")
        if plus and self.dataset in VECTORS and (readout == "agreed" or "view_weight" not in options):
            return VECTOR_VERSION
        by_graph = options["method"] == "spectral" or (plus and readout in ("agreed", "spectral"))
        return CLUSTERING_VERSION if by_graph else 0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Cell:
        """The cell that a line in results/ describes under "cell"."""
        changes = saved.get("changes", {}).items()
        changes = tuple(sorted((name, INFINITY if value == "inf" else value) for name, value in changes))
        return cls(**{**saved, "changes": changes})

    @property
    def key(self) -> str:
        """The cell as text; a cell that two tables share has one key."""
        changes = "".join(f" {name}={value}" for name, value in self.changes)
        split = "" if self.split is None else f" split={self.split}"
        return f"{self.dataset} {self.method} {self.budget} seed={self.seed}{split}{changes}"


@dataclass(frozen=True)
class Table:
    """A table or figure: its rows, its data sets, and how many seeds each row gets at most."""

    title: str
    datasets: tuple[str, ...]
    rows: tuple[tuple[str, dict[str, Any]], ...]  # method, options changed
    max_seeds: int = 5
    fewer_seeds: dict[str, int] = field(default_factory=dict)  # by method
    splits: int = 0  # this many random splits of the classes instead of the paper's split

    def cells(
        self,
        *,
        seeds: int = 5,
        budget: str = "quick",
        datasets: Sequence[str] = (),
        methods: Sequence[str] = (),
    ) -> list[Cell]:
        """Every cell, seed by seed, so that an interrupted run has about as many seeds of each row."""
        chosen = tuple(datasets) or self.datasets
        rows = [row for row in self.rows if not methods or row[0] in methods]
        out: dict[Cell, None] = {}
        for seed in range(min(seeds, self.max_seeds)):
            for split in range(self.splits) if self.splits else (None,):
                for dataset in chosen:
                    for method, changes in rows:
                        if seed < self._seeds(method, dataset):
                            cell = canonical_cell(dataset, method, seed, budget, changes)
                            out[cell._replace(split=split)] = None
        return list(out)

    def _seeds(self, method: str, dataset: str) -> int:
        if dataset == "cifar-100":
            return 1 if method in (*RIVALS, *MODERN) else self.max_seeds if method in OURS else 3
        return self.fewer_seeds.get(method, self.max_seeds)


def canonical_cell(dataset: str, method: str, seed: int, budget: str, changes: dict[str, Any]) -> Cell:
    """A cell under its canonical name: without changes that change nothing, or as the method they make it."""
    base = Cell(dataset, method, seed, budget)
    if changes.get("subsample") == 0:  # nothing to fine-tune on: features stay as after stage 1
        return Cell(dataset, "sscd-exp", seed, budget)
    real = {k: v for k, v in changes.items() if base.options.get(k, _DEFAULTS.get(k)) != v}
    for name in METHODS:
        other = Cell(dataset, name, seed, budget)
        if real and name not in (*MODERN, *OURS) and other.options == base.options | real:
            return other
    return Cell(dataset, method, seed, budget, tuple(sorted(real.items())))


_DEFAULTS = {"expansion": "last-two", "label_weight": 10.0}
_LAMBDAS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, INFINITY)
_SHARES = (0.0, 0.01, 0.03, 0.05, 0.07, 0.10)
_FEWER = dict.fromkeys((*RIVALS, *MODERN), 3)

UNCHANGED = "unchanged"
OPEN = "open"  # mixed unlabelled data, not of the paper: open_plan.py

ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    UNCHANGED: ("cd-knet+-exp", {}),
    "no augmented views: mu = 0": ("cd-knet+-exp", {"view_weight": 0.0}),
    "no collapse term: gamma = 0": ("cd-knet+-exp", {"collapse_weight": 0.0}),
    "no old labels: lambda = 0": ("cd-knet+-exp", {"label_weight": 0.0}),
    "no heads": ("cd-knet+-exp", {"heads": 0}),
    "with U as well: nu = 1": ("cd-knet+-exp", {"spectral_weight": 1.0}),
    "contrastive loss instead of HSIC for views": (
        "cd-knet+-exp",
        {"view_term": "contrast", "view_weight": 1.0},
    ),
    "sharpened instead of balanced targets": ("cd-knet+-exp", {"head_targets": "sharpened"}),
    "clusters by k-means": ("cd-knet+-exp", {"readout": "k-means"}),
    "clusters by the heads": ("cd-knet+-exp", {"readout": "heads"}),
    "the paper's network": ("cd-knet+-exp", {"network": "paper"}),
    "no stage 3": ("cd-knet+", {}),
}

# What the paper leaves open about its own method: one of our choices replaced at a time.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    UNCHANGED: ("cd-knet", {}),
    "stage 2 at .01, the paper's learning rate": ("cd-knet", {"discover_learning_rate": 0.01}),
    "the same, in batches of 256": ("cd-knet", {"discover_learning_rate": 0.01, "discover_batch_size": 256}),
    "features not normalised to the unit sphere": ("cd-knet", {"normalize_features": False}),
    "stage 1 stops at accuracy .8": ("cd-knet", {"enough": 0.8}),
    "rate .01, batches of 256, features not normalised": (
        "cd-knet",
        {
            "discover_learning_rate": 0.01,
            "discover_batch_size": 256,
            "normalize_features": False,
        },
    ),
}

TABLES = {
    "table3": Table(
        "Table III: class discovery, all methods on all sets",
        DATASETS,
        tuple((m, {}) for m in (*BASELINES, *SSCD, *KNETS, "pairwise", *MODERN, *OURS)),
        fewer_seeds=_FEWER,
    ),
    "table4": Table(
        "Table IV: against unsupervised clustering",
        DATASETS,  # the paper: images only
        tuple((m, {}) for m in ("dec", "dac", "cd-knet-exp")),
        fewer_seeds=_FEWER,
    ),
    "table5": Table(
        "Table V: the weight of the old labels",
        ("fashion-mnist",),
        tuple(("cd-knet", {"label_weight": weight}) for weight in _LAMBDAS),
        max_seeds=2,
    ),
    "table6": Table(
        "Table VI: old and new classes before and after expansion",
        ("mnist",),
        tuple((m, {}) for m in ("sscd-exp", "ucd-knet-exp", "cd-knet-exp")),
    ),
    "fig3": Table(
        "Fig. 3: the embedding of CD-KNet-Exp and SSCD-Exp",
        ("mnist",),
        tuple((m, {}) for m in ("cd-knet-exp", "sscd-exp")),
        max_seeds=1,
    ),
    "fig4": Table(
        "Fig. 4: expansion strategies",
        IMAGES,
        tuple(("cd-knet-exp", {"expansion": e}) for e in ("none", "last", "last-two", "all")),
        max_seeds=2,
    ),
    "fig5": Table(
        "Fig. 5: the share of samples in the kernel",
        IMAGES,
        tuple(("cd-knet-exp", {"subsample": share}) for share in _SHARES),
        max_seeds=2,
    ),
    "ablation": Table(
        "Ablation of CD-KNet+-Exp: one part removed or replaced at a time",
        ("fashion-mnist", "wifi-csi-30", "digits"),
        tuple(ABLATIONS.values()),
        max_seeds=3,
    ),
    "variants": Table(
        "CD-KNet, what the paper leaves open: one of our choices replaced at a time",
        ("mnist", "fashion-mnist"),
        tuple(VARIANTS.values()),
        max_seeds=2,
    ),
    "splits": Table(
        "Random splits of the classes, one seed each",
        ("mnist", "fashion-mnist"),
        tuple((m, {}) for m in ("k-means", "sscd-exp", "cd-knet-exp", "cd-knet+-exp")),
        max_seeds=1,
        splits=10,
    ),
}


NAMES = (*TABLES, OPEN, "all", "page")  # what `cdknet reproduce` knows


def plan(
    what: str,
    *,
    seeds: int = 5,
    budget: str = "quick",
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Cell]:
    """The cells of a table, a figure, or all of them."""
    check_names("what to reproduce", [what], [*TABLES, "all"])
    check_names("budget", [budget], BUDGETS)
    check_names("datasets", datasets, [*DATASETS, "digits"])
    check_names("methods", methods, METHODS)
    cells: dict[Cell, None] = {}
    for table in TABLES.values() if what == "all" else [TABLES[what]]:
        selected = [d for d in datasets if what != "all" or d in table.datasets]
        if datasets and not selected:
            continue
        for cell in table.cells(seeds=seeds, budget=budget, datasets=selected, methods=methods):
            cells[cell] = None
    if not cells:
        raise ValueError(f"{what} must have a cell left to run. Got none for those datasets and methods.")
    return list(cells)


def check_names(what: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raise for the first name that is not known, with the closest known one."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{what} must be among {', '.join(known)}. Got {name!r}.{hint}")
