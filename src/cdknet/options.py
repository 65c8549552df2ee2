"""Every option of cdknet, declared once: default, help, and what must hold. No torch here.

An option is a field of one of the groups below. What a method reads is one class that joins the groups it
needs (`METHODS`). Parameters of the estimators, flags of the command line, `config.json` and
docs/options.md all derive from these classes.

An option whose default is None is not set: `cdknet.fit.plan.resolve` sets it, once, before anything runs. Its
type is the one that it has from then on.
"""

import difflib
import math
import numbers
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, TypeVar

M = TypeVar("M", bound="MethodOptions")

DEFAULT_METHOD = "cd-knet+"


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    counts: bool = False,
) -> Any:
    """A dataclass field with its help and its bounds: least <= value, above < value, value <= most.

    `counts`: it counts epochs or steps, of which a rehearsal takes a share.
    """
    bounds = {"least": least, "above": above, "most": most}
    return field(default=default, metadata={"help": help, "choices": choices, "counts": counts, **bounds})


def changed(group: type["Options"], name: str, default: Any, choices: tuple[str, ...] | None = None) -> Any:
    """The option `name` of a group for a method that has another default, or fewer choices."""
    declared = group.__dataclass_fields__[name].metadata
    return field(default=default, metadata={**declared, "choices": choices or declared["choices"]})


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`, with the nearest one as a suggestion."""
    choices = tuple(choices)
    if value in choices:
        return
    raise ValueError(
        f"{name} must be one of {', '.join(choices)}. Got {value!r}.{did_you_mean(value, choices)}"
    )


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """A hint at the nearest of `choices`; nothing where none is near."""
    near = difflib.get_close_matches(str(value), tuple(choices), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_number(
    name: str,
    value: object,
    kind: type,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> None:
    """Raise unless `value` is a number of `kind` (int or float) within the bounds."""
    wanted = numbers.Integral if kind is int else numbers.Real
    named = (("at least", least), ("above", above), ("at most", most))
    bounds = [f"{word} {bound:g}" for word, bound in named if bound is not None]
    if isinstance(value, bool) or not isinstance(value, wanted):
        noun = "a whole number" if kind is int else "a number"
        raise ValueError(
            f"{name} must be {noun}{' ' if bounds else ''}{' and '.join(bounds)}. Got {value!r}."
        )
    number = float(value)
    inside = (
        not math.isnan(number)
        and (least is None or number >= least)
        and (above is None or number > above)
        and (most is None or number <= most)
    )
    if not inside:
        raise ValueError(f"{name} must be {' and '.join(bounds) or 'a number'}. Got {value!r}.")


@dataclass(frozen=True)
class Options:
    """A group of options. Checked when made."""

    def __post_init__(self) -> None:
        for f in fields(self):
            check_value(f, getattr(self, f.name))


def check_value(f: "Field[Any]", value: object) -> None:
    """Raise unless an option may have this value."""
    rule, kind = f.metadata, _kind(f)
    if value is None and f.default is None:
        return
    if rule["choices"]:
        check_choice(f.name, value, rule["choices"])
    elif kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{f.name} must be True or False. Got {value!r}.")
    elif kind in (int, float):
        bounds = {name: rule[name] for name in ("least", "above", "most")}
        check_number(f.name, value, kind, **bounds)


def _kind(f: "Field[Any]") -> Any:
    """The type of an option, which is text where annotations are postponed."""
    return {"int": int, "float": float, "bool": bool, "str": str}.get(str(f.type), f.type)


# The groups. What several methods read stands in one group; a heading of the help holds several groups.

NETWORK = "The network f_theta."
STAGE_1 = "Stage 1: learn the old classes."
STAGE_2 = "Stage 2: features in which the new classes separate, then clusters."
STAGE_3 = "Stage 3: grow the network and teach it the discovered classes."
TRUST = "What old classes say about the new ones: which options to use, and how sure a label is."


@dataclass(frozen=True)
class NetworkOptions(Options):
    heading: ClassVar[str] = NETWORK

    network: str = option(
        "auto",
        "network to train; paper: the paper's network for samples of this shape; auto: small for CD-KNet+, "
        "paper for the others; none and pca: the samples as they are, for methods sscd and spectral without "
        "expansion",
        choices=("auto", "paper", "paper-mnist", "paper-cifar", "paper-rf", "mlp", "small", "none", "pca"),
    )
    feature_size: int = option(
        None, "units of the penultimate layer, the features; unset: the network's own", least=2
    )
    standardize: bool = option(
        None, "centre and scale the input by its own statistics; unset: yes, except before your own encoder"
    )
    precision: str = option(
        "auto",
        "arithmetic of training; fastest: bfloat16 on a processor that has it, about 1.4 times as fast, else "
        "float32; auto: fastest for CD-KNet+ with a built-in network, else float32",
        choices=("auto", "float32", "bfloat16", "fastest"),
    )
    learning_rate: float = option(0.001, "Adam's learning rate, all stages", above=0)
    batch_size: int = option(128, "samples per step in stages 1 and 3", least=2)


@dataclass(frozen=True)
class PretrainOptions(Options):
    heading: ClassVar[str] = STAGE_1

    pretrain_epochs: int = option(
        50, "stage 1: at most this many epochs over the old classes", least=1, counts=True
    )
    early_stopping: bool = option(
        True, "stage 1: stop when held-out old samples stop improving; off: run every epoch"
    )
    enough: float = option(
        1.0,
        "stage 1: held-out accuracy at which to stop at once; 1: only when it no longer improves",
        above=0,
        most=1,
    )
    patience: int = option(5, "stage 1: epochs without a better held-out accuracy before stopping", least=1)
    validation_fraction: float = option(
        0.1, "stage 1: share of the old samples held out for early stopping", above=0, most=0.5
    )


@dataclass(frozen=True)
class DiscoverOptions(Options):
    heading: ClassVar[str] = STAGE_2

    n_new_classes: int = option(
        None, "how many new classes to look for; if not set, that is found on hidden old classes", least=1
    )
    unlabelled: str = option(
        "mixed",
        "what the unlabelled samples are: mixed (of old classes, of new ones, and noise), or new (all are of "
        "new classes, as in the paper)",
        choices=("mixed", "new"),
    )
    noise: bool = option(
        True, "mixed: set aside the few unlabelled samples that are far from everything; off: none"
    )


@dataclass(frozen=True)
class AfterStage1Options(Options):
    """For methods that start from the network of stage 1."""

    heading: ClassVar[str] = STAGE_2

    detector: str = option(
        "spies",
        "mixed: how old samples are recognised before stage 2: spies (labelled samples whose labels are "
        "hidden), or softmax (as sure as held-out old ones, SSCD's detector)",
        choices=("spies", "softmax"),
    )
    normalize_features: bool = option(
        True, "scale features to unit length before kernels and clustering; off: as the network gives them"
    )


@dataclass(frozen=True)
class LabelOptions(Options):
    heading: ClassVar[str] = STAGE_2

    label_weight: float = option(
        10.0,
        "stage 2: lambda, weight of the old labels; 0: none; inf (not for CD-KNet+): labels alone",
        least=0,
    )
    subsample: float = option(
        0.05, "stage 2: share of the old and of the new samples that the kernel is built on", above=0, most=1
    )
    min_subsample: int = option(1000, "stage 2: but at least this many of each, or all there are", least=0)
    readout: str = option(
        None,
        "cd-knet, CD-KNet+: how features are clustered: agreed (what k-means and spectral clusterings agree "
        "on), spectral, k-means, or heads (what the heads agree on; CD-KNet+ only); unset: k-means "
        "(cd-knet), agreed (CD-KNet+)",
        choices=("agreed", "spectral", "k-means", "heads"),
    )


@dataclass(frozen=True)
class RoundOptions(Options):
    heading: ClassVar[str] = STAGE_2

    discover_epochs: int = option(
        20,
        "stage 2: at most this many rounds of network step and U step; CD-KNet+ counts steps instead; one "
        "round of dac is five passes",
        least=1,
        counts=True,
    )


@dataclass(frozen=True)
class BatchOptions(Options):
    heading: ClassVar[str] = STAGE_2

    discover_batch_size: int = option(1024, "stage 2: samples in a mini-batch kernel", least=4)


@dataclass(frozen=True)
class RateOptions(Options):
    heading: ClassVar[str] = STAGE_2

    discover_learning_rate: float = option(
        None,
        "stage 2: its learning rate; unset: as in stage 1 (CD-KNet+ rises to twice it, DEC uses a tenth)",
        above=0,
    )


@dataclass(frozen=True)
class KernelOptions(Options):
    heading: ClassVar[str] = STAGE_2

    kernel: str = option(
        "gaussian",
        "stage 2: kernel whose eigenvectors are U: the paper's dense one, or a nearest-neighbour graph",
        choices=("gaussian", "neighbors"),
    )
    sigma_scale: float = option(
        0.45, "stage 2: width of the Gaussian kernel, in median distances between features", above=0
    )
    turn_tolerance: float = option(
        0.001, "stage 2: stop when the subspace of U turns by less than this share; 0: never", least=0
    )
    memory_limit: float = option(
        2.0, "stage 2: most gigabytes for a whole kernel; beyond that, landmarks stand in for it", above=0
    )


@dataclass(frozen=True)
class NeighborOptions(Options):
    heading: ClassVar[str] = STAGE_2

    neighbors: int = option(
        15, "stage 2: neighbours of a sample where a nearest-neighbour graph is used", least=1
    )


@dataclass(frozen=True)
class ViewOptions(Options):
    heading: ClassVar[str] = STAGE_2

    views: str = option(
        "auto",
        "CD-KNet+ and dac: which augmented views of a sample are made; auto: by the shape of a sample",
        choices=("auto", "grey", "colour", "radio", "vectors"),
    )


@dataclass(frozen=True)
class PlusOptions(Options):
    heading: ClassVar[str] = STAGE_2

    lead: str = option(
        "auto",
        "CD-KNet+: what is learned first: what views of a sample share together with the old labels, or the "
        "labels alone; auto: labels for I/Q recordings and from 30 old classes on, else views",
        choices=("auto", "views", "labels"),
    )
    view_weight: float = option(
        None,
        "CD-KNet+: mu, weight of what views of a sample share; unset: 1 for vectors, else 3, or 0 where "
        "labels lead",
        least=0,
    )
    collapse_weight: float = option(
        1.0, "CD-KNet+: gamma, how strongly views push crowded features apart", least=0
    )
    spectral_weight: float = option(
        0.0, "CD-KNet+: weight of U, the spectral embedding of a nearest-neighbour graph", least=0
    )
    view_term: str = option(
        "hsic",
        "CD-KNet+: what draws views of a sample together: hsic, or contrast with the others (SimCLR)",
        choices=("hsic", "contrast"),
    )
    heads: int = option(
        None,
        "CD-KNet+: softmax heads that group the new samples; unset: 4, for I/Q recordings 0: none",
        least=0,
    )
    head_targets: str = option(
        "balanced",
        "CD-KNet+: what a head learns from a view: its answer to another view, balanced over the classes "
        "(UNO), or sharpened, with a reward for even use of the classes (SimGCD); paired: the same answer as "
        "the nearest sample (ORCA)",
        choices=("balanced", "sharpened", "paired"),
    )
    view_steps: int = option(
        200, "CD-KNet+: steps on views and old labels, before U and heads enter", least=0, counts=True
    )
    label_epochs: int = option(
        30, "CD-KNet+: instead, where old labels lead: epochs over the old samples", least=0, counts=True
    )
    head_steps: int = option(400, "CD-KNet+: steps with U and heads", least=0, counts=True)
    view_batch_size: int = option(
        512, "CD-KNet+: at most this many new samples per step, each in two views", least=4
    )


@dataclass(frozen=True)
class RestartOptions(Options):
    heading: ClassVar[str] = STAGE_2

    kmeans_restarts: int = option(10, "restarts of the k-means that makes the pseudo-labels", least=1)


@dataclass(frozen=True)
class ExpandOptions(Options):
    heading: ClassVar[str] = STAGE_3

    expansion: str = option(
        "last-two",
        "stage 3: layers that grow (all: networks of the paper only); none skips the stage: the nearest "
        "centre gives the class; for CD-KNet+ and spectral, a vote of neighbours",
        choices=("none", "last", "last-two", "all"),
    )
    extra_units: float = option(0.25, "stage 3: growth of the penultimate layer, as a share", above=0)
    expand_epochs: int = option(
        30, "stage 3: epochs over pseudo-labels and replayed old samples; 30 (paper), 4 (CD-KNet+)", least=1
    )
    expand_steps: int = option(400, "stage 3: but at least this many steps, however few the samples", least=0)
    replay: float = option(
        0.2,
        "stage 3: share of the old samples that an epoch replays; .2 (paper), all (CD-KNet+)",
        above=0,
        most=1,
    )
    slow_rate: float = option(
        0.1,
        "stage 3: learning rate of layers that did not grow, as a share; .1 (paper), 1 (CD-KNet+)",
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class TrustOptions(Options):
    heading: ClassVar[str] = TRUST

    calibrate: bool = option(
        True, "hide and discover some old classes, to learn how often a label is right; off: a raw signal"
    )
    tune: str = option(
        "auto",
        "old-classes: before the fit, hide some old classes and select the options that find them best, in "
        "several fits, or about two fifths of the time budget; auto: within a time budget with room for it",
        choices=("auto", "off", "old-classes"),
    )
    time_budget: str | float | None = option(
        None,
        "most time for the whole fit, about: 90s, 10min, 1h; stages end early, and a second fit may differ",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds_of(self.time_budget)


def seconds_of(time: str | float | None) -> float | None:
    """A time budget in seconds: a number of them, or a text such as 90s, 10min or 1.5h. None: unbounded."""
    if time is None:
        return None
    units = {"": 1, "s": 1, "min": 60, "h": 3600}
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|min|h|)\s*", str(time))
    if match is None or isinstance(time, bool) or not 0 < float(match[1]) < math.inf:
        raise ValueError(
            f"time_budget must be seconds above 0, or a text such as 90s, 10min or 1h. Got {time!r}."
        )
    return float(match[1]) * units[match[2]]


# What each method reads.


@dataclass(frozen=True)
class MethodOptions(TrustOptions, ExpandOptions, DiscoverOptions, NetworkOptions):
    """What every method reads; a method adds its own."""

    @classmethod
    def named(cls: type[M], params: Mapping[str, Any]) -> M:
        """The options of this class among `params`; None, or not there: the default."""
        return cls(**{f.name: params[f.name] for f in fields(cls) if params.get(f.name) is not None})


@dataclass(frozen=True)
class PretrainedOptions(MethodOptions, AfterStage1Options, PretrainOptions):
    """What every method with a stage 1 reads."""


@dataclass(frozen=True)
class CDKNetPlusOptions(
    MethodOptions, RestartOptions, ViewOptions, NeighborOptions, PlusOptions, RateOptions, LabelOptions
):
    """CD-KNet+, the default: old labels and what views of a sample share, together."""

    readout: str = changed(LabelOptions, "readout", "agreed")
    # f already separates classes; chosen by what held-out samples of old classes are called.
    expand_epochs: int = changed(ExpandOptions, "expand_epochs", 4)
    replay: float = changed(ExpandOptions, "replay", 1.0)
    slow_rate: float = changed(ExpandOptions, "slow_rate", 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isinf(self.label_weight):
            raise ValueError(
                "label_weight must be finite for method 'cd-knet+'. Got inf. Labels alone: method 'cd-knet'."
            )
        if self.lead == "labels" and self.label_weight == 0:
            raise ValueError(
                "label_weight must be above 0 where labels lead. Got 0. Use lead 'views' or 'auto'."
            )


@dataclass(frozen=True)
class CDKNetOptions(
    PretrainedOptions,
    RestartOptions,
    NeighborOptions,
    KernelOptions,
    RateOptions,
    BatchOptions,
    RoundOptions,
    LabelOptions,
):
    """CD-KNet, the paper's: HSIC with U and with the old labels, by turns."""

    readout: str = changed(LabelOptions, "readout", "k-means")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.readout == "heads":
            raise ValueError(
                "readout 'heads' needs heads, which method 'cd-knet' has none of. Got both. Use readout "
                "'k-means', 'spectral' or 'agreed', or method 'cd-knet+'."
            )


@dataclass(frozen=True)
class SSCDOptions(PretrainedOptions, RestartOptions):
    """SSCD: k-means on the features of stage 1."""


@dataclass(frozen=True)
class SSCDDynamicOptions(PretrainedOptions, RestartOptions, RateOptions, RoundOptions):
    """SSCD, dynamic: one new class at a time."""


@dataclass(frozen=True)
class SpectralOptions(PretrainedOptions, RestartOptions, NeighborOptions):
    """Spectral clustering of the features of stage 1."""


@dataclass(frozen=True)
class DECOptions(PretrainedOptions, RestartOptions, RateOptions, BatchOptions, RoundOptions):
    """DEC: features and centres move to where soft assignments become sure."""


@dataclass(frozen=True)
class DACOptions(PretrainedOptions, RestartOptions, ViewOptions, RateOptions, BatchOptions, RoundOptions):
    """DAC: are two samples of one class? Learned from the pairs that are already sure."""


@dataclass(frozen=True)
class PairwiseOptions(PretrainedOptions, RateOptions, BatchOptions, RoundOptions):
    """Pairwise similarity, learned on old classes."""


class Registered(NamedTuple):
    """A method: the module that has its code as `METHOD`, and what it reads.

    Options that are declared in this file cost nothing to list. Those of a method that declares its own are
    found in its module, which imports torch.
    """

    module: str
    declared: type[MethodOptions] | None = None

    @property
    def options(self) -> type[MethodOptions]:
        found: type[MethodOptions] = self.declared or import_module(self.module).METHOD.options
        return found


# One line per method.
METHODS: dict[str, Registered] = {
    DEFAULT_METHOD: Registered("cdknet.methods.cdknet_plus", CDKNetPlusOptions),
    "cd-knet": Registered("cdknet.methods.cdknet", CDKNetOptions),
    "sscd": Registered("cdknet.methods.sscd", SSCDOptions),
    "sscd-dynamic": Registered("cdknet.methods.sscd_dynamic", SSCDDynamicOptions),
    "spectral": Registered("cdknet.methods.spectral", SpectralOptions),
    "dec": Registered("cdknet.methods.dec", DECOptions),
    "dac": Registered("cdknet.methods.dac", DACOptions),
    "pairwise": Registered("cdknet.methods.pairwise", PairwiseOptions),
}
HEADINGS = (NETWORK, STAGE_1, STAGE_2, STAGE_3, TRUST)


class Option(NamedTuple):
    """An option as it is shown to people."""

    name: str
    kind: Any  # its type; `| None` where it need not be set
    default: Any  # None: not set, or another one for each method
    help: str
    choices: tuple[str, ...]
    heading: str


def options_of(method: str) -> dict[str, Option]:
    """The options that a method reads, by name, under the headings of the help."""
    check_choice("method", method, METHODS)
    read = METHODS[method].options
    found: dict[str, str] = {}
    for group in reversed(read.__mro__):
        for name in set(getattr(group, "__annotations__", ())) & read.__dataclass_fields__.keys():
            found.setdefault(name, vars(group).get("heading", STAGE_2))  # where it was declared first
    every = [_shown(f, found[f.name]) for f in fields(read)]
    return {one.name: one for heading in HEADINGS for one in every if one.heading == heading}


def all_options() -> dict[str, Option]:
    """The options of all methods. Where methods differ in a default, it is None."""
    found: dict[str, Option] = {}
    for method in METHODS:
        for name, one in options_of(method).items():
            there = found.setdefault(name, one)
            if there.default != one.default:
                found[name] = there._replace(default=None, kind=_may_be_none(there.kind))
    return {one.name: one for heading in HEADINGS for one in found.values() if one.heading == heading}


def _shown(f: "Field[Any]", heading: str) -> Option:
    kind = str if isinstance(f.type, types.UnionType) else _kind(f)
    kind = _may_be_none(kind) if f.default is None else kind
    return Option(f.name, kind, f.default, f.metadata["help"], f.metadata["choices"], heading)


def _may_be_none(kind: Any) -> Any:
    return kind if isinstance(kind, types.UnionType) else kind | None


def check_values(given: Mapping[str, Any]) -> None:
    """Raise unless every option among `given` may have its value, whichever method reads it."""
    declared = {f.name: f for registered in METHODS.values() for f in fields(registered.options)}
    for name, value in given.items():
        if name in declared and value is not None:
            check_value(declared[name], value)


def unread(method: str, given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Options set to other than their default that the method does not read, and the methods that do.

    Without stage 3 (expansion none) no method reads its options.
    """
    out: dict[str, tuple[str, ...]] = {}
    read = options_of(method)
    for name, one in all_options().items():
        if given.get(name) is None or given[name] == one.default:
            continue
        if name not in read:
            out[name] = tuple(other for other in METHODS if name in options_of(other))
        elif (
            one.heading == STAGE_3
            and name not in ("expansion", "batch_size")
            and given.get("expansion") == "none"
        ):
            out[name] = ()
    return out


OTHER_PARAMETERS = {  # of the estimators, which are no options of a stage: their defaults, and what they are
    "method": (DEFAULT_METHOD, f"Of `ClassDiscovery` alone (`--method`): {', '.join(METHODS)}"),
    "random_state": ("unset", "The seed (`--seed`): None, a whole number or a RandomState"),
    "device": ("auto", "Where to compute (`--device`): auto, cpu, cuda, cuda:1, mps"),
    "encoder": ("unset", "A torch.nn.Module of your own in the network's place"),
    "clusterer": (
        "unset",
        "A scikit-learn clusterer, or a function of (features, k, seed), in place of `readout`",
    ),
    "checkpoint_dir": (
        "unset",
        "A folder that makes a fit survive a kill: the same fit resumes from it (`--resume`)",
    ),
    "stage_cache": (
        "unset",
        "A folder in which fits of the same data and seed share the stages they have in common",
    ),
    "watchers": (
        "()",
        "Functions that get each row of the history as it comes; one that returns True ends the stage",
    ),
}


def as_markdown() -> str:
    """docs/options.md: every option, from the declarations above."""
    names = list(METHODS)
    lines = [
        "# Options",
        "",
        "Parameters of `ClassDiscovery` and of the methods' own classes, and flags of `cdknet discover`:",
        "`label_weight` is `--label-weight`. Only `n_new_classes` is called `--new-classes`.",
        "`cdknet discover --method NAME --help` lists what that method reads.",
        "",
        "Written by `python -m cdknet.options > docs/options.md`.",
    ]
    for heading in HEADINGS:
        lines += [
            "",
            f"## {heading}",
            "",
            "| option | default | what it does | read by |",
            "|---|---|---|---|",
        ]
        for one in all_options().values():
            if one.heading != heading:
                continue
            choices = f" ({', '.join(one.choices)})" if one.choices else ""
            default = "unset" if one.default is None else str(one.default)
            readers = [method for method in names if one.name in options_of(method)]
            by = ", ".join(readers)
            by = "all" if readers == names else f"all but {names[0]}" if readers == names[1:] else by
            lines.append(f"| `{one.name}` | {default} | {one.help}{choices} | {by} |")
    lines += [
        "",
        "## Other parameters, in Python",
        "",
        "| parameter | default | what it is |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {default} | {what} |" for name, (default, what) in OTHER_PARAMETERS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(as_markdown())
