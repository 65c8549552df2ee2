"""The rivals: each is another way to do stage 2, with the signature of `cdknet.stages.discover`.

Stages 1 and 3 are the same for all, so that a table compares what differs. Each leaves the network it is
given untouched and can be interrupted and taken up again. docs/rivals.md says what each does and in what it
differs from its own paper.
"""

from cdknet.rivals.dac import discover_dac, plain_dac
from cdknet.rivals.dec import discover_dec, plain_dec
from cdknet.rivals.pairwise import discover_pairwise
from cdknet.rivals.sscd import is_novel, novelty_threshold, sscd_dynamic, sscd_static

__all__ = [
    "discover_dac",
    "discover_dec",
    "discover_pairwise",
    "is_novel",
    "novelty_threshold",
    "plain_dac",
    "plain_dec",
    "sscd_dynamic",
    "sscd_static",
]
