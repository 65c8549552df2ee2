"""Measure a promise, or all of them, and add a line to results/reliability.jsonl.

python -m benchmarks.reliability review-kills --count 500     one promise
python -m benchmarks.reliability all --count 20               the short form of all; record nothing: --dry
python -m benchmarks.reliability page                         write docs/reliability.md from the results
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.reliability import MEASUREMENTS, RESULTS, measurement, stop_after


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*MEASUREMENTS, "all", "page"])
    parser.add_argument("--count", type=int, help="how many to try; default: the long form")
    parser.add_argument("--seconds", type=float, help="stop trying after this time; record what was done")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    args = parser.parse_args()
    if args.what == "page":
        from benchmarks.reliability.page import write_page

        print(write_page())
        return 0
    broken = 0
    for name in MEASUREMENTS if args.what == "all" else [args.what]:
        count = args.count or MEASUREMENTS[name][1]
        start = time.monotonic()
        if args.seconds:
            stop_after(args.seconds)
        with tempfile.TemporaryDirectory(prefix="cdknet-") as folder:
            figures = measurement(name)(count, args.seed, Path(folder))
        line = {
            "promise": name,
            "command": f"python -m benchmarks.reliability {name} --count {count}"
            + (f" --seconds {args.seconds:g}" if args.seconds else "")
            + f" --seed {args.seed}",
            **figures,
            "seconds": round(time.monotonic() - start),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": f"{os.cpu_count()}-core CPU",
        }
        print(json.dumps(line))
        broken += figures["broken"]
        if not args.dry:
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
