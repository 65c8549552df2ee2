"""Refine a run after a review: stage 3 again, on the reviewed labels.

Training continues from the network of the run. A class that still exists keeps its output, its name and its
id. A class that the review created gets a new output, and one that it removed loses its output. Labels stay
as reviewed: where the new network disagrees, the sample's confidence is low, and the explorer lists it among
the unsure ones.

`python -m cdknet.fit.refine RUN OUT` does the same, and prints its progress as lines of JSON for the
explorer.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cdknet
from cdknet.core.classifiers import Centers, Classifier, class_means
from cdknet.core.seeds import derive_seed, seeded
from cdknet.data.samples import KEPT
from cdknet.explorer.folder import OpenedRun, open_run
from cdknet.explorer.journal import JOURNAL, Journal
from cdknet.explorer.review import REJECTED, Review
from cdknet.fit.codec import from_run, to_run
from cdknet.fit.expand import teach
from cdknet.fit.pipeline import voters
from cdknet.fit.plan import device_of
from cdknet.fit.result import FitResult
from cdknet.inputs.arrays import Inputs
from cdknet.nets.growth import Growth
from cdknet.nets.model import Blueprint, Model
from cdknet.nets.network import Network
from cdknet.runs.checkpoints import FolderCheckpoint
from cdknet.runs.figures import illustrated
from cdknet.runs.files import claimed, shown
from cdknet.runs.fingerprints import fingerprint, samples_digest
from cdknet.runs.format import Run, check_target, labels_digest, read_run, storable, verify_samples, write_run
from cdknet.training.context import FitContext
from cdknet.training.history import History, Watcher
from cdknet.training.memory import keep_freed_memory
from cdknet.training.problem import Problem


@dataclass(frozen=True)
class Lesson:
    """A review as training data: classes in the order of the outputs, and one target per sample."""

    ids: list[int]  # class ids, old classes first
    names: list[str]
    n_old: int
    targets: NDArray[np.int64]  # (n,) position in `ids`; -1 for rejected samples

    @classmethod
    def of(cls, review: Review, n_old: int) -> Lesson:
        sizes = np.bincount(review.assignment[review.assignment != REJECTED], minlength=REJECTED)
        old = [i for i, record in review.classes.items() if record.kind == "old"]
        new = [i for i, record in review.classes.items() if record.kind == "new" and sizes[i]]
        if not new:
            raise ValueError("The review must leave at least one new class with samples to refine. Got none.")
        assert len(old) == n_old
        position = np.full(REJECTED + 1, -1, dtype=np.int64)
        position[old + new] = np.arange(len(old) + len(new))
        names = [review.classes[i].name for i in old + new]
        return cls(old + new, names, n_old, position[review.assignment])

    @property
    def n_new(self) -> int:
        return len(self.ids) - self.n_old

    def problem(self, X: NDArray[Any], given: NDArray[np.bool_]) -> tuple[Problem, Tensor]:
        """Samples of old classes with a given label are replayed in part; all others are shown each epoch."""
        replayed = given & (self.targets >= 0) & (self.targets < self.n_old)
        shown = (self.targets >= 0) & ~replayed
        if not replayed.any():
            raise ValueError("The review must leave given samples in old classes to refine. Got none.")
        rows = torch.from_numpy(np.flatnonzero(replayed)), torch.from_numpy(np.flatnonzero(shown))
        targets = torch.from_numpy(self.targets)
        return Problem(Inputs(X), rows[0], targets[rows[0]], rows[1], self.n_old), targets[rows[1]]


def refine(
    folder: str | Path,
    out: str | Path,
    *,
    samples: NDArray[Any] | None = None,
    sample_ids: Sequence[str] | None = None,
    encoder: nn.Module | None = None,
    device: str = "auto",
    watchers: Sequence[Watcher] = (),
    force: bool = False,
) -> Path:
    """Write the run `out`: `folder`, trained again on its reviewed labels. Call it again to resume it.

    `samples` are needed if the run does not hold them, `encoder` if the run had one.
    """
    folder, out = Path(folder), Path(out)
    check_target(out, force)
    if out.resolve() == folder.resolve():
        raise ValueError("out must be another folder than the run. Got the same.")
    with claimed(out):
        check_target(out, force)  # another process may have made it meanwhile
        return _refine(folder, out, samples, sample_ids, encoder, device, watchers, force)


def _refine(
    folder: Path,
    out: Path,
    samples: NDArray[Any] | None,
    sample_ids: Sequence[str] | None,
    encoder: nn.Module | None,
    device: str,
    watchers: Sequence[Watcher],
    force: bool,
) -> Path:
    opened = open_run(folder, samples=samples, sample_ids=sample_ids)
    if opened.samples is None:
        raise ValueError(f"{folder} must hold its samples to be refined. It does not: name them with --data.")
    run = read_run(folder)
    if samples is None:
        verify_samples(folder, run.config)
    journal = opened.journal()
    lesson = Lesson.of(journal.review, opened.n_old)
    before = from_run(run, encoder, device)
    unfinished = out.with_name(out.name + ".partial")
    weights = run.config["files"]["weights.safetensors"]["sha256"]
    of = {"kind": "refine", "run": opened.digest, "weights": weights}
    job = {**of, "revision": journal.revision, "cdknet": cdknet.__version__}
    job |= {"labels": fingerprint(lesson.targets), "names": lesson.names}
    try:
        checkpoint = FolderCheckpoint(unfinished, job)
    except ValueError:
        if not _is_job(unfinished, of):
            raise ValueError(
                f"{unfinished} must be an unfinished refinement of {folder}, or not be there. Got another "
                "job or other files. Finish that one, delete it, or choose another --out."
            ) from None
        shutil.rmtree(unfinished)  # it was started from an older state of the review
        checkpoint = FolderCheckpoint(unfinished, job)
    history = History(watchers)
    seed = derive_seed(before.seed, "refine")
    context = FitContext(seed, device_of(device), history, checkpoint, encoder=encoder)
    try:
        after = taught(before, opened, lesson, context)
    except KeyboardInterrupt:
        checkpoint.flush()
        raise
    history.progress("map", 0, 1)
    same = ("source", "feature_names", "n_features_in", *KEPT)
    config = {name: run.config[name] for name in same if name in run.config}
    config |= {"class_ids": lesson.ids, "next_class_id": journal.review.next_id}
    config |= {"samples_digest": samples_digest(opened.samples)}
    if damage := journal.left_out():
        config |= {"notes": [*run.config["notes"], damage]}
    config |= {"refined": {"from": shown(folder.resolve().name), "revision": journal.revision}}
    refined = to_run(after, opened.ids, config)
    stored = storable(opened.samples)
    refined = replace(illustrated(refined, opened.samples), samples=stored, texts=run.texts)
    history.progress("map", 1, 1)  # the last chance to interrupt it
    write_run(out, refined, force=force, review=_carried_over(refined, journal.review, lesson))
    shutil.rmtree(unfinished, ignore_errors=True)
    return out


def _is_job(unfinished: Path, of: dict[str, str]) -> bool:
    """Whether the folder holds a job with all these properties."""
    try:
        job = json.loads((unfinished / "job.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(job, dict) and of.items() <= job.items()


def taught(before: FitResult, opened: OpenedRun, lesson: Lesson, context: FitContext) -> FitResult:
    """The new result of a run, after stage 3 on the reviewed classes."""
    assert opened.samples is not None
    inputs, plan, model = Inputs(opened.samples), before.plan, before.model
    blueprint = before.blueprint._replace(n_new_classes=lesson.n_new)
    if model.classifier is None:
        network = _with_outputs(model.network, blueprint, context, opened, lesson)
        problem, targets = lesson.problem(opened.samples, opened.given)
        growth, views = _growth(network, plan.options.expansion), plan.views_of_stage_3(context)
        teach(growth, problem, targets, plan.options, context, views, stage="refine")
        model = Model(network, model.normalize)
    else:
        model = model._replace(classifier=_classifier(model.classifier, opened, lesson, context.seed))
    features, logits = model.apply(inputs)
    # A rejected sample needs some label in the file; the journal rejects it again.
    labels = np.where(lesson.targets >= 0, lesson.targets, logits.argmax(dim=1).numpy())
    probability = torch.softmax(logits, dim=1).numpy()[np.arange(len(labels)), labels]
    spent = {stage: round(seconds, 2) for stage, seconds in context.history.spent.items()}
    return replace(
        before,
        params={**before.params, "n_new_classes": lesson.n_new},
        classes=_class_names(lesson.names, before.classes),
        model=model,
        blueprint=blueprint,
        labels=labels,
        given=opened.given,
        confidence=np.where(opened.given, 1.0, probability).astype(np.float32),
        best_old=logits[:, : lesson.n_old].argmax(dim=1).numpy(),
        embedding=features.numpy(),
        pseudo_labels=np.maximum(lesson.targets - lesson.n_old, -1)[~opened.given],
        history=[*opened.history, *context.history],
        spent={**before.spent, **spent},
        calibration={"calibrated": False, "reason": "the run was refined on reviewed labels"},
    )


def _with_outputs(
    network: Network, blueprint: Blueprint, context: FitContext, opened: OpenedRun, lesson: Lesson
) -> Network:
    """A copy of the network with one output per reviewed class: its own if it had one, else a new one."""
    with seeded(derive_seed(context.seed, "outputs")):
        fresh = blueprint.build(context.encoder)
    state = {name: weight.detach().cpu().clone() for name, weight in network.state_dict().items()}
    had = {class_id: i for i, class_id in enumerate(opened.class_ids)}
    for name in [name for name in state if name.startswith("head.")]:
        rows = fresh.state_dict()[name].clone()
        for position, class_id in enumerate(lesson.ids):
            if class_id in had:
                rows[position] = state[name][had[class_id]]
        state[name] = rows
    fresh.load_state_dict(state)
    return fresh.to(network.device)


def _growth(network: Network, expansion: str) -> Growth:
    """Which weights learn at the full rate: those of the layers that stage 3 grew."""
    layers = {"last": [network.head], "last-two": [network.penultimate, network.head]}.get(expansion)
    fast = {id(w) for layer in layers for w in layer.parameters()} if layers else None
    weights = network.trainable()
    if fast is None:  # "all"
        return Growth(network, weights, [])
    return Growth(network, [w for w in weights if id(w) in fast], [w for w in weights if id(w) not in fast])


def _classifier(before: Classifier, opened: OpenedRun, lesson: Lesson, seed: int) -> Classifier:
    """Without outputs nothing is trained: centres and voters are computed again from the reviewed classes."""
    known = np.flatnonzero(lesson.targets >= 0)
    z = torch.from_numpy(opened.features[known])
    targets = torch.from_numpy(lesson.targets[known])
    if isinstance(before, Centers):
        centers = class_means(z, targets, len(lesson.ids))
        scale = float((z - centers[targets]).square().sum(dim=1).mean())
        return Centers(centers, max(scale, 1e-12))
    return voters(z, targets, len(lesson.ids), before.k, seed)


def _class_names(names: Sequence[str], before: NDArray[Any]) -> NDArray[Any]:
    """Names of the type that the run had: whole numbers stay whole numbers if all names still are."""
    if before.dtype.kind == "i" and all(name.isascii() and name.isdigit() for name in names):
        numbers = np.array([int(name) for name in names])
        if [str(n) for n in numbers.tolist()] == list(names):
            return numbers
    return np.array(names)


def _carried_over(run: Run, review: Review, lesson: Lesson) -> bytes | None:
    """The first lines of the new run's journal: notes and rejected samples, which labels do not express."""
    actions: list[dict[str, Any]] = [
        {"kind": "note", "class": i, "text": review.classes[i].note}
        for i in lesson.ids
        if review.classes[i].note
    ]
    rejected = np.flatnonzero(review.assignment == REJECTED)
    if len(rejected):
        actions.append({"kind": "reject", "samples": rejected.tolist()})
    if not actions:
        return None
    position = dict(zip(lesson.names, lesson.ids, strict=True))
    assignment = np.array([position[row["label"]] for row in run.labels])
    start = Review.start(assignment, lesson.names, lesson.n_old, ids=lesson.ids, next_id=review.next_id)
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / JOURNAL, start, labels_digest(run))
        for action in actions:
            journal.do(journal.revision, action, _no_split)
        return journal.path.read_bytes()


def _no_split(rows: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    raise AssertionError("nothing is split when a review is carried over")


class _Lines:
    """A watcher that writes its progress to stdout, as JSON."""

    def progress(self, stage: str, done: float, total: int) -> None:
        sys.stdout.write(json.dumps({"stage": stage, "share": done / max(total, 1)}) + "\n")
        sys.stdout.flush()

    def __call__(self, row: dict[str, Any]) -> None:
        return None


def main(arguments: Sequence[str]) -> int:
    """RUN OUT [SAMPLES.npy]: the command that the explorer starts."""
    run, out, *samples = arguments
    keep_freed_memory()
    try:
        given = np.load(samples[0], mmap_mode="r", allow_pickle=False) if samples else None
        refine(run, out, samples=given, watchers=[_Lines()])
    except (ValueError, OSError, FloatingPointError, MemoryError) as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
