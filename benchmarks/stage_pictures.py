"""Draw docs/pictures/stages.png: t-SNE of held-out digits in the features of each stage.

python benchmarks/stage_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdknet import ClassDiscovery, data
from cdknet.runs.figures import map_2d, new_figure

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "stages.png"
TITLES = {
    "cd-knet": {
        "pretrain": "stage 1: old classes",
        "discover": "stage 2: U and old labels",
        "expand": "stage 3",
    },
    "cd-knet+": {"discover": "stage 2: views, old labels, heads", "expand": "stage 3"},
}


def main() -> None:
    problem = data.load("digits").problem()
    truth = problem.test_truth
    panels = [[("pixels", problem.X_test.reshape(len(problem.X_test), -1))]] * 2
    for row, (method, titles) in enumerate(TITLES.items()):
        model = ClassDiscovery(
            n_new_classes=problem.n_new_classes,
            method=method,
            random_state=0,
            calibrate=False,
            unlabelled="new",
        ).fit(problem.train.X, problem.train.y)
        found = [(title, model.transform(problem.X_test, stage=stage)) for stage, title in titles.items()]
        panels[row] = panels[row] + found
    figure = new_figure(14, 7.4)
    for row, parts in enumerate(panels):
        for column, (title, features) in enumerate(parts):
            axes = figure.add_subplot(2, 4, 4 * row + column + 1)
            places = map_2d(np.ascontiguousarray(features, dtype=np.float32))
            for c in range(10):
                member = truth.y == c
                new = bool(truth.is_new[member][0])
                axes.scatter(*places[member].T, s=22 if new else 10, marker="x" if new else "o", linewidths=1)
                at = np.median(places[member], axis=0)
                axes.annotate(str(c), at, ha="center", va="center", fontsize=11, weight="bold")
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_color("#cccccc")
    figure.savefig(OUT, dpi=80)
    print(OUT)


if __name__ == "__main__":
    main()
