"""Every option of cdknet, declared once: default, help, and what must hold.

The estimator's parameters, the command line's flags and a run's `config.json` all derive from these
classes. They live apart from the stages so that reading them (`cdknet --help`) does not import torch.
"""

import difflib
import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T", bound="Options")

METHODS = ("cd-knet+", "cd-knet", "sscd", "sscd-dynamic", "spectral", "dec", "dac", "pairwise")
# Methods by what they have in common, for options that the others do not read.
PLUS, KNETS = ("cd-knet+",), ("cd-knet+", "cd-knet")
STAGE_1 = METHODS[1:]  # CD-KNet+ learns old classes beside the new ones
ROUNDS = ("cd-knet", "sscd-dynamic", "dec", "dac", "pairwise")
BATCHES = ("cd-knet", "dec", "dac", "pairwise")


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    of: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its help and its bounds: least <= value, above < value, value <= most.

    `of` are the methods that read it; none named: all of them.
    """
    bounds = {"help": help, "least": least, "above": above, "most": most, "choices": choices}
    return field(default=default, metadata={**bounds, "of": of})


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `choices`, with the nearest one as a suggestion."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(choices)}. Got {value!r}.{hint}")


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
    """Options of one part of the work. Checked when made."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, rule = getattr(self, f.name), f.metadata
            if value is None and f.default is None:
                continue
            if rule["choices"]:
                check_choice(f.name, value, rule["choices"])
            elif f.type is bool or f.type == bool | None:
                if not isinstance(value, bool):
                    raise ValueError(f"{f.name} must be True or False. Got {value!r}.")
            elif f.type not in (str, str | None):
                kind = int if f.type in (int, int | None) else float
                check_number(f.name, value, kind, least=rule["least"], above=rule["above"], most=rule["most"])

    @classmethod
    def pick(cls: type[T], params: Mapping[str, Any]) -> T:
        """The options of this class among `params`."""
        return cls(**{f.name: params[f.name] for f in fields(cls)})


@dataclass(frozen=True)
class NetworkOptions(Options):
    """The network f_theta."""

    network: str = option(
        "auto",
        "network to train; paper: the paper's for samples of this shape; auto: that, or small for CD-KNet+; "
        "none and pca: the samples as they are, for methods sscd and spectral without expansion",
        choices=("auto", "paper", "paper-mnist", "paper-cifar", "paper-rf", "mlp", "small", "none", "pca"),
    )
    feature_size: int | None = option(
        None, "units of the penultimate layer, the features; unset: the network's own", least=2
    )
    standardize: bool | None = option(
        None, "centre and scale the input by its own statistics; unset: yes, but not before your own encoder"
    )
    precision: str = option(
        "auto",
        "arithmetic of training; fastest: bfloat16 on a processor that has it, about 1.4 times as fast, else "
        "float32; auto: fastest for CD-KNet+ with a network of ours, else float32",
        choices=("auto", "float32", "bfloat16", "fastest"),
    )


@dataclass(frozen=True)
class PretrainOptions(Options):
    """Stage 1: learn the old classes."""

    pretrain_epochs: int = option(50, "stage 1: most epochs over the old classes", least=1, of=STAGE_1)
    early_stopping: bool = option(
        True, "stage 1: stop when held-out old samples stop getting better; off: run every epoch", of=STAGE_1
    )
    enough: float = option(
        1.0,
        "stage 1: held-out accuracy at which to stop at once; 1: only when it no longer gets better",
        above=0,
        most=1,
        of=STAGE_1,
    )
    patience: int = option(
        5, "stage 1: epochs without a better held-out accuracy before stopping", least=1, of=STAGE_1
    )
    validation_fraction: float = option(
        0.1, "stage 1: share of the old samples held out for early stopping", above=0, most=0.5, of=STAGE_1
    )
    learning_rate: float = option(0.001, "Adam's learning rate, all stages", above=0)
    batch_size: int = option(128, "samples a step in stages 1 and 3", least=2)


