"""Data: the paper's data sets by name (`load`), a user's files (`open`), and open-world problems from both.

Importing this package is cheap: scikit-learn and pyarrow are imported only when needed, torch never.
"""

from cdknet.core.openworld import UNLABELED, HiddenTruth, OpenWorldData, OpenWorldProblem, hide_classes

from .checks import odd_labels
from .files import kinds, open
from .labelfile import attach_labels, read_labels
from .pictures import sample_sheet
from .samples import Samples
from .sets import Dataset, Provenance, describe, fetch, load, names, verify
from .store import Verified, cache_dir

__all__ = [
    "UNLABELED",
    "Dataset",
    "HiddenTruth",
    "OpenWorldData",
    "OpenWorldProblem",
    "Provenance",
    "Samples",
    "Verified",
    "attach_labels",
    "cache_dir",
    "describe",
    "fetch",
    "hide_classes",
    "kinds",
    "load",
    "names",
    "odd_labels",
    "open",
    "read_labels",
    "sample_sheet",
    "verify",
]
