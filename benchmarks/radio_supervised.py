"""Accuracy of the paper's RF network on held-out samples of the old devices of rf-50-sim (or wifi-csi-30).

    python benchmarks/radio_supervised.py                        # rf-50-sim, 35 old devices, some minutes
    python benchmarks/radio_supervised.py --seeds 0 1 2          # three seeds, one after the other
    python benchmarks/radio_supervised.py --csi wifi_csi_30.npz  # wifi-csi-30, 20 old devices, a small MLP

Prints accuracy per slice and per transmission (mean log-probability over its slices), and writes nothing.
The seed sets the old devices, the initial weights and the order of the batches.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cdknet.radio import Simulation, load_rf50_sim, load_wifi_csi_30, vote


def rf_network(n_classes: int, length: int = 198, start: str = "he") -> nn.Module:
    """The paper's network for I/Q slices: five stacks of two convolutions and a pool, three dense layers."""
    layers: list[nn.Module] = []
    channels = 2
    for _ in range(5):
        layers += [nn.Conv1d(channels, 128, 7, padding=3), nn.ReLU()]
        layers += [nn.Conv1d(128, 128, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
        channels, length = 128, length // 2
    layers += [nn.Flatten(), nn.Linear(128 * length, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(128, n_classes))
    for layer in network:
        if start == "he" and isinstance(layer, nn.Conv1d | nn.Linear):
            # torch's own initialisation shrinks the signal in each of these thirteen layers
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return network


def csi_network(n_classes: int, size: int) -> nn.Module:
    """Two dense layers of 256 with dropout, for standardised channel-state features."""
    layers = [
        nn.Linear(size, 256),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Dropout(0.3),
    ]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(256, n_classes))


def train(network: nn.Module, X: np.ndarray, y: np.ndarray, *, epochs: int, rate: float, seed: int) -> None:
    """Adam under a one-cycle schedule, batches of 128, on the mean cross-entropy."""
    X_, y_ = torch.from_numpy(np.array(X)), torch.from_numpy(y)
    generator = torch.Generator().manual_seed(seed)
    steps = -(-len(X_) // 128)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * steps)
    network.train()
    for epoch in range(epochs):
        start, total = time.perf_counter(), 0.0
        for rows in torch.randperm(len(X_), generator=generator).split(128):
            loss = nn.functional.cross_entropy(network(X_[rows]), y_[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(
            f"  epoch {epoch + 1:2d}  loss {total / len(X_):.3f}  {time.perf_counter() - start:.1f} s",
            flush=True,
        )


@torch.no_grad()
def log_proba(network: nn.Module, X: np.ndarray) -> np.ndarray:
    """Log-probabilities of the classes."""
    network.eval()
    batches = torch.from_numpy(np.array(X)).split(512)
    return torch.cat([network(b).log_softmax(dim=1) for b in batches]).numpy()


def old_only(data: dict, n_old: int, seed: int) -> dict:
    """Select `n_old` random classes, renumbered 0 .. n_old - 1."""
    old = np.sort(np.random.default_rng(seed).permutation(len(data["class_names"]))[:n_old])
    out = {}
    for part in ("train", "test"):
        rows = np.isin(data[f"y_{part}"], old)
        out[f"X_{part}"] = np.asarray(data[f"X_{part}"])[rows]
        out[f"y_{part}"] = np.searchsorted(old, data[f"y_{part}"][rows])
        out[f"groups_{part}"] = data[f"groups_{part}"][rows]
    return out


def measure(data: dict, network: nn.Module, *, epochs: int, rate: float, seed: int) -> dict:
    """Train, and score the test part."""
    start = time.perf_counter()
    train(network, data["X_train"], data["y_train"], epochs=epochs, rate=rate, seed=seed)
    seconds = time.perf_counter() - start
    scores = log_proba(network, data["X_test"])
    _, first, inverse = np.unique(data["groups_test"], return_index=True, return_inverse=True)
    names, voted = vote(scores, data["groups_test"])
    assert len(names) == len(first) == inverse.max() + 1
    return {
        "seed": seed,
        "slice_accuracy": round(float(np.mean(scores.argmax(1) == data["y_test"])), 4),
        "transmission_accuracy": round(float(np.mean(voted.argmax(1) == data["y_test"][first])), 4),
        "train_slices": len(data["y_train"]),
        "test_transmissions": len(names),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="default 8 (rf-50-sim), 15 (wifi-csi-30)")
    parser.add_argument("--rate", type=float, help="highest learning rate, default 4e-4 (rf-50-sim)")
    parser.add_argument("--start", choices=("he", "torch"), default="he", help="initial weights")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--csi", type=Path, help="measure on this wifi_csi_30.npz instead")
    parser.add_argument("--burst", type=int, default=10, help="frames averaged into one sample (wifi-csi-30)")
    parser.add_argument("--recipe", type=json.loads, default={}, help="other simulator parameters, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = {k: tuple(v) if isinstance(v, list) else v for k, v in args.recipe.items()}
    start = time.perf_counter()
    if args.csi:
        data = load_wifi_csi_30(args.csi, burst=args.burst)
    else:
        data = load_rf50_sim(None, Simulation(**recipe))
    print(f"data ready in {time.perf_counter() - start:.1f} s", flush=True)
    for seed in args.seeds:
        torch.manual_seed(seed)
        chosen = old_only(data, 20 if args.csi else min(35, len(data["class_names"])), seed)
        n_classes = int(chosen["y_train"].max()) + 1
        if args.csi:
            size = int(np.prod(chosen["X_train"].shape[1:]))
            network, epochs, rate = csi_network(n_classes, size), args.epochs or 15, 2e-3
        else:
            network, epochs, rate = (
                rf_network(n_classes, start=args.start),
                args.epochs or 8,
                args.rate or 4e-4,
            )
        print(json.dumps(measure(chosen, network, epochs=epochs, rate=rate, seed=seed)), flush=True)


if __name__ == "__main__":
    main()
