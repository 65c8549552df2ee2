"""scikit-learn's own checks of an estimator.

They fit on labelled data only, which is nothing to discover in: `HidesSome` marks the last third of the
labelled rows as unknown and hands the rest over, so that the checks meet an ordinary fit.
"""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from cdknet import ClassDiscovery

TINY = {
    "n_new_classes": 2,
    "method": "cd-knet",  # batch normalisation differs in the seventh digit between batches; a check minds
    "pretrain_epochs": 1,
    "discover_epochs": 1,
    "expand_epochs": 1,
    "expand_steps": 0,
    "view_steps": 1,
    "head_steps": 1,
    "view_batch_size": 16,
    "feature_size": 4,
    "kmeans_restarts": 1,
    "calibrate": False,
    "random_state": 0,
}


class HidesSome(ClassDiscovery):
    """Hides the label of every third sample."""

    def fit(self, X, y):
        if y is not None:
            y = np.array(np.asarray(y), dtype=object)
            if len(y) > 6:
                y[::3] = -1
        return super().fit(X, y)


PREDICTS_NEW = "predicts classes that are not in y: that is what it is for"
EXPECTED_TO_FAIL = {
    "check_classifiers_classes": PREDICTS_NEW,
    "check_classifiers_train": PREDICTS_NEW,
    "check_classifiers_train(readonly_memmap=True)": PREDICTS_NEW,
    "check_classifiers_train(readonly_memmap=True,X_dtype=float32)": PREDICTS_NEW,
}


@parametrize_with_checks([HidesSome(**TINY)], expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL)
@pytest.mark.filterwarnings("ignore::cdknet.data.checks.DoubtfulData")  # it hides labels at random
def test_scikit_learn_check(estimator, check):
    check(estimator)
