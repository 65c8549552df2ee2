"""Each stage on a few blobs, ready to be called with other options."""

from cdknet.core.seeds import seeded
from cdknet.fit.expand import expand
from cdknet.fit.pipeline import taught_by
from cdknet.fit.plan import resolve
from cdknet.fit.pretrain import pretrain
from cdknet.methods import method_of
from cdknet.nets.architectures import build_network
from cdknet.training.context import FitContext

from contracts import blobs_for_stages

PROBLEM, TRUTH = blobs_for_stages()
FIRST = {"pretrain_epochs": 4, "early_stopping": False}
SECOND = {"method": "cd-knet", "discover_epochs": 4, "turn_tolerance": 0.0}
PLUS = {"method": "cd-knet+", "view_steps": 4, "head_steps": 4, "view_batch_size": 64}


def context_of(seed=0, history=None, checkpoint=None, **parts):
    """The context of a fit: what is not given is as in a fit that nobody watches."""
    given = {"history": history, "checkpoint": checkpoint, **parts}
    return FitContext(seed=seed, **{name: part for name, part in given.items() if part is not None})


def resolved(options, context=None, problem=PROBLEM):
    """The options of a method, all of them set, for a problem."""
    params = {"n_new_classes": 2, **options}
    shape = problem.inputs.sample_shape
    return resolve(params, shape, problem.n_old_classes, context or FitContext()).options


def first(options=None, **kwargs):
    with seeded(0):
        network = build_network((6,), 3)
    context = context_of(**kwargs)
    return pretrain(network, PROBLEM, resolved({**SECOND, **FIRST, **(options or {})}, context), context)


def second(options=None, **kwargs):
    context = context_of(**kwargs)
    chosen = resolved({**SECOND, **(options or {})}, context)
    return method_of("cd-knet").discover(first().network, PROBLEM, chosen, context)


def third(options=None, views=None, found=None, **kwargs):
    few = {**SECOND, "expand_epochs": 4, "expand_steps": 0}
    chosen = resolved({**few, **(options or {})})
    found = found or second()
    return expand(found, *taught_by(PROBLEM, found, None), chosen, context_of(**kwargs), views)


def plus(options=None, **kwargs):
    """Stage 2 of CD-KNet+."""
    with seeded(0):
        network = build_network((6,), 3, architecture="small")
    context = context_of(**kwargs)
    chosen = resolved({**PLUS, **(options or {})}, context)
    return method_of("cd-knet+").discover(network, PROBLEM, chosen, context)


def led(options=None, **kwargs):
    """The same where the old labels lead: two epochs of them, two with heads."""
    return plus(options={"lead": "labels", "label_epochs": 5, **(options or {})}, **kwargs)
