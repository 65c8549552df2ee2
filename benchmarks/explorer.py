"""Speed and memory of the explorer's server, for 60,000 and 100,000 points.

    python benchmarks/explorer.py [--points 60000 100000] [--results results/explorer.jsonl]

- A synthetic run folder for each size: 28 x 28 images, 160 features, 20 classes that overlap much, the first
  with 10,000 samples, names as long as paths. Nothing is trained: the server does not depend on it.
- Each line is one server in a process of its own, queried over HTTP on this machine.
- Times are in milliseconds: the median of several requests, or "first" where a request cannot be repeated.
- "first map" is the time from starting the command to having everything that the page needs for the map.
- "held" is the process's own memory (RssAnon), "most" its peak including file pages (VmHWM).

Also the report of MNIST's 10,000 test images, if they are on this machine: its size and its time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np

from cdknet.runs.format import Run, write_run

N_CLASSES, LARGE = 20, 10_000


def make_run(folder: Path, X: np.ndarray, features: np.ndarray, labels: np.ndarray, n_old: int) -> Path:
    """A run folder of these samples, with random confidences."""
    m = int(labels.max()) + 1
    names = [f"kind {i}" for i in range(n_old)] + [f"new-{i + 1}" for i in range(m - n_old)]
    generator = np.random.default_rng(0)
    sure = np.where(labels < n_old, 1.0, generator.uniform(0.3, 1, len(X)))
    rows = [
        {
            "id": f"photos/2026/holiday/IMG_{i:06d}.png",
            "label": names[c],
            "given": str(int(c < n_old)),
            "new": str(int(c >= n_old)),
            "confidence": f"{p:.4f}",
        }
        for i, (c, p) in enumerate(zip(labels.tolist(), sure.tolist(), strict=True))
    ]
    blueprint = {"sample_shape": X.shape[1:], "n_old_classes": n_old, "n_new_classes": m - n_old}
    config = {"options": {}, "blueprint": blueprint, "classes": names, "seed": 0, "versions": {}}
    history = [
        {"stage": "expand", "epoch": e, "loss": 1 / e, "agreement": 0.9, "seconds": 1.0}
        for e in range(1, 200)
    ]
    embedding = {"features": features, "map": features[:, :2]}
    weights = {"nothing": np.zeros(1, np.float32)}
    return write_run(folder, Run(config, history, weights, embedding, rows, samples=X))


def synthetic_run(folder: Path, points: int) -> Path:
    """A run folder of random images and overlapping classes."""
    generator = np.random.default_rng(0)
    rest = np.arange(points - LARGE) % (N_CLASSES - 1) + 1
    labels = generator.permutation(np.concatenate([np.zeros(LARGE, int), rest]))
    centers = generator.normal(0, 1, (N_CLASSES, 160)).astype(np.float32)
    features = centers[labels] + generator.normal(0, 1, (points, 160)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    X = generator.integers(0, 255, (points, 28, 28), dtype=np.uint8)
    return make_run(folder, X, features, labels, N_CLASSES // 2)


class Server:
    """The explorer in a process of its own."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "cdknet.cli", "explore", str(run), "--no-browser", "--json"]
        self.began = time.perf_counter()
        self.process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = urllib.parse.urlsplit(json.loads(self.process.stdout.readline())["url"])
        self.headers = {"X-Cdknet-Token": urllib.parse.parse_qs(address.query)["token"][0]}
        self.connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=60)

    def ask(self, path: str, body: Any = None) -> bytes:
        headers = self.headers | ({} if body is None else {"Content-Type": "application/json"})
        self.connection.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers
        )
        response = self.connection.getresponse()
        content = response.read()
        assert response.status == 200, (path, response.status, content[:300])
        return content

    def memory(self) -> dict[str, float]:
        with Path(f"/proc/{self.process.pid}/status").open() as file:
            facts = {line.split(":")[0]: line.split()[1] for line in file if line.endswith("kB\n")}
        return {"held_mb": int(facts["RssAnon"]) / 1024, "most_mb": int(facts["VmHWM"]) / 1024}

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait()


