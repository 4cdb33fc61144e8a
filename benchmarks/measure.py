"""Timing contenders against each other, the data they move, and the facts of the machine."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 7
OUTLIER_CHANNELS = 16
LAYERS, HIDDEN = 4, 7168

States = NDArray[np.uint16]


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    before: Callable[[], object] = lambda: None,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Median seconds of each contender, all run in turn every round; ``before`` is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            before()
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def synthetic_states(tokens: int) -> States:
    """bfloat16 bits [tokens, 4, 7168] of noise in which a few channels are far out, as in LLMs."""
    random = np.random.default_rng(0)
    values = random.standard_normal((tokens, LAYERS, HIDDEN), np.float32)
    values[..., random.choice(HIDDEN, OUTLIER_CHANNELS, replace=False)] *= 300
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def real_states(folder: Path) -> States:
    """bfloat16 bits [tokens, layers, hidden] of the first ``*_u16.npy`` in a folder."""
    found = sorted(folder.glob("*_u16.npy"))
    if not found:
        raise SystemExit(f"{folder}: no *_u16.npy with states here")
    states = np.load(found[0], allow_pickle=False)
    return np.ascontiguousarray(states, np.uint16)


def result(
    question: str, seconds: Mapping[str, float], limit: str, moved_bytes: int
) -> dict[str, Any]:
    """One question's answer; ratios above 1 are faster than ``limit``."""
    return {
        "question": question,
        "bytes": moved_bytes,
        "limit": limit,
        "gigabytes_per_second": {n: moved_bytes / s / 1e9 for n, s in seconds.items()},
        "ratio_to_limit": {n: seconds[limit] / s for n, s in seconds.items()},
    }


def machine(folder: Path) -> dict[str, Any]:
    """What the ratios were measured on; nothing that names a machine or a place."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release().partition("-")[0],
        "filesystem": _filesystem(folder),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "torch", "xxhash")},
    }


def _filesystem(folder: Path) -> str:
    """The type of the filesystem that holds a folder, after proc(5)'s mountinfo."""
    kind, longest = "unknown", -1
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, behind = line.partition(" - ")
        point = mount.split()[4]
        if folder.resolve().is_relative_to(point) and len(point) > longest:
            kind, longest = behind.split()[0], len(point)
    return kind
