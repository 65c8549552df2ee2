"""Speed of the engine, as ratios to a reference in the same run: HSIC, the U step, layers, stages 1 and 2.

python benchmarks/engine.py            all of them, about ten minutes on two cores
python benchmarks/engine.py hsic       one of hsic, ustep, training, layers, plus
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdknet.core.hsic import Factor, gaussian_kernel, hsic, hsic_normalized, normalize_by_degree
from cdknet.core.spectral import median_distance, spectral_embedding
from cdknet.fit.plan import resolve
from cdknet.fit.pretrain import pretrain
from cdknet.inputs.arrays import Inputs
from cdknet.methods import method_of
from cdknet.nets.architectures import build_network
from cdknet.nets.augment import grey_views
from cdknet.nets.layers import Dropout, OverTime
from cdknet.nets.network import has_bfloat16
from cdknet.training.context import FitContext
from cdknet.training.memory import keep_freed_memory
from cdknet.training.problem import Problem


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Median time of a few calls, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# HSIC


def hsic_as_written(z: Tensor, sigma: float, F: Tensor) -> Tensor:
    """tr(K H L H) / (n - 1)² of a degree-normalised Gaussian kernel, building every matrix of the formula."""
    n = len(z)
    K = torch.exp(-torch.cdist(z, z).square() / (2 * sigma**2))
    D = torch.diag(K.sum(dim=1).rsqrt())
    H = torch.eye(n) - torch.ones(n, n) / n
    return torch.trace(D @ K @ D @ H @ (F @ F.T) @ H) / (n - 1) ** 2


def plain_as_written(z: Tensor, sigma: float, F: Tensor) -> Tensor:
    """The same without degree normalisation: Eq. (3) alone."""
    n = len(z)
    K = torch.exp(-torch.cdist(z, z).square() / (2 * sigma**2))
    H = torch.eye(n) - torch.ones(n, n) / n
    return torch.trace(K @ H @ (F @ F.T) @ H) / (n - 1) ** 2


def ours(z: Tensor, sigma: float, F: Tensor) -> Tensor:
    return hsic_normalized(gaussian_kernel(z, sigma), Factor(F))


def ours_plain(z: Tensor, sigma: float, F: Tensor) -> Tensor:
    return hsic(gaussian_kernel(z, sigma), Factor(F))


HSIC_WAYS = {
    "ours": ours,
    "as written": hsic_as_written,
    "ours, Eq. (3)": ours_plain,
    "Eq. (3)": plain_as_written,
}


def hsic_problem(n: int, d: int = 128, m: int = 10) -> tuple[Tensor, float, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = nn.functional.normalize(torch.randn(n, d, generator=generator))
    return z, 0.4 * median_distance(z), torch.linalg.qr(torch.randn(n, m, generator=generator)).Q


def forward_and_backward(name: str, n: int) -> Callable[[], Tensor]:
    z, sigma, F = hsic_problem(n)
    z.requires_grad_()

    def call() -> Tensor:
        z.grad = None
        HSIC_WAYS[name](z, sigma, F).backward()
        assert z.grad is not None
        return z.grad

    return call


def peak_memory(name: str, n: int) -> int:
    """Additional bytes that forward and backward need, measured in a process of its own (Linux)."""
    arguments = [sys.executable, __file__, "--peak-of", name, str(n)]
    return int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)


def _print_peak(name: str, n: int) -> None:
    forward_and_backward(name, 64)()
    call = forward_and_backward(name, n)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    call()
    print(_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def benchmark_hsic() -> None:
    n = 4096
    print(f"\nHSIC(f(X), U), forward and backward, N = {n}, d = 128, float32")
    for mine, reference in (("ours", "as written"), ("ours, Eq. (3)", "Eq. (3)")):
        gradients = [forward_and_backward(name, 512)() for name in (mine, reference)]
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-9)
        times = {name: seconds(forward_and_backward(name, n)) for name in (mine, reference)}
        memory = {name: peak_memory(name, n) / (4 * n * n) for name in (mine, reference)}
        for name in (mine, reference):
            print(f"  {name:14} {times[name]:8.3f} s   peak {memory[name]:5.1f} N² floats")
        print(f"  ratio {times[reference] / times[mine]:.1f} x   (wanted: at least 20 x, below 8 N² floats)")


# The U step


def ustep_features(n: int, d: int = 128, groups: int = 12) -> Tensor:
    """Features as in stage 2: overlapping groups on the unit sphere."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(groups, d, generator=generator)
    z = centres[torch.arange(n) % groups] + 1.0 * torch.randn(n, d, generator=generator)
    return nn.functional.normalize(z)


