"""``fsck --audit``: samples computed again and compared with what the store holds of them."""

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hsstore.model.audit import CONFIDENCE, AuditCounts
from hsstore_cli import render
from hsstore_cli.source_option import SourceOptions, open_source, refuse_unfit, source_options

if TYPE_CHECKING:
    from hsstore.integrity.auditing.audit import Audit
    from hsstore.integrity.fsck import Fsck, Unopened
    from hsstore.model.progress import Progress

SEEDS = 1 << 32
# A sample alone in its batch is the very thing.
WITHOUT = ("concurrency", "batch_tokens")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How many samples to audit (None: no audit), drawn by which seed, computed by what."""

    samples: int | None
    seed: int | None
    source: SourceOptions

    def refuse_contradiction(self) -> None:
        """click.UsageError where what was typed makes no sense together."""
        self.source.refuse_without_servers("max_wait")
        if self.samples is not None:
            self.source.require()
        elif self.seed is not None or self.source.words():
            typed = "--seed" if self.seed is not None else self.source.words()[0][0]
            raise click.UsageError(f"{typed} is for an --audit.")


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of an audit; it gets them as one ``audit: AuditOptions``."""

    @functools.wraps(command)
    def with_options(
        *,
        audit_samples: int | None,
        seed: int | None,
        options: SourceOptions,
        **given: Any,  # noqa: ANN401 - a command's options are of any kind
    ) -> Any:  # noqa: ANN401 - whatever the command returns
        audit = AuditOptions(audit_samples, seed, options)
        audit.refuse_contradiction()
        return command(**given, audit=audit)

    with_all = source_options(with_options, without=WITHOUT)
    return _AUDIT(_SEED(with_all))


@contextlib.contextmanager
def audited(
    run: "Fsck | Unopened",
    options: AuditOptions,
    progress: "Progress",
    stop: Callable[[], bool] = lambda: False,
) -> Iterator["Fsck | Unopened | Audit"]:
    """A run of fsck to iterate over, with an audit after it if one was asked for.

    What computes is opened first: it would be a pity to learn hours later that it cannot.
    """
    if options.samples is None:
        yield run
        return
    # Reading a store costs numpy, which the help does not need.
    from hsstore.integrity.auditing.audit import Audit  # noqa: PLC0415
    from hsstore.integrity.fsck import Fsck  # noqa: PLC0415

    if not isinstance(run, Fsck):
        yield run
        return
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    store = run.subject.store
    refuse_unfit(options.source, store)
    source = open_source(options.source, store, render.tell, auditing=True)
    with contextlib.closing(source):
        yield Audit(run, source, options.samples, seed, progress=progress, stop=stop)


def audit_lines(counts: AuditCounts) -> list[str]:
    """How an audit came out, and what that says of the other samples, for people."""
    if not counts.population:
        return ["no sample was audited"]
    found = f"{counts.exact} exact, {counts.noise} within noise, {counts.wrong} wrong"
    found += f", {counts.failed} that could not be computed" if counts.failed else ""
    found += f", {counts.damaged} damaged" if counts.damaged else ""
    lines = [f"audited {counts.audited} of {counts.population:,} samples: {found}"]
    if counts.audited == counts.population:
        lines.append("that is all of them")
    elif not counts.complete:
        lines.append(f"not all {counts.drawn:,} that were drawn: it says nothing of the others")
    else:
        bound = _rounded_up(counts.wrong_share_at_most)
        lines.append(
            f"with {CONFIDENCE * 100:.0f} % confidence, at most {bound} of the samples are wrong; "
            f"--seed {counts.seed} draws the same ones"
        )
    return lines


def _rounded_up(share: float) -> str:
    """A percentage of two digits that is not below the share."""
    percent = 100 * share
    digits = 0 if percent >= 10 else 1  # noqa: PLR2004 - two digits
    step = 10**-digits
    up = -(-percent // step) * step
    return f"{min(up, 100):.{digits}f} %"


_AUDIT = click.option(
    "--audit",
    "audit_samples",
    metavar="K",
    type=click.IntRange(min=1),
    help="After that, have K samples computed again, each by itself, by --server or --source, and "
    "compare. Finds states that are whole and false.",
)
_SEED = click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0, max=SEEDS - 1),
    help="Draws the samples of an --audit; the same number draws the same ones again.  "
    "[default: by chance]",
)
