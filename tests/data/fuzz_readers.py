"""Coverage-guided fuzzing of every reader with atheris. Not collected by pytest; run it by hand:

    python tests/data/fuzz_readers.py --seconds 120             every kind, one after another
    python tests/data/fuzz_readers.py --seconds 600 --kind npz  one kind

The contract is that of test_reader_contract.py: valid samples, or one ValueError that names the file, within
20 seconds and 1 GB. An input that breaks it is written to the working folder as crash-...
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
KINDS = (
    "npy",
    "npz",
    "npz packed",
    "idx",
    "idx packed",
    "cifar",
    "csv",
    "parquet",
    "text",
    "png",
    "jpeg",
    "webp",
)


def fuzz(kind: str, seconds: int) -> None:
    """Fuzz one reader in this process. It does not return."""
    import atheris

    with atheris.instrument_imports(include=["cdknet.data", "zipfile", "csv", "gzip", "PIL"]):
        import specimens
    specimen = specimens.SPECIMENS[kind]
    folder = Path(tempfile.mkdtemp(prefix="cdknet-fuzz-"))
    (folder / "seeds").mkdir()
    for i, (n, side) in enumerate(((1, 2), (3, 3), (7, 4))):
        made = folder / "seeds" / f"seed-{i}{specimen.suffix}"
        specimen.make(made, *specimens.some_samples(n, side))
    path = folder / "input" / f"some-images{specimen.suffix}"
    path.parent.mkdir()

    def one_input(content: bytes) -> None:
        path.write_bytes(content)
        try:
            samples = specimen.read(path)
        except ValueError as error:
            if type(error) is not ValueError or path.name not in str(error):
                raise RuntimeError(f"an error that does not name the file: {error!r}") from error
            return
        specimens.check_valid(samples, len(content))

    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=1536", "-max_len=16384"]
    options += ["-print_final_stats=0", "-verbosity=1"]
    atheris.Setup([sys.argv[0], str(folder / "seeds"), *options], one_input)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60, help="time for each kind [%(default)s]")
    parser.add_argument("--kind", choices=KINDS, help="one kind; default: all, one after another")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        sys.path.insert(0, str(HERE.parent))
        fuzz(args.kind, args.seconds)
    failed = []
    for kind in [args.kind] if args.kind else KINDS:
        command = [sys.executable, str(HERE), "--here", "--kind", kind, "--seconds", str(args.seconds)]
        with tempfile.TemporaryDirectory() as scratch:  # the fuzzer exits without cleaning up
            env = {**os.environ, "TMPDIR": scratch}
            done = subprocess.run(command, env=env, capture_output=True, text=True)
        log = done.stderr.splitlines()
        last = next((line for line in reversed(log) if line.startswith("#") and "cov:" in line), "no input")
        sys.stdout.write(f"{kind:12s} {'ok' if done.returncode == 0 else 'BROKEN'}  {last}\n")
        sys.stdout.flush()
        if done.returncode:
            failed.append(kind)
            sys.stdout.write("\n".join(done.stdout.splitlines()[-25:] + log[-8:]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