def benchmark_ustep() -> None:
    r, n = 10, 5000
    z = ustep_features(n)
    sigma = 0.4 * median_distance(z)
    print(f"\nU step, N = {n}, r = {r}, float32")

    def full() -> object:
        K = normalize_by_degree(gaussian_kernel(z, sigma))
        centred = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
        return torch.linalg.eigh(centred)

    start = time.perf_counter()
    reference = full()
    slow = time.perf_counter() - start
    fast = seconds(lambda: spectral_embedding(z, r, sigma))
    U = spectral_embedding(z, r, sigma).vectors
    V = reference.eigenvectors[:, -r:]  # type: ignore[attr-defined]
    agreement = float((U.T @ V).square().sum()) / r
    print(f"  ours {fast:.2f} s, full torch.linalg.eigh {slow:.1f} s, subspace agreement {agreement:.6f}")
    print(f"  ratio {slow / fast:.1f} x   (wanted: at least 30 x)")
    print("  growth, r = 10:      N     seconds   memory of the kernel     landmarks instead")
    for size in (1000, 2000, 5000, 10_000, 20_000):
        z = ustep_features(size)
        dense = seconds(lambda z=z: spectral_embedding(z, r, sigma, memory_limit=4e9), repeats=1)
        marks = seconds(
            lambda z=z: spectral_embedding(z, r, sigma, memory_limit=12 * len(z) * 1000), repeats=1
        )
        landmarks = f"{marks:8.2f} s" if 12 * size * 1000 < 4 * size**2 else "        -"
        print(f"                  {size:6}  {dense:8.2f} s  {4 * size**2 / 1e9:8.2f} GB       {landmarks}")
        gc.collect()


# Stage 1


def bare_loop(network: nn.Module, X: Tensor, y: Tensor, batches: list[Tensor], rate: float) -> None:
    """The obvious ten-line loop: float images in memory, the same batches."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    network.train()
    for batch in batches:
        loss = nn.functional.cross_entropy(network(X[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def benchmark_training() -> None:
    n, size, epochs = 6000, 128, 2
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(0, 256, (n, 28, 28), generator=generator, dtype=torch.uint8)
    y = torch.arange(n) % 5
    print(f"\nStage 1, the MNIST network, {n} images of uint8, batches of {size}, {epochs} epochs")
    keep_freed_memory()  # for both
    problem = Problem(Inputs(X.numpy()), torch.arange(n), y, torch.arange(0), 5)
    few = {
        "pretrain_epochs": epochs,
        "early_stopping": False,
        "batch_size": size,
        "validation_fraction": 1e-9,
        "unlabelled": "new",
    }
    options = resolve({"method": "sscd", "n_new_classes": 5, **few}, (28, 28), 5, FitContext()).options
    network = build_network((28, 28), 5)
    floats = X.float().div(255)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(3):  # alternating, so that a slow moment of the machine affects both
        start = time.perf_counter()
        pretrain(network, problem, options, FitContext())
        times["ours"].append(time.perf_counter() - start)
        order = [torch.randperm(n, generator=generator)[5:].split(size) for _ in range(epochs)]
        start = time.perf_counter()
        bare_loop(build_network((28, 28), 5), floats, y, [b for e in order for b in e], options.learning_rate)
        times["bare"].append(time.perf_counter() - start)
    rates = {name: epochs * n / statistics.median(t) for name, t in times.items()}
    print(f"  ours {rates['ours']:.0f} images/s, bare PyTorch loop {rates['bare']:.0f} images/s")
    print(f"  throughput {rates['ours'] / rates['bare']:.3f} of the bare loop's   (wanted: at least 0.95)")


# Layers

NETWORKS = {
    "the MNIST network": ("paper-mnist", (28, 28)),
    "the CIFAR network": ("paper-cifar", (3, 32, 32)),
    "the RF network": ("paper-rf", (2, 198)),
    "the small network of CD-KNet+, I/Q": ("small", (2, 198)),
}


def with_torchs_layers(trunk: nn.Module) -> nn.Sequential:
    """One of our trunks with torch's own layers: nn.Conv1d with its pooling and norm, nn.Dropout."""
    over_time = any(isinstance(layer, OverTime) for layer in trunk.modules())
    layers: list[nn.Module] = []
    for layer in copy.deepcopy(trunk).children():
        if isinstance(layer, OverTime):
            padding, has_bias = cast(tuple[int, ...], layer.padding), layer.bias is not None
            ends, size = (layer.in_channels, layer.out_channels), layer.kernel_size[0]
            layer = nn.Conv1d(*ends, size, layer.stride[0], padding[0], bias=has_bias)
        elif over_time and isinstance(layer, nn.MaxPool2d):
            layer = nn.MaxPool1d(2)
        elif over_time and isinstance(layer, nn.BatchNorm2d):
            layer = nn.BatchNorm1d(layer.num_features)
        elif over_time and isinstance(layer, nn.AdaptiveAvgPool2d):
            layer = nn.AdaptiveAvgPool1d(4)
        elif isinstance(layer, Dropout):
            layer = nn.Dropout(layer.p)
        layers.append(layer)
    return nn.Sequential(*layers)


