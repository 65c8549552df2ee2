"""The paper's data sets by name: `load("mnist").problem()` is the open-world problem of the paper."""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdknet.core.openworld import OpenWorldProblem, hide_classes

from . import store
from .arrays import load_npy
from .binaries import load_cifar, load_idx
from .registry import SETS, PublicFile, PublicSet
from .store import Progress, Verified, cache_dir
from .tables import read_csv

SPLITS = ("paper", "random")


@dataclass(frozen=True)
class Provenance:
    """Where a data set comes from, and its caveats."""

    source: str
    authors: str
    licence: str
    caveats: str
    found: tuple[str, ...]  # the files that were read


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled data set with a training and a test part. Arrays may be read-only views of files."""

    name: str
    X_train: NDArray[Any]  # (n, h, w) grey, (n, 3, h, w) colour, (n, 2, length) I/Q, (n, d) vectors
    y_train: NDArray[np.int64]  # (n,), positions in class_names
    X_test: NDArray[Any]
    y_test: NDArray[np.int64]
    class_names: tuple[str, ...]
    kind: str  # "grey images", "colour images", "I/Q", "channel state", "texts" or "vectors"
    provenance: Provenance
    paper_new_classes: tuple[int, ...] | int  # which classes the paper hides, or how many
    groups_train: NDArray[np.str_] | None = None  # (n,), the transmission of each slice
    groups_test: NDArray[np.str_] | None = None
    texts_train: tuple[str, ...] | None = None  # (n,) sets of texts: what X are vectors of
    texts_test: tuple[str, ...] | None = None
    encoder: Mapping[str, Any] | None = None  # and what made them

    def new_classes(self, split: str | Sequence[int | str] = "paper", seed: int = 0) -> tuple[int, ...]:
        """The classes that `split` hides.

        "paper": those of the paper, drawn with `seed` if the paper draws them; "random": as many, always
        drawn with `seed`; or a list of classes, by number or by name.
        """
        if not isinstance(split, str):
            return self._by_number_or_name(split)
        if split not in SPLITS:
            near = (
                f" Did you mean {nearest[0]!r}?"
                if (nearest := difflib.get_close_matches(split, SPLITS))
                else ""
            )
            raise ValueError(
                f"split must be one of {', '.join(SPLITS)}, or a list of classes. Got {split!r}.{near}"
            )
        paper = self.paper_new_classes
        if split == "paper" and not isinstance(paper, int):
            return paper
        count = paper if isinstance(paper, int) else len(paper)
        drawn = np.random.default_rng(seed).choice(len(self.class_names), count, replace=False)
        return tuple(sorted(drawn.tolist()))

    def problem(self, split: str | Sequence[int | str] = "paper", seed: int = 0) -> OpenWorldProblem:
        """The open-world problem in which the labels of the new classes are hidden."""
        new = self.new_classes(split, seed)
        train, train_truth = hide_classes(self.X_train, self.y_train, new)
        _, test_truth = hide_classes(self.X_test, self.y_test, new)
        return OpenWorldProblem(train, train_truth, self.X_test, test_truth)

    def _by_number_or_name(self, classes: Sequence[int | str]) -> tuple[int, ...]:
        numbers = []
        for named in classes:
            number = self.class_names.index(named) if named in self.class_names else named
            if not isinstance(number, int | np.integer) or not 0 <= number < len(self.class_names):
                raise ValueError(
                    f"split must name classes of {self.name}: 0 to {len(self.class_names) - 1} or "
                    f"{', '.join(self.class_names[:10])}{', ...' if len(self.class_names) > 10 else ''}. "
                    f"Got {named!r}."
                )
            numbers.append(int(number))
        return tuple(sorted(set(numbers)))


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(SETS)


def load(
    name: str,
    *,
    encoder: str | None = "minilm",
    progress: Progress | None = None,
    encoding: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Load a public data set: from CDKNET_DATA or the cache, else downloaded and checked.

    Parameters
    ----------
    name
        mnist, fashion-mnist, cifar-100, digits, rf-50-sim or wifi-csi-30; or a set of texts: banking77,
        stackoverflow-20 or snips-7.
    encoder
        Sets of texts: what makes vectors of them (`cdknet.encoders`). None: texts alone, X has no columns.
    progress
        Called as progress(file name, bytes so far, total bytes or None) while a file is downloaded.
    encoding
        Sets of texts: called as encoding(texts done, all texts) while they are encoded.

    Raises
    ------
    ValueError
        If the name is unknown or a file is not the official one.
    FileNotFoundError
        If a file is not found and cannot be downloaded; the message says where to put it by hand.
    """
    public = _public(name)
    if name in ("mnist", "fashion-mnist"):
        return _load_idx_set(public, progress)
    if name == "cifar-100":
        return _load_cifar_100(public, progress)
    if name == "digits":
        return _load_digits(public)
    if public.kind == "texts":
        return _load_texts(public, encoder, progress, encoding)
    return _load_radio(public, progress)


