"""Runs every benchmark, prints the ratios and keeps them as JSON: ``python benchmarks/run.py``.

Each contender moves the same bytes in the same process, in turn with the others; a ratio is to the
raw limit of the same run, above 1 is faster.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import copying  # noqa: E402 - the checkout comes first, so that it is what is measured
import fsck  # noqa: E402
import read  # noqa: E402
import spool  # noqa: E402
import write  # noqa: E402
from measure import machine, real_states, synthetic_states  # noqa: E402

TOKENS, SAMPLES, QUICK_SAMPLES = 1024, 16, 4


def main() -> None:
    """Parse, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="where to write; its filesystem is measured")
    parser.add_argument("--quick", action="store_true", help="a quarter of the data")
    parser.add_argument("--states", type=Path, help="a folder with real states, *_u16.npy")
    chosen = parser.parse_args()
    samples = QUICK_SAMPLES if chosen.quick else SAMPLES
    with tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir=chosen.dir) as made:
        folder = Path(made)
        results = measured(folder, samples, chosen.states)
        report = {"machine": machine(folder), "results": results}
    for each in results:
        show(each)
    kept = HERE / "results" / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measured(folder: Path, samples: int, states: Path | None) -> list[dict[str, Any]]:
    """The results of all benchmarks, on made-up states and, where there are, real ones."""
    data = {f"{TOKENS} tokens of 4 x 7168": synthetic_states(TOKENS)}
    if states is not None:
        real = real_states(states)[:TOKENS]
        data[f"{len(real)} tokens of {real.shape[1]} x {real.shape[2]}, real"] = real
    results = []
    for label, rows in data.items():
        results.append(write.measure(folder, rows, samples, label=label))
        results.append(spool.measure(folder, rows, samples, label=label))
        results.append(read.measure(folder, rows, samples, label=label))
        results.extend(fsck.measure(folder, rows, samples, label=label))
        results.append(copying.measure(folder, rows, samples, label=label))
    return results


def show(each: dict[str, Any]) -> None:
    """One result as a small table."""
    print(f"{each['question']} ({each['bytes'] / 1e6:.0f} MB)")
    for name, ratio in each["ratio_to_limit"].items():
        print(f"  {name:28} {each['gigabytes_per_second'][name]:8.2f} GB/s  {ratio:5.2f}")


if __name__ == "__main__":
    main()
