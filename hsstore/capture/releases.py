"""The releases of SGLang that were run with this plugin, and every difference between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

RELEASES = ("0.5.12", "0.5.17", "0.5.20", "0.5.22", "0.5.23")

# Options under which rows would be wrong, missing or shared between processes, or whose effect
# on them was never looked at: (member of ServerArgs, the values that are fine, what to say).
REFUSED_OPTIONS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("nnodes", (1,), "several nodes"),
    ("pp_size", (1,), "pipeline parallelism"),
    ("enable_dp_attention", (False,), "data-parallel attention"),
    ("attn_cp_size", (1,), "context parallelism"),
    ("enable_prefill_cp", (False, None), "context parallelism"),
    ("speculative_algorithm", (None,), "speculative decoding"),
    ("disaggregation_mode", ("null",), "disaggregation of prefill and decode"),
    ("enable_pdmux", (False,), "prefill-decode multiplexing"),
    ("enable_two_batch_overlap", (False,), "two-batch overlap"),
    # A rank then hands over a part of the sum of all, for classes that capture before the norm.
    ("enable_flashinfer_allreduce_fusion", (False, None), "a fused all-reduce"),
    ("enable_aiter_allreduce_fusion", (False, None), "a fused all-reduce"),
    ("is_embedding", (False,), "an embedding server"),
    ("dllm_algorithm", (None,), "a diffusion model"),
)
OPTIONAL = frozenset(
    {"enable_prefill_cp", "enable_flashinfer_allreduce_fusion", "enable_aiter_allreduce_fusion"}
)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a scheduler process was launched as.

    ``writes`` tells whether this process has the whole rows and writes them (attention-tp rank
    0); ``rank`` is its replica's number among ``ranks`` (data parallelism).
    """

    writes: bool
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Forwarded:
    """One request's part of a forward pass: ``extend`` rows behind ``prefix`` cached ones."""

    request: Any
    prefix: int
    extend: int


def refused_options(server_args: Any) -> Iterator[str]:  # noqa: ANN401 - SGLang's ServerArgs
    """One line for each launch option that the plugin does not capture under."""
    for name, fine, what in REFUSED_OPTIONS:
        if name in OPTIONAL and not hasattr(server_args, name):
            continue
        value = getattr(server_args, name)
        if value not in fine:
            yield f"{what} ({name} {value})"


def launch(release: str, runner: Any) -> Launch:  # noqa: ANN401 - SGLang's ModelRunner
    """Where this process stands, from its ModelRunner."""
    if release == "0.5.12":
        tp_rank, dp_rank = runner.tp_rank, runner.dp_rank
    else:
        context: Any = import_module("sglang.srt.runtime_context")  # 0.5.12 has none
        parallel = context.get_parallel()
        tp_rank = parallel.attn_tp_rank
        dp_rank = runner.ps.dp_rank if hasattr(runner, "ps") else parallel.dp_rank
    return Launch(tp_rank == 0, dp_rank or 0, runner.server_args.dp_size)


def forwarded(batch: Any) -> list[Forwarded]:  # noqa: ANN401 - ModelWorkerBatch or ScheduleBatch
    """The requests of an extending batch, in the order of their rows; empty for other batches."""
    if not batch.forward_mode.is_extend():
        return []
    if hasattr(batch, "extend_seq_lens"):  # 0.5.12's ModelWorkerBatch
        extends, prefixes = batch.extend_seq_lens, batch.extend_prefix_lens
    else:
        extends, prefixes = batch.extend_lens, batch.prefix_lens
    parts = zip(batch.reqs, prefixes, extends, strict=True)
    return [Forwarded(request, int(prefix), int(extend)) for request, prefix, extend in parts]
