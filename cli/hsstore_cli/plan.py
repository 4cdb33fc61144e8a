"""``hsstore plan``: what a run needs, against what the target has."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click

from hsstore.errors import MalformedInput
from hsstore.model.assessment import (
    DEFAULT_RESERVE,
    Assessment,
    Reserve,
    Target,
    alternatives,
)
from hsstore.model.capacity import Workload, plan_capacity
from hsstore.model.capture import ITEMSIZE, parse_layers
from hsstore.storage.space import available, reclaimable
from hsstore_cli import exit_codes
from hsstore_cli.options import Command, codec_option, finite, json_option
from hsstore_cli.plan_text import Report, lines
from hsstore_cli.render import emit_json, progress

# Without a model at hand any layer number may be right.
UNKNOWN_BLOCKS = 1 << 30


def _reserve(typed: str) -> Reserve:
    try:
        return Reserve.parse(typed)
    except MalformedInput as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=Command,
    examples=[
        "hsstore plan samples.jsonl --model config.json --layers 3,31,59,final --dest /data/store",
        "hsstore plan --tokens 87793206 --samples 37312 --num-layers 4 --hidden-size 7168",
    ],
    exits={exit_codes.OK: "it fits", exit_codes.PROBLEMS: "it does not fit"},
)
@click.argument("dataset", required=False, type=click.Path(path_type=Path))
@click.option("--tokens", type=click.IntRange(min=1), help="All tokens, where no dataset is given.")
@click.option("--samples", type=click.IntRange(min=1), help="All samples, likewise.")
@click.option("--layers", help="The layers to store, as for create: 3,31,59,final.")
@click.option("--num-layers", type=click.IntRange(min=1), help="Only how many layers to store.")
@click.option("--model", type=click.Path(path_type=Path), help="A config.json, model folder, GGUF.")
@click.option(
    "--hidden-size", type=click.IntRange(min=1), help="Width of a state, without --model."
)
@click.option(
    "--dtype",
    type=click.Choice(list(ITEMSIZE)),
    help="How every value is stored.  [default: the model's own; bfloat16 without --model]",
)
@codec_option
@click.option("--ratio", type=click.FloatRange(min=1), help="Compression that you vouch for.")
@click.option("--chunk-rows", type=click.IntRange(min=1), help="As for create.")
@click.option("--shard-rows", type=click.IntRange(min=1), help="As for create.")
@click.option(
    "--writers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Extractions that run at once.",
)
@click.option(
    "--dest",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Where the store will be; need not exist yet.",
)
@click.option(
    "--reclaim",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Count what deleting this would free; may be repeated.",
)
@click.option(
    "--reserve",
    callback=lambda _ctx, _param, typed: _reserve(typed),
    default=DEFAULT_RESERVE,
    show_default=True,
    help="To leave over: percent of the peak, or a size like 10GB or 10GiB.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    help="Tokens a second.",
)
@click.option("--what-if", is_flag=True, help="Show smaller ways to store the same samples.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, *, as_json: bool, dest: Path, reclaim: Sequence[Path],
            reserve: Reserve, rate: float | None, what_if: bool, **options: Any) -> None:  # noqa: ANN401 - click's values  # fmt: skip
    """Say what a run needs on disk, and whether the target has it.

    From a tokenised DATASET (JSON lines) the figures are exact as long as nothing is compressed.
    From --tokens and --samples, or with a codec, the figures are upper bounds, with an estimate
    beside them. A --ratio that you give is taken at your word: the plan then follows the estimate.
    """
    _refuse_contradictions(**options)
    space = available(dest)
    freed = reclaimable(reclaim, space.device)
    target = Target(space.available_bytes, space.available_inodes, freed.bytes, freed.inodes)
    workload = _workload(**options)
    others = None
    if what_if:
        changed = alternatives(workload)
        others = tuple((change, Assessment(plan, target, reserve)) for change, plan in changed)
    report = Report(
        assessment=Assessment(plan_capacity(workload), target, reserve),
        space=space,
        notes=freed.notes,
        seconds=workload.tokens / rate if rate else None,
        others=others,
    )
    if as_json:
        emit_json(_document(report))
    else:
        click.echo("\n".join(lines(report)))
    ctx.exit(exit_codes.OK if report.assessment.fits else exit_codes.PROBLEMS)


def _refuse_contradictions(*, dataset: Path | None, tokens: int | None, samples: int | None,
                           layers: str | None, num_layers: int | None, model: Path | None,
                           hidden_size: int | None, ratio: float | None, codec: str,
                           **_: object) -> None:  # fmt: skip
    if dataset is None and (tokens is None or samples is None):
        raise click.UsageError("Give a DATASET, or both --tokens and --samples.")
    if dataset is not None and (tokens is not None or samples is not None):
        raise click.UsageError("A DATASET is counted: leave out --tokens and --samples.")
    if tokens is not None and samples is not None and tokens < samples:
        raise click.UsageError("--tokens is below --samples, but every sample has a token.")
    if (layers is None) == (num_layers is None):
        raise click.UsageError("Give either --layers or --num-layers.")
    if (model is None) == (hidden_size is None):
        raise click.UsageError("Give either --model or --hidden-size.")
    if ratio is not None and codec == "none":
        raise click.UsageError("--ratio needs a --codec that compresses.")


def _workload(*, dataset: Path | None, tokens: int | None, samples: int | None,
              layers: str | None, num_layers: int | None, model: Path | None,
              hidden_size: int | None, dtype: str | None, **same: Any) -> Workload:  # noqa: ANN401 - passed through  # fmt: skip
    shape = _Shape(hidden_size or 0, UNKNOWN_BLOCKS, dtype or "bfloat16")
    if model is not None:
        shape = _Shape.of(model, dtype)
    # Beside the blocks' inputs there are the last state after and before the final norm.
    if num_layers is not None and num_layers > shape.blocks + 2:
        raise click.UsageError(f"--num-layers {num_layers} is more than {model} has to offer.")
    lengths, key_bytes = (None, None) if dataset is None else _count(dataset)
    return Workload(
        layers=num_layers or len(parse_layers(layers or "", shape.blocks)),
        lengths=lengths,
        key_bytes=key_bytes,
        tokens=tokens or 0,
        samples=samples or 0,
        hidden_size=shape.hidden_size,
        dtype=shape.dtype,
        **same,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden_size: int
    blocks: int
    dtype: str

    @classmethod
    def of(cls, model: Path, dtype: str | None) -> Self:
        """The shape of a model's states, in its own dtype unless another is asked for."""
        from hsstore.storage.model_files import read_dtype, read_model  # noqa: PLC0415 - as needed

        identity = read_model(model)
        return cls(identity.hidden_size, identity.num_layers, dtype or read_dtype(model))


