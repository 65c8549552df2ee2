"""Each stage on a few blobs, ready to be called with other options."""

from cdknet.core.seeds import seeded
from cdknet.fit.expand import expand
from cdknet.fit.pretrain import pretrain
from cdknet.methods.cdknet import discover
from cdknet.methods.cdknet_plus import discover_plus
from cdknet.nets.architectures import build_network
from cdknet.options import DiscoverOptions, ExpandOptions, PretrainOptions

from contracts import blobs_for_stages

PROBLEM, TRUTH = blobs_for_stages()
FIRST = {"pretrain_epochs": 4, "early_stopping": False}
SECOND = {"n_new_classes": 2, "discover_epochs": 4, "turn_tolerance": 0.0, "method": "cd-knet"}
PLUS = {"n_new_classes": 2, "view_steps": 4, "head_steps": 4, "view_batch_size": 64}


def first(**kwargs):
    with seeded(0):
        network = build_network((6,), 3)
    options = PretrainOptions(**{**FIRST, **kwargs.pop("options", {})})
    return pretrain(network, PROBLEM, options, **kwargs)


def second(**kwargs):
    options = DiscoverOptions(**{**SECOND, **kwargs.pop("options", {})})
    return discover(first().network, PROBLEM, options, **kwargs)


def third(**kwargs):
    options = ExpandOptions(**{"expand_epochs": 4, "expand_steps": 0, **kwargs.pop("options", {})})
    return expand(second(), PROBLEM, options, **kwargs)


def plus(**kwargs):
    """Stage 2 of CD-KNet+."""
    with seeded(0):
        network = build_network((6,), 3, architecture="small")
    options = DiscoverOptions(**{**PLUS, **kwargs.pop("options", {})})
    return discover_plus(network, PROBLEM, options, **kwargs)


def led(**kwargs):
    """The same where the old labels lead: two epochs of them, two with heads."""
    return plus(options={"lead": "labels", "label_epochs": 5, **kwargs.pop("options", {})}, **kwargs)
