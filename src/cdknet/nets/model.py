"""The model: a network, and a classifier of its features if it has no outputs for new classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import nn

from cdknet.core.classifiers import Centers, Classifier, Neighbors
from cdknet.inputs.arrays import Inputs
from cdknet.nets.architectures import ARCHITECTURES, build_network
from cdknet.nets.growth import grow
from cdknet.nets.network import Embedded, Network, embed

LARGEST_SAMPLE = 2**26  # most values of one sample
_NETWORK = "network."  # prefix of the names of the network's weights


class Blueprint(NamedTuple):
    """All that is needed to build a network before its weights are loaded. Plain JSON values."""

    architecture: str  # older versions have "encoder" here for a user's own encoder
    sample_shape: tuple[int, ...]
    statistics_size: int
    feature_size: int | None
    n_old_classes: int
    n_new_classes: int
    expansion: str
    extra_units: float
    pixels: bool | None = None  # the samples were uint8; None: not stored by older versions
    own_encoder: bool = False  # the trunk is a user's own

    def check(self, n_weights: int) -> None:
        """Raise if a network of this shape cannot have `n_weights` weights. Called before it is built."""
        if self.architecture not in (*ARCHITECTURES, "encoder"):
            raise ValueError(f"The run must have a network that there is. Got {self.architecture!r:.100}.")
        grown = math.ceil(self.extra_units * (self.feature_size or 0)) if self.expansion != "none" else 0
        claimed = (
            self.statistics_size,
            self.feature_size or 0,
            grown,
            self.n_old_classes,
            self.n_new_classes,
        )
        if max(claimed) > n_weights or self.extra_units > n_weights or min(claimed) < 0:
            raise ValueError(f"The run's network must fit its {n_weights:,} weights. Got {self}.")
        if not 0 < math.prod(self.sample_shape) <= LARGEST_SAMPLE or min(self.sample_shape) < 1:
            raise ValueError(f"The run's samples must have a shape to work with. Got {self.sample_shape}.")

    def build(self, encoder: nn.Module | None = None) -> Network:
        """A network of this shape, with arbitrary weights."""
        older = self.architecture == "encoder"
        own = self.own_encoder or older
        if own != (encoder is not None):
            raise ValueError(
                "This model was made with an encoder of your own: give an untrained one as encoder=."
                if own
                else "This model was made with a built-in network: leave encoder out."
            )
        with torch.random.fork_rng(devices=[]):  # do not change the caller's random state
            network = build_network(
                self.sample_shape,
                self.n_old_classes,
                architecture="paper" if older else self.architecture,
                encoder=encoder,
                feature_size=self.feature_size,
                statistics=(torch.zeros(self.statistics_size), torch.ones(self.statistics_size)),
            )
            if self.expansion == "none":
                return network
            return grow(network, self.expansion, self.n_new_classes, self.extra_units).network


class Model(NamedTuple):
    """The expanded network or, without expansion, a network and a classifier of f(x)."""

    network: Network
    normalize: bool
    classifier: Classifier | None = None  # None if the network has outputs for all classes

    def apply(self, inputs: Inputs) -> Embedded:
        """Features f(x) and logits over old and new classes, of every sample."""
        features, logits = embed(self.network, inputs, normalize=self.normalize)
        if self.classifier is not None:
            logits = self.classifier.logits(features)
        return Embedded(features, logits)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The network's weights and the classifier's points, for a file."""
        state = self.network.state_dict()
        weights = {f"{_NETWORK}{name}": weight.cpu().numpy() for name, weight in state.items()}
        if isinstance(self.classifier, Centers):
            weights["centers"] = self.classifier.points.numpy()
        elif isinstance(self.classifier, Neighbors):
            weights |= {"voters": self.classifier.points.numpy(), "votes": self.classifier.labels.numpy()}
        return weights

    @property
    def scale(self) -> float:
        """The unit of distances to centres; 1 where there are none."""
        return self.classifier.scale if isinstance(self.classifier, Centers) else 1.0

    @classmethod
    def from_arrays(
        cls,
        weights: Mapping[str, NDArray[Any]],
        network: Network,
        *,
        n_classes: int,
        normalize: bool,
        scale: float,
        neighbors: int,
    ) -> Model:
        """The model with these `arrays`, in a network built from its blueprint."""
        state = {
            name.removeprefix(_NETWORK): torch.from_numpy(weight)
            for name, weight in weights.items()
            if name.startswith(_NETWORK)
        }
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"The run's weights must fit its network. Got {error}.") from None
        classifier: Classifier | None = None
        if "centers" in weights:
            classifier = Centers(torch.from_numpy(weights["centers"]), scale)
        elif "voters" in weights and "votes" in weights:
            voters, votes = (torch.from_numpy(weights[k]) for k in ("voters", "votes"))
            if len(voters) != len(votes) or not 0 <= int(votes.min()) <= int(votes.max()) < n_classes:
                raise ValueError("The run must have a class for each voter. Got votes that do not fit.")
            classifier = Neighbors(voters, votes, n_classes, neighbors)
        return cls(network.eval(), normalize, classifier)
