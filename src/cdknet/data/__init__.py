"""Data: the paper's sets by name (`load`), a user's own files (`open`), and open-world problems of either.

Importing this is cheap: no torch, no scikit-learn, no pyarrow until a function needs it.
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