@dataclass(frozen=True)
class DiscoverOptions(Options):
    """Stage 2: features in which the new classes fall apart, then clusters."""

    n_new_classes: int | None = option(None, "how many new classes to look for", least=1)
    method: str = option(
        "cd-knet+",
        "stage 2: how new classes are found; cd-knet is the paper's, the others are rivals",
        choices=METHODS,
    )
    novelty: bool = option(
        False,
        "stage 2: unlabelled samples that stage 1 is as sure of as of old ones stay old (SSCD's detector); "
        "not for cd-knet+, which has no stage 1",
        of=STAGE_1,
    )
    label_weight: float = option(
        10.0,
        "stage 2: lambda, weight of the old labels; 0: none; inf (not for CD-KNet+): labels alone",
        least=0,
        of=KNETS,
    )
    discover_epochs: int = option(
        20,
        "stage 2: most rounds of network step and U step; CD-KNet+ counts steps; one of dac is five passes",
        least=1,
        of=ROUNDS,
    )
    discover_batch_size: int = option(1024, "stage 2: samples in a mini-batch kernel", least=4, of=BATCHES)
    discover_learning_rate: float | None = option(
        None,
        "stage 2: its learning rate; unset: as in stage 1 (CD-KNet+ rises to twice it, DEC takes a tenth)",
        above=0,
        of=("cd-knet+", *ROUNDS),
    )
    subsample: float = option(
        0.05,
        "stage 2: share of the old and of the new samples that the kernel is built on",
        above=0,
        most=1,
        of=KNETS,
    )
    min_subsample: int = option(
        1000, "stage 2: but at least this many of each, or all there are", least=0, of=KNETS
    )
    lead: str = option(
        "auto",
        "CD-KNet+: what is learned first: what views of a sample have in common and the old labels, or these "
        "alone; auto: labels for I/Q recordings and from 30 old classes on, else views",
        choices=("auto", "views", "labels"),
        of=PLUS,
    )
    view_weight: float | None = option(
        None,
        "CD-KNet+: mu, weight of what views of a sample have in common; unset: 1 for vectors, else 3, or 0 "
        "where labels lead",
        least=0,
        of=PLUS,
    )
    collapse_weight: float = option(
        1.0, "CD-KNet+: gamma, how much views push features apart that crowd together", least=0, of=PLUS
    )
    spectral_weight: float = option(
        0.0, "CD-KNet+: weight of U, the spectral embedding of a graph of near neighbours", least=0, of=PLUS
    )
    view_term: str = option(
        "hsic",
        "CD-KNet+: what draws views of a sample together; hsic, or contrast with the others (SimCLR)",
        choices=("hsic", "contrast"),
        of=PLUS,
    )
    heads: int | None = option(
        None,
        "CD-KNet+: softmax heads that group the new samples; unset: 4, for I/Q recordings 0: none",
        least=0,
        of=PLUS,
    )
    head_targets: str = option(
        "balanced",
        "CD-KNet+: what a head learns of a view: its answer to another one, balanced over the classes (UNO) "
        "or sharpened, with a reward for even use of the classes (SimGCD)",
        choices=("balanced", "sharpened"),
        of=PLUS,
    )
    readout: str | None = option(
        None,
        "cd-knet, CD-KNet+: where clusters come from: what k-means and spectral cuts of the features agree "
        "on, one spectral cut, k-means, or what the heads agree on (CD-KNet+ alone has them); unset: k-means "
        "(paper), agreed (CD-KNet+)",
        choices=("agreed", "spectral", "k-means", "heads"),
        of=KNETS,
    )
    views: str = option(
        "auto",
        "CD-KNet+ and dac: how a view differs from the sample; auto picks by the shape of a sample",
        choices=("auto", "grey", "colour", "radio", "vectors"),
        of=(*PLUS, "dac"),
    )
    view_steps: int = option(
        200, "CD-KNet+: steps on views and old labels, before U and heads enter", least=0, of=PLUS
    )
    label_epochs: int = option(
        30, "CD-KNet+: instead, where old labels lead: epochs over the old samples", least=0, of=PLUS
    )
    head_steps: int = option(400, "CD-KNet+: steps with U and heads", least=0, of=PLUS)
    view_batch_size: int = option(
        512, "CD-KNet+: most new samples a step, each in two views", least=4, of=PLUS
    )
    kernel: str = option(
        "gaussian",
        "stage 2: kernel whose eigenvectors are U; the paper's dense one, or a graph of near neighbours",
        choices=("gaussian", "neighbors"),
        of=("cd-knet",),
    )
    neighbors: int = option(
        15, "stage 2: neighbours of a sample where a graph of them is used", least=1, of=(*KNETS, "spectral")
    )
    sigma_scale: float = option(
        0.45,
        "stage 2: width of the Gaussian kernel, in median distances between features",
        above=0,
        of=("cd-knet",),
    )
    normalize_features: bool = option(
        True,
        "put features on the unit sphere before kernels and clustering; off: as the network gives them",
        of=STAGE_1,
    )
    turn_tolerance: float = option(
        0.001,
        "stage 2: stop when the subspace of U turns by less than this share; 0: never",
        least=0,
        of=("cd-knet",),
    )
    kmeans_restarts: int = option(10, "restarts of the k-means that makes the pseudo-labels", least=1)
    memory_limit: float = option(
        2.0,
        "stage 2: most gigabytes for a whole kernel; beyond that, landmarks stand in for it",
        above=0,
        of=("cd-knet",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "cd-knet" and self.readout == "heads":
            raise ValueError(
                "readout 'heads' needs heads, which method 'cd-knet' has none of. Got both. Take readout "
                "'k-means', 'spectral' or 'agreed', or method 'cd-knet+'."
            )

    @property
    def cut(self) -> str:
        """Where clusters come from: as asked, or what suits the method."""
        return self.readout or ("agreed" if self.method == "cd-knet+" else "k-means")

    @property
    def on_sphere(self) -> bool:
        """Whether features are scaled to unit length: as asked, and always by CD-KNet+."""
        return self.normalize_features or self.method == "cd-knet+"


@dataclass(frozen=True)
class ExpandOptions(Options):
    """Stage 3: grow the network and teach it the discovered classes."""

    expansion: str = option(
        "last-two",
        "stage 3: layers that grow (all: networks of the paper only); none skips the stage: the nearest "
        "centre says the class, for CD-KNet+ and spectral a vote of neighbours",
        choices=("none", "last", "last-two", "all"),
    )
    extra_units: float = option(0.25, "stage 3: growth of the penultimate layer, as a share", above=0)
    expand_epochs: int | None = option(
        None,
        "stage 3: epochs over pseudo-labels and replayed old samples; unset: 30 (paper), 4 (CD-KNet+)",
        least=1,
    )
    expand_steps: int = option(400, "stage 3: but at least this many steps, however few the samples", least=0)
    replay: float | None = option(
        None,
        "stage 3: share of the old samples that an epoch replays; unset: .2 (paper), all (CD-KNet+)",
        above=0,
        most=1,
    )
    slow_rate: float | None = option(
        None,
        "stage 3: learning rate of layers that did not grow, as a share; unset: .1 (paper), 1 (CD-KNet+)",
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class TrustOptions(Options):
    """What old classes tell about the new ones: which options to take, and how sure a label is."""

    calibrate: bool = option(
        True, "hide and discover some old classes, to learn how often a label is right; off: a raw signal"
    )
    tune: str = option(
        "auto",
        "old-classes: before the fit, hide some old classes and keep the options that find them best, in "
        "several fits, or about two fifths of the time budget; auto: within a time budget with room for it",
        choices=("auto", "off", "old-classes"),
    )
    time_budget: str | None = option(
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


ALL_OPTIONS = (NetworkOptions, PretrainOptions, DiscoverOptions, ExpandOptions, TrustOptions)


def options_of(method: str) -> dict[str, Field[Any]]:
    """The options that a method reads, by name."""
    every = {f.name: f for group in ALL_OPTIONS for f in fields(group)}
    return {name: f for name, f in every.items() if not f.metadata["of"] or method in f.metadata["of"]}


def unread(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Options set to other than their default that the method in `given` does not read, and who does.

    Without stage 3 (expansion none) nobody reads its options.
    """
    out: dict[str, tuple[str, ...]] = {}
    for group in ALL_OPTIONS:
        for f in fields(group):
            if f.name not in given or given[f.name] == f.default:
                continue
            if group is ExpandOptions and f.name != "expansion" and given["expansion"] == "none":
                out[f.name] = ()
            elif f.metadata["of"] and given["method"] not in f.metadata["of"]:
                out[f.name] = f.metadata["of"]
    return out


BESIDE = {  # parameters of ClassDiscovery that are no options of a stage, with their defaults
    "random_state": ("unset", "The seed (`--seed`): None, a whole number or a RandomState"),
    "device": ("auto", "Where to compute (`--device`): auto, cpu, cuda, cuda:1, mps"),
    "encoder": ("unset", "A torch.nn.Module of your own in the network's place"),
    "clusterer": (
        "unset",
        "A clusterer of scikit-learn, or a function of (features, k, seed), in `readout`'s place",
    ),
    "checkpoint_dir": (
        "unset",
        "A folder that makes a fit survive a kill: the same fit goes on from it (`--resume`)",
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
    lines = [
        "# Options",
        "",
        "Parameters of `ClassDiscovery`, and flags of `cdknet discover`: `label_weight` is `--label-weight`.",
        "Only `n_new_classes` is called `--new-classes`.",
        "",
        "Written by `python -m cdknet.options > docs/options.md`.",
    ]
    for group in ALL_OPTIONS:
        lines += ["", f"## {group.__doc__}", "", "| option | default | what it does |", "|---|---|---|"]
        for f in fields(group):
            choices = f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
            default = "unset" if f.default is None else str(f.default)
            lines.append(f"| `{f.name}` | {default} | {f.metadata['help']}{choices} |")
    lines += [
        "",
        "## Beside the options, in Python",
        "",
        "| parameter | default | what it is |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {default} | {what} |" for name, (default, what) in BESIDE.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(as_markdown())
