"""Time and memory of loading: the public sets, and each kind of user file.

    python benchmarks/data_loading.py [--samples 5000]

Each row is measured in a process of its own.

- first, second: seconds with an empty and with a filled cache.
- held: the process's own memory after loading (not file pages, which the system can drop), minus imports.
- plain: the shortest numpy code that reads the same bytes without any checks. ratio: second / plain.

Sets whose files are not on this machine are left out. Times depend on the machine and its load: compare them
within a row only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import json, sys, time
import numpy as np, gzip
from cdknet import data
{imports}

def own_memory():
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024
    except OSError:
        return float("nan")

before = own_memory()
start = time.perf_counter()
result = {code}
seconds = time.perf_counter() - start
print(json.dumps([seconds, own_memory() - before]))
"""

SETS = {
    "mnist": (
        "[np.frombuffer(gzip.decompress(open(p, 'rb').read()), np.uint8) for p in {found}]",
        "",
    ),
    "fashion-mnist": (
        "[np.frombuffer(gzip.decompress(open(p, 'rb').read()), np.uint8) for p in {found}]",
        "",
    ),
    "cifar-100": ("[np.fromfile(p, np.uint8).reshape(-1, 3074)[:, 2:].copy() for p in {found}]", ""),
    "digits": ("datasets.load_digits().images", "from sklearn import datasets"),
    "rf-50-sim": ("", "import cdknet.radio"),
    "wifi-csi-30": ("[np.load(p)[k] for p in {found} for k in ('csi', 'device')]", "import cdknet.radio"),
}

KINDS = {
    "a.npy": "np.load({path!r})",
    "a.npz": "np.load({path!r})['X']",
    "packed.npz": "np.load({path!r})['X']",
    "a-images-idx3-ubyte": "np.fromfile({path!r}, np.uint8)",
    "a-images-idx3-ubyte.gz": "np.frombuffer(gzip.decompress(open({path!r}, 'rb').read()), np.uint8)",
    "a.bin": "np.fromfile({path!r}, np.uint8).reshape(-1, 3074)[:, 2:].copy()",
    "a.csv": "np.loadtxt({path!r}, delimiter=',', skiprows=1, dtype=np.float32)",
    "a.parquet": "np.column_stack([c.to_numpy() for c in pq.read_table({path!r}).columns])",
    "a.txt": "np.loadtxt({path!r}, dtype=np.float32)",
    "images": "np.stack([np.asarray(Image.open(p)) for p in sorted(Path({path!r}).rglob('*.png'))])",
}


def measure(code: str, imports: str, env: dict[str, str]) -> tuple[float, float]:
    """Seconds and megabytes of `code` in a fresh process."""
    program = MEASURE.format(code=code, imports=imports)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes


def public_sets(scratch: Path) -> None:
    """Measure `data.load` of each public set."""
    print("set             first s  second s  held MB  plain s     MB  ratio")
    env = {**os.environ, "CDKNET_CACHE": str(scratch / "cache")}
    for name, (plain, imports) in SETS.items():
        try:
            first, _ = measure(f"data.load({name!r})", imports, env)
            second, held = measure(f"data.load({name!r})", imports, env)
        except RuntimeError as error:
            print(f"{name:14s} left out: {str(error)[:80]}")
            continue
        row = f"{name:14s} {first:8.2f} {second:9.3f} {held:8.1f}"
        if plain:
            found = f"data.load({name!r}).provenance.found"
            paths = subprocess.run(
                [sys.executable, "-c", f"from cdknet import data; print(list({found}))"],
                env=env,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            seconds, megabytes = measure(plain.format(found=paths), imports, env)
            row += f" {seconds:8.3f} {megabytes:6.0f} {second / seconds:6.2f}"
        print(row, flush=True)


def make_files(folder: Path, n: int) -> None:
    """Write the same n grey 28 x 28 images as each kind of file."""
    import gzip

    import numpy as np

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "data"))
    import specimens

    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) * (rng.random((n, 28, 28)) < 0.2)
    X = X.astype(np.uint8)
    y = np.arange(n) % 10
    np.save(folder / "a.npy", X)
    np.savez(folder / "a.npz", X=X, y=y)
    np.savez_compressed(folder / "packed.npz", X=X, y=y)
    (folder / "a-images-idx3-ubyte").write_bytes(specimens.idx_bytes(X))
    (folder / "a-images-idx3-ubyte.gz").write_bytes(gzip.compress(specimens.idx_bytes(X)))
    specimens.make_cifar(folder / "a.bin", X, y)
    specimens.make_csv(folder / "a.csv", X, y)
    specimens.make_parquet(folder / "a.parquet", X, y)
    specimens.make_text(folder / "a.txt", X, y)
    specimens.make_images(folder / "images", X, y)


def user_files(scratch: Path, n: int) -> None:
    """Measure `data.open` of each kind of file."""
    make_files(scratch, n)
    print(f"\n{n:,} grey images of 28 x 28 as")
    print(f"{'file':24s} {'MB':>6s} {'open s':>8s} {'held MB':>8s} {'plain s':>8s} {'ratio':>6s}")
    env = dict(os.environ)
    imports = "from pathlib import Path; from PIL import Image; import pyarrow.parquet as pq"
    for name, plain in KINDS.items():
        path = scratch / name
        files = path.rglob("*.png") if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files) / 2**20
        seconds, held = measure(f"data.open({str(path)!r})", imports, env)
        reference, _ = measure(plain.format(path=str(path)), imports, env)
        print(
            f"{name:24s} {size:6.1f} {seconds:8.3f} {held:8.1f} {reference:8.3f} {seconds / reference:6.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=5000, help="images in the user files [%(default)s]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        public_sets(Path(scratch))
        user_files(Path(scratch), args.samples)


if __name__ == "__main__":
    main()