def _count(dataset: Path) -> tuple[list[int], list[int]]:
    """The tokens and the key bytes of every sample of a dataset."""
    from hsstore.storage.tokenised import count_samples  # noqa: PLC0415 - only for a dataset

    with progress() as bar:
        return count_samples(dataset, progress=bar)


def _document(report: Report) -> dict[str, Any]:
    """What ``--json`` prints."""
    plan, target = report.assessment.plan, report.assessment.target
    geometry = plan.geometry
    document = {
        "tokens": plan.workload.tokens,
        "samples": plan.workload.samples,
        **_figures(report.assessment),
        "available_bytes": target.available_bytes,
        "available_inodes": target.available_inodes,
        "reclaimable_bytes": target.reclaimable_bytes,
        "missing_bytes": report.assessment.missing_bytes,
        "missing_inodes": report.assessment.missing_inodes,
        "seconds": report.seconds,
        "geometry": {"chunk_rows": geometry.chunk_rows, "shard_rows": geometry.shard_rows},
        "notes": list(report.notes),
    }
    if report.others is not None:
        document["alternatives"] = [
            {"change": change, **_figures(other)} for change, other in report.others
        ]
    return document


def _figures(assessment: Assessment) -> dict[str, Any]:
    plan = assessment.plan
    return {
        "layers": plan.workload.layers,
        "hidden_size": plan.workload.hidden_size,
        "dtype": plan.workload.dtype,
        "codec": plan.workload.codec,
        "exact": plan.exact,
        "payload_bytes": plan.payload_bytes,
        "store_bytes": plan.store_bytes,
        "estimated_bytes": plan.estimated_bytes,
        "peak_bytes": plan.peak_bytes,
        "reserve_bytes": assessment.reserve_bytes,
        "required_bytes": assessment.required_bytes,
        "estimated_required_bytes": assessment.estimated_required_bytes,
        "shards": plan.shards,
        "estimated_shards": plan.estimated_shards,
        "files": plan.files,
        "inodes": plan.inodes,
        "fits": assessment.fits,
        "fits_estimated": assessment.fits_estimated,
    }
