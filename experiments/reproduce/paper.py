"""The numbers printed in the paper. By the code released with it, what it calls ACC is purity."""

from __future__ import annotations

# Table III and Table IV: ACC, NMI, ARI.
PERFORMANCE: dict[tuple[str, str], tuple[float, float, float]] = {
    ("sscd", "mnist"): (0.840, 0.629, 0.649),
    ("sscd-exp", "mnist"): (0.887, 0.791, 0.812),
    ("ucd-knet", "mnist"): (0.849, 0.645, 0.664),
    ("ucd-knet-exp", "mnist"): (0.926, 0.794, 0.829),
    ("cd-knet", "mnist"): (0.869, 0.683, 0.707),
    ("cd-knet-exp", "mnist"): (0.945, 0.856, 0.869),
    ("sscd", "fashion-mnist"): (0.552, 0.386, 0.316),
    ("sscd-exp", "fashion-mnist"): (0.596, 0.477, 0.376),
    ("ucd-knet", "fashion-mnist"): (0.587, 0.476, 0.403),
    ("ucd-knet-exp", "fashion-mnist"): (0.622, 0.518, 0.470),
    ("cd-knet", "fashion-mnist"): (0.655, 0.535, 0.463),
    ("cd-knet-exp", "fashion-mnist"): (0.679, 0.603, 0.529),
    ("sscd", "cifar-100"): (0.201, 0.193, 0.064),
    ("sscd-exp", "cifar-100"): (0.213, 0.204, 0.066),
    ("ucd-knet", "cifar-100"): (0.220, 0.216, 0.078),
    ("ucd-knet-exp", "cifar-100"): (0.247, 0.237, 0.091),
    ("cd-knet", "cifar-100"): (0.232, 0.228, 0.080),
    ("cd-knet-exp", "cifar-100"): (0.269, 0.256, 0.102),
    # RF-50, which is not public. rf-50-sim stands in for it: its numbers need not agree.
    ("sscd", "rf-50-sim"): (0.524, 0.194, 0.184),
    ("sscd-exp", "rf-50-sim"): (0.578, 0.230, 0.220),
    ("ucd-knet", "rf-50-sim"): (0.553, 0.244, 0.273),
    ("ucd-knet-exp", "rf-50-sim"): (0.585, 0.279, 0.309),
    ("cd-knet", "rf-50-sim"): (0.587, 0.453, 0.456),
    ("cd-knet-exp", "rf-50-sim"): (0.610, 0.481, 0.485),
    ("dec", "mnist"): (0.873, 0.835, 0.822),
    ("dec", "fashion-mnist"): (0.620, 0.566, 0.522),
    ("dec", "cifar-100"): (0.205, 0.166, 0.073),
    ("dac", "mnist"): (0.894, 0.843, 0.865),
    ("dac", "fashion-mnist"): (0.642, 0.588, 0.543),
    ("dac", "cifar-100"): (0.247, 0.195, 0.088),
}

# Table V, Fashion-MNIST: lambda -> ACC, NMI, ARI. They equal the rows of Table III without expansion.
LAMBDA: dict[float, tuple[float, float, float]] = {
    10.0: (0.655, 0.535, 0.463),
    0.0: (0.587, 0.476, 0.403),
    float("inf"): (0.544, 0.375, 0.276),
}

# Table VI, MNIST: new classes before and after expansion, old classes before and after.
EXPANSION: dict[str, tuple[float, float, float, float]] = {
    "sscd-exp": (0.840, 0.887, 0.988, 0.892),
    "ucd-knet-exp": (0.849, 0.926, 0.988, 0.983),
    "cd-knet-exp": (0.869, 0.945, 0.988, 0.983),
}

# Not from this paper: what DEC's and DAC's own papers report for MNIST's ten digits, without labels.
PLAIN = {"dec": 0.843, "dac": 0.978}