def median_ms(server: Server, paths: list[str]) -> float:
    """Median time of several requests."""
    times = []
    for path in paths:
        start = time.perf_counter()
        server.ask(path)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def once_ms(server: Server, path: str, body: Any = None) -> float:
    """Time of one request."""
    start = time.perf_counter()
    server.ask(path, body)
    return 1000 * (time.perf_counter() - start)


def measure(run: Path, points: int) -> dict[str, Any]:
    """All measurements of one run folder."""
    server = Server(run)
    try:
        line: dict[str, Any] = {"points": points, "cores": os.cpu_count()}
        line["address"] = 1000 * (time.perf_counter() - server.began)
        for path in ("run", "map", "assignment", "confidence", "given"):
            server.ask(f"/api/{path}")
        line["first map"] = 1000 * (time.perf_counter() - server.began)
        line["held at map"] = server.memory()["held_mb"]
        line["first card"] = once_ms(server, "/api/classes/0")
        line["first state, all cards"] = once_ms(server, "/api/state")
        line["state"] = median_ms(server, ["/api/state"] * 5)
        line["card"] = median_ms(server, [f"/api/classes/{c}" for c in range(1, N_CLASSES)])
        line["24 thumbnails"] = median_ms(
            server,
            [
                "/api/sheet?size=48&samples=" + ",".join(str(100 * k + i) for i in range(24))
                for k in range(10)
            ],
        )
        for order in ("central", "unsure", "name"):
            whole = f"/api/classes/0/samples?limit=10000&order={order}"
            assert json.loads(server.ask("/api/classes/0"))["size"] == LARGE
            line[f"list 10,000 {order}, first"] = once_ms(server, whole)
            line[f"list 10,000 {order}"] = median_ms(server, [whole] * 5)
        line["search"] = median_ms(server, [f"/api/search?q=IMG_00{k}" for k in range(10)])
        steps = {
            "rename": {"kind": "rename", "class": 15, "name": "x"},
            "merge": {"kind": "merge", "classes": [15, 16], "into": 15},
            "split 10,000": {"kind": "split", "class": 0, "k": 2},
            "move 5,000": {"kind": "move", "samples": list(range(5000)), "to": 17},
        }
        for revision, (name, action) in enumerate(steps.items()):
            line[name] = once_ms(server, "/api/actions", {"revision": revision, "action": action})
            line[f"state after {name}"] = once_ms(server, "/api/state")
        line["undo"] = once_ms(server, "/api/undo", {"revision": 4})
        line["export csv"] = once_ms(server, "/api/export?format=csv")
        return line | server.memory()
    finally:
        server.close()


def mnist_report(folder: Path) -> dict[str, Any] | None:
    """The report of MNIST's test images, with the 50 principal components of the pixels as features."""
    from cdknet import data

    try:
        digits = data.load("mnist")
    except (OSError, ValueError):
        return None
    flat = digits.X_test.reshape(len(digits.X_test), -1).astype(np.float32) / 255
    flat -= flat.mean(axis=0)
    features = np.ascontiguousarray(flat @ np.linalg.svd(flat[:3000], full_matrices=False)[2][:50].T)
    run = make_run(folder, digits.X_test, features, np.asarray(digits.y_test), 5)
    out = folder.with_suffix(".html")
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cdknet.cli", "report", str(run), "-o", str(out)], check=True)
    text = out.read_text()
    thumbs = json.loads(text.split('id="cdknet-report">')[1].split("</script>")[0])["thumbs"]
    return {
        "report of MNIST's test images": len(digits.X_test),
        "megabytes": out.stat().st_size / 1e6,
        "thumbnails": len(thumbs["samples"]),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, nargs="*", default=[60_000, 100_000])
    parser.add_argument("--results", type=Path, default=Path("results/explorer.jsonl"))
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for points in arguments.points:
            lines.append(measure(synthetic_run(Path(folder) / f"run-{points}", points), points))
        report = mnist_report(Path(folder) / "mnist")
        lines += [report] if report else []
    arguments.results.parent.mkdir(exist_ok=True)
    with arguments.results.open("w") as file:
        for line in lines:
            rounded = {k: round(v, 1) if isinstance(v, float) else v for k, v in line.items()}
            file.write(json.dumps(rounded) + "\n")
            for name, value in rounded.items():
                print(f"{name:>32}  {value}")
            print()


if __name__ == "__main__":
    main()