def fetch(name: str, *, progress: Progress | None = None) -> list[Path]:
    """Make sure that every file of the data set is here and correct; return their paths."""
    public = _public(name)
    return [store.obtain(public, file, progress=progress) for file in public.files]


def verify(name: str) -> list[Verified]:
    """Check every file of the data set against its published SHA-256."""
    public = _public(name)
    if public.files:
        return store.verify(public)
    return [Verified(public.name, True, "has no files: it comes with a package or is generated on demand")]


def describe(name: str) -> dict[str, str]:
    """Facts about a data set without loading it, as title -> text, in the order to show them."""
    public = _public(name)
    found = [str(path) for file in public.files if (path := store.find(public, file)) is not None]
    missing = len(public.files) - len(found)
    where = "\n".join(found) or ("not on this machine" if public.files else "needs no files")
    if found and missing:
        where += f"\nand {missing} more that are not on this machine"
    n_new = public.new_classes if isinstance(public.new_classes, int) else len(public.new_classes)
    n_old = len(public.class_names) - n_new
    how = "drawn with a seed" if isinstance(public.new_classes, int) else f"new: {_span(public)}"
    counts = f"{public.n_train:,} training, {public.n_test:,} test"
    return {
        "Set": public.title,
        "Kind": public.kind,
        "Samples": counts,
        "Sample": public.sample,
        "Classes": f"{len(public.class_names)}: {_shortened(public.class_names)}",
        "Paper's split": f"{n_old} old, {n_new} new ({how})",
        "Source": public.source,
        "Authors": public.authors,
        "Licence": public.licence,
        "Caveats": public.caveats,
        "Files": where,
    }


def _public(name: str) -> PublicSet:
    if name not in SETS:
        near = difflib.get_close_matches(str(name), SETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"a data set must be one of {', '.join(SETS)}. Got {name!r}.{hint}")
    return SETS[name]


def _span(public: PublicSet) -> str:
    new = public.new_classes
    return "" if isinstance(new, int) else f"{public.class_names[new[0]]} to {public.class_names[new[-1]]}"


