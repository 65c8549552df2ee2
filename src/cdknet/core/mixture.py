"""Which unlabelled samples are of old classes: their share, and a probability for each sample.

Some labelled samples hide their labels and stay among the unlabelled ones: spies. They are drawn at random
from the old classes, so they show what an unlabelled sample of an old class looks like. Let s(x) be any score
that is high for old samples, S(t) the share of spies with s >= t, and U(t) the share of unlabelled samples.
If a share π of the unlabelled samples is old, then

    U(t) = π S(t) + (1 - π) N(t) >= π S(t)       N(t): share of new samples with s >= t

so U(t) / S(t) is at least π at every t, and near π where hardly any new sample has s >= t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import Tensor

from cdknet.core.neighbors import nearest_neighbors

Floats = NDArray[np.float64]

SPIES, MOST_SPIES = 0.2, 2000  # share of the labelled samples that become spies, and their most
NEIGHBORS = 5  # samples over which a score is averaged, with the sample itself; see `smoothed`
VOTERS = 60  # neighbours of a sample among which labelled ones are counted
MOST_SEARCHED = 20_000  # samples among which neighbours are searched
THRESHOLDS = 100  # at most; quantiles of the spies' scores
LEAST_SPIES = 0.1  # share of spies that the threshold of `share_of_old` must leave
CAUTION = 4.0  # standard errors of the upper bound that chooses the threshold
CERTAINTY = 2.5  # standard errors of the interval: more than 1.645, since the threshold was chosen
CHANCE = 0.01  # share of samples that may look old by chance
EDGE = 1e-3  # scores stay this far from 0 and 1, where the logit is infinite
STEEP = 1e-4  # penalty of steep maps, for scores that separate old from new without an error
FAR_NEIGHBOR, FAR, MOST_NOISE = 5, 15.0, 0.05  # see `far_from_everything`
LEAST_OF_A_CLASS = 2  # samples per new class that are taken to be new in any case
TREES, LEAF = 300, 3  # of the forest; a sample is judged by about a third of them: see `forest_share`
AXES, MANY_COLUMNS = 50, 200  # principal axes on which the forest looks at samples of more columns than these
PARTS, FEWEST_SPIES = 5, 10  # see `combined`


class Share(NamedTuple):
    """The share of old samples among the unlabelled ones, and its 90 % interval."""

    value: float
    low: float
    high: float


class Mixture(NamedTuple):
    """What is known of each unlabelled sample (a pool without its spies)."""

    p_old: Tensor  # (n',) P(the sample is of an old class)
    best_old: Tensor  # (n',) the old class that it resembles most
    noise: Tensor  # (n',) set aside: far from everything
    is_new: Tensor  # (n',) taken to be of a new class
    share: float  # of old samples, with its 90 % interval
    low: float
    high: float
    spies: int

    @property
    def is_old(self) -> Tensor:
        """(n',) recognised as a sample of an old class."""
        return ~self.is_new & ~self.noise

    def with_noise(self, noise: Tensor) -> Mixture:
        """The same with samples of noise in between: `noise` is true for these, false for those of `self`."""

        def spread(values: Tensor) -> Tensor:
            out = torch.zeros(len(noise), dtype=values.dtype)
            out[~noise] = values
            return out

        p_old, best_old, is_new = (spread(part) for part in (self.p_old, self.best_old, self.is_new))
        return self._replace(p_old=p_old, best_old=best_old, is_new=is_new, noise=noise)


def smoothed(score: Tensor, z: Tensor, neighbors: int = NEIGHBORS) -> Tensor:
    """The mean score of each sample and its nearest neighbours in z: neighbours mostly share a class.

    In trials on hidden old classes the accuracy did not depend on their number (1 to 15), and 5 gave the
    least error of the share.
    """
    some = _some_rows(len(z))
    _, rows = nearest_neighbors(z, min(neighbors, len(some)), among=z[some])  # most find themselves, too
    return score[some][rows].mean(dim=1)


def labelled_share(z: Tensor, z_labelled: Tensor, neighbors: int = VOTERS) -> Tensor:
    """(n,) share of labelled samples among the nearest of all others: a score for any features."""
    some = _some_rows(len(z_labelled) + len(z))
    others, labelled = torch.cat([z_labelled, z])[some], some < len(z_labelled)
    _, rows = nearest_neighbors(z, min(neighbors, len(others)), among=others)  # most find themselves, too
    return labelled[rows].float().mean(dim=1)


def forest_share(x: Tensor, x_labelled: Tensor) -> Tensor:
    """(n,) how likely a forest takes each row of x for a labelled one: a score of plain samples.

    Features learned from labels may no longer see what sets a new class apart from an old one; the samples
    still show it. A row is judged by the trees that were not grown on it.
    """
    from sklearn.decomposition import PCA
    from sklearn.ensemble import ExtraTreesClassifier

    everything = torch.cat([x, x_labelled]).numpy()
    some = _some_rows(len(everything)).numpy()
    if everything.shape[1] > MANY_COLUMNS:
        axes = PCA(min(AXES, len(some)), svd_solver="randomized", random_state=0).fit(everything[some])
        everything = axes.transform(everything)
    forest = ExtraTreesClassifier(
        TREES, min_samples_leaf=LEAF, bootstrap=True, oob_score=True, random_state=0
    ).fit(everything[some], some >= len(x))
    share = np.empty(len(everything))
    others = np.setdiff1d(np.arange(len(x)), some)
    if len(others):
        share[others] = forest.predict_proba(everything[others])[:, 1]
    share[some] = forest.oob_decision_function_[:, 1]
    return torch.from_numpy(share[: len(x)])


def combined(scores: Sequence[Tensor], n_spies: int) -> Tensor:
    """(n' + spies,) the scores as one, weighed by what separates spies from unlabelled samples.

    If a score has AUROC a for old against new, it has (1 - π) a + π / 2 for spies against unlabelled samples:
    what is best for one is best for the other, and the latter needs no truth. The weights are those of a
    logistic regression, fitted without the samples that it is applied to. Where spies are too few to weigh
    the scores, the first one is taken alone. See `benchmarks/mixed_scores.py`.
    """
    if n_spies < FEWEST_SPIES or len(scores) == 1:
        return scores[0]
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    x = np.stack([_logit(score.double().numpy()) for score in scores], axis=1)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
    n = len(x) - n_spies
    is_spy = np.repeat([False, True], [n, n_spies])
    weight = np.repeat([2 * n_spies / n, 2.0], [n, n_spies])
    out = np.empty(len(x))
    parts = StratifiedKFold(PARTS, shuffle=True, random_state=0)
    for seen, unseen in parts.split(x, is_spy):
        fitted = LogisticRegression().fit(x[seen], is_spy[seen], sample_weight=weight[seen])
        out[unseen] = fitted.decision_function(x[unseen])
    return torch.from_numpy(expit(out))


def share_of_old(spies: Floats, unlabelled: Floats) -> Share:
    """π = U(t) / S(t) at the threshold t where an upper bound, `CAUTION` standard errors above it, is least.

    At high thresholds hardly any new sample is left, but the ratio is uncertain; at low ones it is precise,
    but too large if new samples are left (best-bin estimation, Garg et al. 2021). Errors are those of the
    logarithm of the ratio: a small ratio of few samples must not look certain. The interval reaches down to
    the lowest ratio, less `CHANCE`, since a new sample looks old by chance now and then. Where old and new
    samples look alike at every threshold, the share is too large, and nothing in the data shows it.
    """
    levels = np.linspace(0, 1 - LEAST_SPIES, min(THRESHOLDS, len(spies)))
    thresholds = np.unique(np.quantile(spies, levels))
    S = 1 - np.searchsorted(np.sort(spies), thresholds) / len(spies)
    U = 1 - np.searchsorted(np.sort(unlabelled), thresholds) / len(unlabelled)
    seen = np.maximum(U, 1 / len(unlabelled))
    error = np.sqrt((1 - S + 1 / len(spies)) / (S * len(spies)) + (1 - seen) / (seen * len(unlabelled)))
    best = int(np.argmin(np.log(seen / S) + CAUTION * error))
    value, reach = min(1.0, float(U[best] / S[best])), math.exp(CERTAINTY * float(error[best]))
    low = min(value / reach, float((U / S).min())) - CHANCE
    return Share(value, max(low, 0.0), min(float(seen[best] / S[best]) * reach, 1.0))


class OldMap(NamedTuple):
    """P(old | s), rising: a logistic function of the logit of the score."""

    slope: float
    offset: float

    def apply(self, score: Floats) -> Floats:
        probability: Floats = expit(self.slope * _logit(score) + self.offset)
        return probability


NONE_OLD = OldMap(0.0, -math.inf)


def fit_old_map(spies: Floats, unlabelled: Floats, share: float) -> OldMap:
    """The most likely map: P(spy | s) = P(old | s) / (1 + P(old | s)), if spies weigh as π of the others do.

    P(old | s) = π f_spies(s) / f_unlabelled(s), by Bayes. In trials on hidden old classes this was better
    than an isotonic ratio of the densities, which follows the chances of few spies.
    """
    if share <= 0:
        return NONE_OLD
    x = np.concatenate([_logit(spies), _logit(unlabelled)])
    middle, scale = float(x.mean()), max(float(x.std()), 1e-9)
    x = (x - middle) / scale
    is_spy = np.repeat([1.0, 0.0], [len(spies), len(unlabelled)])
    weight = np.repeat([share / len(spies), 1 / len(unlabelled)], [len(spies), len(unlabelled)])

    def cost(weights: Floats) -> tuple[float, Floats]:
        t = weights[0] * x + weights[1]
        P = expit(t)
        value = float(weight @ (is_spy * np.logaddexp(0, -t) + np.log1p(P))) + STEEP * weights[0] ** 2
        slope = weight * (1 - P) * (P / (1 + P) - is_spy)
        return value, np.array([float(slope @ x) + 2 * STEEP * weights[0], float(slope.sum())])

    start, bounds = np.array([2.0, 0.0]), [(0, 30), (-30, 30)]
    a, b = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return OldMap(float(a / scale), float(b - a * middle / scale))


def _logit(score: Floats) -> Floats:
    value: Floats = logit(np.clip(score, EDGE, 1 - EDGE))
    return value


def far_from_everything(x: Tensor, x_labelled: Tensor) -> Tensor:
    """(n,) noise among the rows of x: few samples that are far from all others.

    A sample is far if its distance to the `FAR_NEIGHBOR`-th nearest other is beyond the upper quartile of the
    labelled samples' by `FAR` interquartile ranges. More than `MOST_NOISE` of them are no noise: then samples
    without a label just differ from those with one.
    """
    others = torch.cat([x_labelled, x])
    others = others[_some_rows(len(others))]
    k = min(FAR_NEIGHBOR + 1, len(others))  # most samples find themselves, too
    known = _kth_distance(x_labelled[_some_rows(len(x_labelled))], others, k)
    low, high = np.quantile(known, [0.25, 0.75])
    far = _kth_distance(x, others, k) > high + FAR * (high - low)
    return torch.from_numpy(far if far.mean() <= MOST_NOISE else np.zeros(len(x), dtype=bool))


def _kth_distance(z: Tensor, among: Tensor, k: int) -> Floats:
    return nearest_neighbors(z, k, among=among)[0][:, -1].double().numpy()


def _some_rows(n: int) -> Tensor:
    """At most `MOST_SEARCHED` of n rows, drawn at random, since samples may be sorted by class."""
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(n, generator=draw)[:MOST_SEARCHED].sort().values


def share_of_spies(n_labelled: int, n_classes: int) -> float:
    """The share of labelled samples that become spies."""
    return min(SPIES, max(MOST_SPIES, n_classes) / max(n_labelled, 1))


def sort_pool(
    score: Tensor,  # (n' + spies,) how old each sample of the pool looks; the spies come last
    best_old: Tensor,  # (n' + spies,)
    n_spies: int,
    n_new_classes: int,
) -> Mixture:
    """Sort the unlabelled samples of a pool into old and new ones."""
    n = len(score) - n_spies
    s = score.double().numpy()
    unlabelled, spies = s[:n], s[n:]
    share = share_of_old(spies, unlabelled)
    p_old = torch.from_numpy(fit_old_map(spies, unlabelled, share.value).apply(unlabelled))
    is_new = p_old < 0.5
    least = min(n, LEAST_OF_A_CLASS * n_new_classes)
    if int(is_new.sum()) < least:  # hardly any looks new: the least old ones stand in, with a low P(new)
        is_new = torch.zeros(n, dtype=torch.bool)
        is_new[torch.argsort(score[:n], stable=True)[:least]] = True
    noise = torch.zeros(n, dtype=torch.bool)
    return Mixture(p_old, best_old[:n], noise, is_new, *share, n_spies)
