"""scikit-learn's own checks, on the default estimator and on the paper's.

They fit on labelled data only, which is nothing to discover in: `hides_some` marks every third label as
unknown, so that the checks meet an ordinary fit.
"""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from cdknet import CDKNet, ClassDiscovery

TINY = {"n_new_classes": 2, "calibrate": False, "random_state": 0}
SHORT = {  # of every fit, so that the checks take a minute and not an hour
    "pretrain_epochs": 1,
    "discover_epochs": 1,
    "expand_epochs": 1,
    "expand_steps": 0,
    "view_steps": 1,
    "head_steps": 1,
    "view_batch_size": 16,
    "feature_size": 4,
    "kmeans_restarts": 1,
}


def hides_some(y):
    if y is not None:
        y = np.array(np.asarray(y), dtype=object)
        if len(y) > 6:
            y[::3] = -1
    return y


class Default(ClassDiscovery):
    def fit(self, X, y):
        return super().fit(X, hides_some(y))

    def checked_params(self):
        return {**super().checked_params(), **SHORT}


class Papers(CDKNet):
    def fit(self, X, y):
        return super().fit(X, hides_some(y))

    def checked_params(self):
        return {**super().checked_params(), **SHORT}


PREDICTS_NEW = "predicts classes that are not in y: that is what it is for"
ROUNDING = "batch normalisation differs in the seventh digit between batches of other sizes"
ANY_OPTION = "its signature ends in **options, which the check takes for a parameter of that name"
EXPECTED_TO_FAIL = {
    "check_classifiers_classes": PREDICTS_NEW,
    "check_classifiers_train": PREDICTS_NEW,
    "check_classifiers_train(readonly_memmap=True)": PREDICTS_NEW,
    "check_classifiers_train(readonly_memmap=True,X_dtype=float32)": PREDICTS_NEW,
}
OF_THE_DEFAULT = {
    **EXPECTED_TO_FAIL,
    "check_do_not_raise_errors_in_init_or_set_params": ANY_OPTION,
}


MAY_FAIL = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")  # by processor


def expected_to_fail(estimator):
    return OF_THE_DEFAULT if isinstance(estimator, Default) else EXPECTED_TO_FAIL


@parametrize_with_checks([Default(**TINY), Papers(**TINY)], expected_failed_checks=expected_to_fail)
@pytest.mark.filterwarnings("ignore::cdknet.data.checks.DoubtfulData")  # it hides labels at random
def test_scikit_learn_check(estimator, check):
    try:
        check(estimator)
    except AssertionError:
        if check.func.__name__ in MAY_FAIL and isinstance(estimator, Default):
            pytest.xfail(ROUNDING)
        raise