def _shortened(words: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(words[:most]) + (f", ... {words[-1]}" if len(words) > most else "")


def _provenance(public: PublicSet, found: Sequence[Path]) -> Provenance:
    return Provenance(
        public.source, public.authors, public.licence, public.caveats, tuple(str(path) for path in found)
    )


def _load_idx_set(public: PublicSet, progress: Progress | None) -> Dataset:
    paths = [store.locate(public, file, progress=progress) for file in public.files]
    parts = zip(paths, public.files, strict=True)
    X_train, y_train, X_test, y_test = (_decoded(public, path, file) for path, file in parts)
    return Dataset(
        public.name,
        X_train,
        y_train.astype(np.int64),
        X_test,
        y_test.astype(np.int64),
        public.class_names,
        public.kind,
        _provenance(public, paths),
        public.new_classes,
    )


def _decoded(public: PublicSet, path: Path, file: PublicFile) -> NDArray[Any]:
    """The array of an IDX file, memory-mapped: the file itself if plain, else a decoded copy in the cache.

    The copy is named after the SHA-256 of the compressed file and made only from official content, so a copy
    with the right name need not be checked again.
    """
    if path.suffix != ".gz" or file.size < 2**20:
        store.check_official(path, file)
        return load_idx(path)
    sha256, _ = store.content_sha256(path, file.size, unpack=False)
    copy = cache_dir() / "decoded" / f"{public.name}-{file.name.removesuffix('.gz')}-{sha256[:32]}.npy"
    if copy.is_file():
        with contextlib.suppress(ValueError):  # e.g. truncated by a full disk: made again below
            return load_npy(copy)
    store.check_official(path, file)
    array = load_idx(path)
    try:
        save_whole(copy, array)
    except OSError:  # without a writable cache it is slower, but works
        return array
    return load_npy(copy)


def save_whole(path: Path, array: NDArray[Any]) -> None:
    """Write a `.npy` file under a temporary name, then rename it: no reader sees an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=".writing-", suffix=".npy", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _load_cifar_100(public: PublicSet, progress: Progress | None) -> Dataset:
    paths = [store.obtain(public, file, progress=progress) for file in public.files]
    train, test = (load_cifar(path) for path in paths)
    return Dataset(
        public.name,
        train.X,
        train.labels.astype(np.int64),
        test.X,
        test.labels.astype(np.int64),
        public.class_names,
        public.kind,
        _provenance(public, paths),
        public.new_classes,
    )


def _load_digits(public: PublicSet) -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.RandomState(0).permutation(len(bunch.target))  # RandomState: stable across versions
    train, test = order[: public.n_train], order[public.n_train :]
    X, y = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
    return Dataset(
        public.name,
        X[train],
        y[train],
        X[test],
        y[test],
        public.class_names,
        public.kind,
        _provenance(public, ()),
        public.new_classes,
    )


def _load_texts(
    public: PublicSet,
    encoder: str | None,
    progress: Progress | None,
    encoding: Callable[[int, int], None] | None,
) -> Dataset:
    paths = [store.obtain(public, file, progress=progress) for file in public.files]
    parts = [read_csv(path, text=["text"], label_column="label") for path in paths]
    position = {name: index for index, name in enumerate(public.class_names)}
    X, y, texts = [], [], []
    for part in parts:
        assert part.texts is not None
        assert part.y is not None
        texts.append(part.texts)
        y.append(np.array([position[name] for name in part.y.tolist()], dtype=np.int64))
        X.append(part.X)
    about = None
    if encoder is not None:
        from cdknet import encoders  # imported late: only sets of texts need it

        about = encoders.encoder(encoder, "texts").about()
        X = [encoders.encode(part, encoder, progress=encoding) for part in texts]
    return Dataset(
        public.name,
        X[0],
        y[0],
        X[1],
        y[1],
        public.class_names,
        public.kind,
        _provenance(public, paths),
        public.new_classes,
        texts_train=texts[0],
        texts_test=texts[1],
        encoder=about,
    )


def _load_radio(public: PublicSet, progress: Progress | None) -> Dataset:
    from cdknet import radio  # imported late: only two data sets need it

    if public.files:
        paths = [store.obtain(public, file, progress=progress) for file in public.files]
        made: dict[str, Any] = radio.load_wifi_csi_30(paths[0])
    else:
        paths = []
        made = radio.load_rf50_sim(cache_dir())
    details = made["provenance"]  # includes the recipe of the simulation, and the preparation of both
    source = public.source if public.files else details["source"]
    found = tuple(str(path) for path in paths)
    provenance = Provenance(source, public.authors, public.licence, details["caveats"], found)
    return Dataset(
        public.name,
        made["X_train"],
        np.asarray(made["y_train"], dtype=np.int64),
        made["X_test"],
        np.asarray(made["y_test"], dtype=np.int64),
        tuple(made["class_names"]),
        public.kind,
        provenance,
        public.new_classes,
        made.get("groups_train"),
        made.get("groups_test"),
    )
