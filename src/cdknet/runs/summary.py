"""A run in figures and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.runs.files import shown
from cdknet.runs.format import NOISE, Run


def used_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the fit of a run used: those given, overridden by what `tune` chose."""
    return {**config["options"], **(config["tuning"] or {"options": {}})["options"]}


def summary(run: Run) -> dict[str, Any]:
    """What a person would ask about a run first, as JSON values."""
    config, options = run.config, used_options(run.config)
    architecture = config["blueprint"].get("architecture")
    classes = []
    for index, name in enumerate(run.class_names):
        members = np.flatnonzero(run.class_index == index)
        classes.append(
            {
                "name": name,
                "kind": "old" if index < run.n_old else "new",
                "samples": len(members),
                "given": int(run.given[members].sum()),
                "confidence": float(run.confidence[members].mean(dtype=np.float64)) if len(members) else 0.0,
                "found_confidence": _mean(run.confidence[members][~run.given[members]]),
            }
        )
    stages = list(dict.fromkeys(row["stage"] for row in run.history))
    epochs = {stage: sum(row["stage"] == stage for row in run.history) for stage in stages}
    unlabelled = ~run.given
    return {
        "samples": len(run),
        "unlabelled": int(unlabelled.sum()),
        "noise": int((run.class_index == NOISE).sum()),
        "mixture": run.mixture,
        "n_classes": config["n_classes"],
        "source": shown(config["source"]),
        "classes": classes,
        "network": config["chosen"].get("network", architecture),
        "method": options.get("method"),
        "chosen": config["chosen"] or {"network": architecture},
        "expansion": options.get("expansion"),
        "label_weight": options.get("label_weight"),
        "seed": config["seed"],
        "confidence": config["confidence"],
        "given_accuracy": config["given_accuracy"],
        "tuning": config["tuning"],
        "time_budget": options.get("time_budget"),
        "spent": config["spent"],
        "epochs": epochs,
        "notes": config["notes"],
        "pictures": sorted(run.pictures),
    }


def _mean(values: NDArray[np.float32]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


WIDE = 0.2  # width of the interval of the share of old samples from which it is called uncertain
ALIKE = 0.1  # error of the share in rehearsals from which it is called uncertain
UNLIKE = 0.1  # rehearsals whose accuracies differ by more are reported as a range, since their mean misleads
WORSE = 0.05  # lead of k-means over the method in (short) rehearsals from which other options are suggested
CHANCE = 1.5  # expected accuracy, in multiples of guessing, below which the rate of guessing is reported
LOW = 0.5  # share of given labels that are predicted right, below which the data themselves are in doubt


def mixture_sentence(config: Mapping[str, Any]) -> str:
    """What the unlabelled samples of a run are: old, new and noise; empty if all were taken to be new."""
    mixture = config.get("mixture")
    if not mixture:
        return ""
    n = mixture["old"] + mixture["new"] + mixture["noise"]
    low, high = mixture["interval"]
    if mixture["old"]:
        sentence = f"{mixture['old']} of {n} unlabelled samples were recognised as old classes"
    else:
        sentence = f"none of {n} unlabelled samples was recognised as an old class"
    if mixture["noise"]:
        sentence += f", {mixture['noise']} set aside as noise"
    if not mixture["spies"]:
        return sentence + ", by a threshold on the network's own certainty: how many really are is not known"
    sentence += f"; the share of old ones is estimated at {_percent(mixture['share'])}"
    sentence += f" (between {_percent(low)} and {_percent(high)})"
    calibration = (config.get("confidence") or {}).get("calibration", {})
    tried = [abs(one["found"] - one["share"]) for one in calibration.get("mixtures", [])]
    if high - low > WIDE:
        sentence += ". That is uncertain: old and new look alike, or few labels could be hidden to measure it"
    elif tried and max(tried) > ALIKE:
        sentence += f". That is uncertain: in a rehearsal it was off by {_percent(max(tried))}"
    return sentence


def count_sentence(config: Mapping[str, Any]) -> str:
    """How many new classes were found, between what, and why; empty if the number was given."""
    count = config.get("n_classes")
    if not count:
        return ""
    low, high = count["interval"]
    between = f"between {low} and {high}" if low < high else f"both halves of the old classes say {low}"
    if count["found"] == 0:
        sentence = f"no new class found ({between}); a fit has one all the same, of what looks least old"
    elif count["uncertain"]:
        sentence = f"{between} new classes, perhaps {count['found']}"
    else:
        sentence = f"{count['found']} new classes found ({'probably ' * (low < high)}{between})"
    return f"{sentence}. {count['reason']}"


def _percent(share: float) -> str:
    """12 % for .12; no share that is not whole is called 0 % or 100 %."""
    if 0 < share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def given_sentence(accuracy: float, *, timed: bool = False) -> str:
    """How often the model predicts the labels it was given. A `timed` fit may have learned too little."""
    share = "more than 99" if 0.995 <= accuracy < 1 else f"{100 * accuracy:.0f}"
    sentence = f"predict answers with them for {share} of 100 labelled samples"
    if accuracy >= LOW:
        return sentence
    if timed:
        return sentence + ": few. The fit was too short: raise --time-budget, or leave it out"
    return sentence + ": few. Look for placeholders such as 9999, odd units or wrong labels in the data"


def confidence_sentence(confidence: dict[str, Any], n_new: int | None = None) -> str:
    """How far to trust a run; with `n_new`, also the rate of guessing if the run is not much better."""
    calibration = confidence["calibration"]
    if not calibration["calibrated"]:
        reason = calibration.get("reason", "an older version made the run")
        return f"not calibrated, so its figures only rank samples: {reason}"
    found, expected = calibration["accuracy"], 100 * confidence["overall"]
    many = "more than 99" if expected > 99 else f"about {expected:.0f}"
    sentence = f"{many} of 100 unlabelled samples are expected to be right"
    if n_new and expected < CHANCE * 100 / n_new:
        sentence += f" (guessing among {n_new} classes: {100 / n_new:.0f})"
    if "among_old" in calibration:  # all unlabelled samples were taken to be new
        share = f"{100 * calibration['among_old']:.0f} of 100"
        sentence += f" if all are of new classes, but {share} look like labelled ones"
    sentence += "; in its own rehearsals on hidden old classes this setting "
    if found > 0.999:
        return sentence + "made no mistake to learn from, so check the least confident samples anyway"
    each = calibration.get("accuracies", [found])
    unlike = max(each) - min(each) > UNLIKE
    sentence += f"found {_share(min(each))} to {_share(max(each))}" if unlike else f"found {_share(found)}"
    plain = calibration.get("plain")
    if plain is None:
        return sentence
    sentence += f", k-means on the columns {_share(plain)}"
    return sentence + (": other options may do better, see cdknet tune" if plain > found + WORSE else "")


def _share(value: float) -> str:
    """.85 for 0.85"""
    return f"{value:.2f}".removeprefix("0")
