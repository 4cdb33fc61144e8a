"""What a release captures right, under which conditions: ``compatibility.py RELEASE [LAUNCH ...]``.

Starts real servers of one release with the plugin (an unknown one is allowed in for the run),
compares every row with transformers, and prints one line for the table in the documentation.
A LAUNCH is ``one``, ``tp`` or ``dp``; without any, all three are made.
"""

import random
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hsstore.demo.model import build_model
from hsstore.testing.reference import Reference
from hsstore.testing.sglang_server import SGLangServer, install_plugin, several_ranks
from hsstore.testing.spool_probe import (
    GATE,
    CaptureError,
    Probe,
    sharing_prompts,
    worst_error,
)

LAYERS = (1, 2, 3, "final")
COLUMNS = ("chunked", "radix+extra_key", "cached named", "batch", "retraction", "aborts")


class Bench:
    """One running server, the reference, and the worst relative error so far."""

    def __init__(self, probe: Probe, reference: Reference) -> None:
        self.probe = probe
        self.reference = reference
        self.worst = 0.0

    def compare(self, prompts: Sequence[list[int]], **more: bool) -> None:
        """Ask for every prompt, eight at a time; CaptureError where one is not equal."""
        rows = self.probe.all_rows(prompts, **more)
        for got, ids in zip(rows, prompts, strict=True):
            self.check(worst_error(got, self.reference.rows(ids, LAYERS)))

    def check(self, error: float) -> None:
        """Remember an error; CaptureError beyond the gate."""
        self.worst = max(self.worst, error)
        if error > GATE:
            raise CaptureError(f"a relative error of {error:.1e}")


def chunked(bench: Bench) -> None:
    """Prompts of several chunks, whose chunks share their batches with others."""
    bench.compare([_ids(seed, 900 - 40 * seed) for seed in range(12)])


def radix(bench: Bench) -> None:
    """Prompts that begin alike, and the same prompt again, each with an extra_key of its own."""
    bench.compare(sharing_prompts(40, seed=1) + [_ids(0, 300)] * 4)


def cached_named(bench: Bench) -> None:
    """Without an extra_key the second request's rows are not all there, and it says so."""
    ids = _ids(77, 200)
    bench.probe.rows(ids)
    try:
        bench.probe.rows(ids)
    except CaptureError as error:
        if str(error).startswith("cached-prefix"):
            return
        raise
    raise CaptureError("rows of a cached prefix were not missed")


def batch(bench: Bench) -> None:
    """Several prompts in one request (an extra_key list would kill 0.5.12)."""
    prompts = [[first, *_ids(200 + first, 30 * first)] for first in range(1, 9)]
    rids = [bench.probe.rid() for _ in prompts]
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompts, "rid": rids, "sampling_params": sampling}
    bench.probe.post("/generate", body)
    for rid, ids in zip(rids, prompts, strict=True):
        rows = bench.probe.take(rid, len(ids))
        bench.check(worst_error(rows, bench.reference.rows(ids, LAYERS)))


def retraction(bench: Bench) -> None:
    """Requests that decode until memory runs out and are prefilled again."""
    prompts = [_ids(300 + at, 150) for at in range(8)]
    # With ignore_eos the server sets aside room for all 400 tokens, and none is ever retracted.
    sampling = {"max_new_tokens": 400, "temperature": 0}

    def one(ids: list[int]) -> int:
        rid = bench.probe.rid()
        reply = bench.probe.generate(ids, rid, extra_key=rid, sampling_params=sampling)
        bench.check(worst_error(bench.probe.take(rid, len(ids)), bench.reference.rows(ids, LAYERS)))
        return int(reply["meta_info"]["num_retractions"])

    with ThreadPoolExecutor(8) as pool:
        retractions = sum(pool.map(one, prompts))
    if not retractions:
        raise CaptureError("nothing was retracted, so nothing was shown")