def benchmark_layers() -> None:
    keep_freed_memory()  # for both
    print("\nA training step of 128 samples, against the same network of torch's own layers")
    for title, (architecture, shape) in NETWORKS.items():
        ours = build_network(shape, 10, architecture=architecture).train()
        plain = copy.deepcopy(ours)
        plain.trunk = with_torchs_layers(ours.trunk)
        x, y = torch.randn(128, *shape), torch.arange(128) % 10
        times: dict[str, list[float]] = {"ours": [], "plain": []}
        for network in (ours, plain):
            network.in_bfloat16 = has_bfloat16(x.device)
        for turn in range(9):  # alternating, so that a slow moment of the machine affects both
            for name, network in (("ours", ours), ("plain", plain)):
                start = time.process_time()
                nn.functional.cross_entropy(network(x), y).backward()
                times[name] += [time.process_time() - start] * (turn > 0)
        fast, slow = (1000 * statistics.median(times[name]) for name in ("ours", "plain"))
        short = "bfloat16" if ours.in_bfloat16 else "float32"
        print(f"  {title}, {short}: {fast:.0f} ms, torch's {slow:.0f} ms, {slow / fast:.2f} x as fast")


# Stage 2 of CD-KNet+

STEPS, NEW, OLD = 12, 512, 256


def bare_views_loop(X: Tensor, y: Tensor) -> float:
    """Images per second of the same network on the same augmented views, with the simplest loss."""
    network = build_network((28, 28), 5, architecture="small")
    head = nn.Linear(network.penultimate.out_features, 5)
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], lr=0.001)
    generator = torch.Generator().manual_seed(0)
    network.train()
    start = time.perf_counter()
    for _ in range(STEPS):
        x = X[torch.randint(len(X), (NEW,), generator=generator)]
        old = torch.randint(len(X), (OLD,), generator=generator)
        parts = [grey_views(x, generator), grey_views(x, generator), grey_views(X[old], generator)]
        z = network.features(torch.cat(parts))
        z = z / z.norm(dim=1, keepdim=True)
        apart = (z[:NEW] - z[NEW : 2 * NEW]).square().sum(dim=1).mean()
        loss = apart + nn.functional.cross_entropy(head(z[2 * NEW :]), y[old])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return STEPS * (2 * NEW + OLD) / (time.perf_counter() - start)


def by_turns(z: NDArray[Any], k: int, seed: int) -> NDArray[Any]:
    """Clusters at no cost."""
    return np.arange(len(z)) % k


def benchmark_plus() -> None:
    n = STEPS * NEW // 2  # an epoch then has half of the steps
    X = torch.rand(2 * n, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(2 * n) % 5
    print(f"\nStage 2 of CD-KNet+, small network, steps of {NEW} new images in two views and {OLD} old ones")
    floor = _bare_rate_alone()
    keep_freed_memory()  # for both
    problem = Problem(Inputs(X.numpy()), torch.arange(n), y[:n], torch.arange(n, 2 * n), 5)
    turns = [("views and labels", (STEPS, 0), False), ("and heads", (0, STEPS), False)]
    if has_bfloat16(torch.device("cpu")):
        turns.append(("and heads, in bfloat16", (0, STEPS), True))
    rates: dict[str, list[float]] = {name: [] for name in (*(turn[0] for turn in turns), "bare")}
    for _ in range(3):  # alternating
        for name, steps, short in turns:
            context = FitContext(clusterer=by_turns)
            params = {"n_new_classes": 5, "view_steps": steps[0], "head_steps": steps[1]}
            plan = resolve({"method": "cd-knet+", "unlabelled": "new", **params}, (28, 28), 5, context)
            network = build_network((28, 28), 5, architecture="small")
            network.in_bfloat16 = short
            method_of("cd-knet+").discover(network, problem, plan.options, context)
            taken = sum(row["seconds"] for row in context.history)
            rates[name].append(STEPS * (2 * NEW + OLD) / taken)
        rates["bare"].append(bare_views_loop(X, y))
    bare = statistics.median(rates.pop("bare"))
    print(f"  bare PyTorch loop, same network and views: {bare:.0f} images/s")
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"  {name}: {rate:.0f} images/s, {rate / bare:.3f} of the bare loop's   (wanted: at least 0.9)")
    print(
        f"  the same with glibc's default memory settings: {floor:.0f} images/s; ours: {bare / floor:.2f} x"
    )


def _bare_rate_alone() -> float:
    """The bare loop in a process with the default allocator settings."""
    command = [sys.executable, __file__, "--bare-rate"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _print_bare_rate() -> None:
    n = STEPS * NEW
    X = torch.rand(n, 28, 28, generator=torch.Generator().manual_seed(0))
    print(statistics.median(bare_views_loop(X, torch.arange(n) % 5) for _ in range(3)))


PARTS = {
    "hsic": benchmark_hsic,
    "ustep": benchmark_ustep,
    "training": benchmark_training,
    "layers": benchmark_layers,
    "plus": benchmark_plus,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--bare-rate", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare_rate:
        _print_bare_rate()
        return
    if arguments.peak_of:
        _print_peak(arguments.peak_of[0], int(arguments.peak_of[1]))
        return
    names = arguments.parts or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}. Got {unknown[0]}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores, {torch.get_num_threads()} threads, torch {torch.__version__}, {platform.system()}")
    for name in names:
        PARTS[name]()


if __name__ == "__main__":
    main()