def aborts(bench: Bench) -> None:
    """Requests that are aborted at any moment, beside others that are not."""
    sampling = {"max_new_tokens": 200, "temperature": 0, "ignore_eos": True}

    def aborted(seed: int) -> None:
        rid = bench.probe.rid()
        timer = threading.Timer(
            0.02 * (seed % 5), bench.probe.post, ("/abort_request", {"rid": rid})
        )
        timer.start()
        bench.probe.generate(_ids(seed, 500), rid, extra_key=rid, sampling_params=sampling)
        timer.join()
        (bench.probe.spool / rid).unlink(missing_ok=True)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(aborted, seed) for seed in range(12)]
        bench.compare(sharing_prompts(24, seed=3))
    for each in running:
        each.result()


def replicas(bench: Bench) -> None:
    """What tp=2 and dp=2 servers are asked."""
    bench.compare(sharing_prompts(24, seed=4))


def _ids(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311 - prompts, no secrets
    return [draw.randrange(256) for _ in range(length)]


def admit(plugin: Path, release: str) -> None:
    """Let an installed plugin take a release that it does not know yet."""
    with (plugin / "hsstore" / "capture" / "releases.py").open("a") as file:
        file.write(f"\nRELEASES = (*RELEASES, {release!r})\n")


CHUNK = ("--chunked-prefill-size", "256")
# Little memory, and more requests let in than fit, so that some are retracted.
SCARCE = ("--max-total-tokens", "2048", "--schedule-conservativeness", "0.1")
LAUNCHES: tuple[tuple[str, dict[str, int], tuple[Callable[[Bench], None], ...]], ...] = (
    (
        "one",
        {},
        (chunked, radix, cached_named, batch, retraction, aborts),
    ),
    ("tp", {"tp": 2}, (replicas,)),
    ("dp", {"dp": 2}, (replicas,)),
)  # fmt: skip


def verdict(what: Callable[[Bench], None], bench: Bench) -> str:
    """``yes``, or what went wrong."""
    try:
        what(bench)
        cell = "yes"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the table's entry
        cell = f"NO ({type(error).__name__}: {error})"
    print(f"{what.__name__}: {cell}", file=sys.stderr, flush=True)  # noqa: T201 - how far it is
    return cell


def run(release: str, folder: Path, launches: Sequence[str]) -> list[str]:
    """The cells of the release's line, of some launches or of all."""
    model = folder / "model"
    build_model(model)
    plugin = install_plugin(release, folder / "plugin")
    admit(plugin, release)
    reference = Reference(model)
    cells: list[str] = []
    worst = 0.0
    for name, ranks, checks in LAUNCHES:
        if launches and name not in launches:
            cells += ["not run"] * len(checks)
            continue
        spool = folder / name
        spool.mkdir()
        more, env = several_ranks(release, **ranks)
        env |= {"HSSTORE_SPOOL": str(spool), "HSSTORE_LAYERS": ",".join(map(str, LAYERS))}
        flags = [*CHUNK, *more, *(() if ranks else SCARCE)]
        log = folder / f"{name}.log"
        with SGLangServer(release, model, log, flags=flags, env=env, plugin=plugin) as server:
            bench = Bench(Probe(server.url, spool), reference)
            cells += [verdict(check, bench) for check in checks]
            worst = max(worst, bench.worst)
            left = [name for name in bench.probe.files() if not name.startswith(".")]
            hellos = bench.probe.hellos()
        if left or {hello["boot"] for hello in hellos} != {hellos[0]["boot"]}:
            cells[-1] += f" but left {left}, hellos {hellos}"
        if len(hellos) != hellos[0]["ranks"] or not all(hello["checked"] for hello in hellos):
            cells[-1] += f" but hellos {hellos}"
    return [*cells, f"{worst:.1e}"]


def main(release: str, *launches: str) -> None:
    """Print the header and the line of a release."""
    print("| release |", " | ".join((*COLUMNS, "tp=2", "dp=2", "worst relative error")), "|")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        print(f"| {release} |", " | ".join(run(release, Path(folder), launches)), "|", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
