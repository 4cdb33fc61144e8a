"""What one scheduler process captures: four hooks, from the model's load to the written rows.

None of them may raise: an exception here would end SGLang's scheduler and with it every request.
A failure costs the requests it is about an error marker, or the whole server its capture.
"""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from hsstore.capture import releases
from hsstore.capture.choice import choose_layers, described
from hsstore.capture.hello import Hello, HelloFile, remove_dead_hellos
from hsstore.capture.layer_ids import UnknownLayerIds
from hsstore.capture.plan import NEXT, Part, plan
from hsstore.capture.rows import HostRows, WrongStates, check_states, ordered_states, to_host
from hsstore.capture.settings import Refused, Settings
from hsstore.capture.spool import Spool, SpoolFull, default_bound
from hsstore.capture.spool_format import DTYPES, RID, STATES, Segment

LOG = logging.getLogger("hsstore.capture")

# Attributes of ours on SGLang's objects, which live exactly as long as what they are about.
CAPTURED = "_hsstore_captured"  # on a LogitsProcessorOutput: (aux, final)
PENDING = "_hsstore_pending"  # on a GenerationBatchResult: Pending

SWEEP_SECONDS = 30.0
LAUNCH_REMEDY = (
    "the states went by the hooks: launch without prefill CUDA graphs "
    "(--disable-piecewise-cuda-graph up to 0.5.17, --disable-prefill-cuda-graph after)"
)


@dataclass(frozen=True, slots=True)
class Pending:
    """What a forward pass left to write: ``parts`` of ``host``, and requests that failed."""

    parts: tuple[Part, ...]
    host: HostRows | None
    failed: tuple[tuple[Any, str], ...]


class Recorder:
    """The hooks of one process; ``load`` decides whether it captures anything at all."""

    def __init__(self, settings: Settings, hello: Hello) -> None:
        self._settings = settings
        self._hello = hello
        self._file = HelloFile(settings.spool)
        self._spool: Spool | None = None  # None: this process writes nothing
        self._swept = time.monotonic()

    # -- the hooks, in the order in which a server reaches them -----------------------------

    def load(self, _result: object, runner: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """After ModelRunner.load_model, before any graph is captured: choose the layers."""
        try:
            if not runner.is_draft_worker:
                self._load(runner)
        except Exception as error:
            LOG.exception("hsstore captures nothing")
            self._refuse(f"{type(error).__name__}: {error}")

    def logits(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Around LogitsProcessor.forward, where the final and the numbered states meet."""
        output = original(*args, **kwargs)
        if self._spool is not None:
            try:
                captured = _arguments(*args, **kwargs)
                if captured is not None:
                    setattr(output, CAPTURED, captured)
            except Exception:
                LOG.exception("hsstore lost the states of a forward pass")  # noticed by forward
        return output

    def forward(
        self,
        result: Any,  # noqa: ANN401
        worker: Any,  # noqa: ANN401
        batch: Any = None,  # noqa: ANN401
        *_args: Any,  # noqa: ANN401
        **_kwargs: Any,  # noqa: ANN401
    ) -> None:
        """After TpModelWorker.forward_batch_generation: take the rows and start their copy."""
        if self._spool is None or batch is None:
            return
        try:
            if not worker.is_draft_worker:
                self._forward(result, batch)
        except Exception as error:
            LOG.exception("hsstore lost the rows of a forward pass")
            _give_up(result, batch, f"{type(error).__name__}: {error}")

    def result(
        self,
        _scheduler: object,
        _batch: object,
        result: Any,  # noqa: ANN401
        *_args: Any,  # noqa: ANN401
        **_kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Before Scheduler.process_batch_result, which sends the replies: write the rows."""
        if self._spool is None:
            return
        try:
            pending = getattr(result, PENDING, None)
            if pending is not None:
                delattr(result, PENDING)
                self._write(self._spool, pending)
            self._sweep(self._spool)
        except Exception:
            # Rows are missing then, which the client finds.
            LOG.exception("hsstore could not write what was captured")

    # -- load -------------------------------------------------------------------------------

    def _load(self, runner: Any) -> None:  # noqa: ANN401
        where = releases.launch(self._hello.release, runner)
        self._hello = replace(self._hello, rank=where.rank, ranks=where.ranks)
        try:
            self._hello = described(self._hello, self._settings.layers, runner)
            # On every rank alike, whether it writes or not: some classes gather states across them.
            choose_layers(self._hello, runner.model)
        except (Refused, UnknownLayerIds) as error:
            if where.writes:
                self._refuse(str(error))
            return
        if where.writes:
            self._open(where.ranks)

    def _open(self, ranks: int) -> None:
        folder = self._settings.spool
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound = self._settings.spool_bytes or default_bound(folder)
        self._say(replace(self._hello, spool_bytes=bound))
        self._spool = Spool(folder, self._hello.boot, bound // ranks)
        removed = remove_dead_hellos(folder)
        removed += self._spool.sweep(folder / self._hello.name)
        if removed:
            LOG.info("hsstore removed %d files of earlier runs from the spool", len(removed))

    # -- forward ----------------------------------------------------------------------------

    def _forward(self, result: Any, batch: Any) -> None:  # noqa: ANN401
        forwarded = releases.forwarded(batch)
        if not forwarded:
            return
        parts, failed = plan(forwarded)
        if not parts and not failed and self._hello.checked:
            return
        if self._hello.refused is not None:
            reason = f"refused: {self._hello.refused}"
            _leave(result, Pending((), None, _all_failed(parts, failed, reason)))
            return
        tokens = sum(each.extend for each in forwarded)
        try:
            host = self._rows(result.logits_output, tokens, parts)
        except WrongStates as error:
            if not self._hello.checked:
                self._refuse(str(error))
            reason = f"wrong-states: {error}"
            _leave(result, Pending((), None, _all_failed(parts, failed, reason)))
            return
        if not self._hello.checked:
            self._say(replace(self._hello, checked=True))
        _leave(result, Pending(tuple(parts), host, tuple(failed)))

    def _rows(self, output: Any, tokens: int, parts: list[Part]) -> HostRows | None:  # noqa: ANN401
        captured = getattr(output, CAPTURED, None)
        if captured is None:
            raise WrongStates(LAUNCH_REMEDY)
        delattr(output, CAPTURED)
        aux, final = captured
        states = ordered_states(aux, final, self._settings.layers)
        check_states(states, tokens, self._hello.hidden_size or 0, self._hello.dtype or "")
        return to_host(states, parts) if parts else None

    # -- result -----------------------------------------------------------------------------

    def _write(self, spool: Spool, pending: Pending) -> None:
        for request, reason in pending.failed:
            self._fail(spool, request, reason)
        if pending.host is not None:
            pending.host.wait()
            at = 0
            for part in pending.parts:
                rows = part.stop - part.start
                self._append(spool, part, pending.host.payload(at, at + rows))
                at += rows

    def _append(self, spool: Spool, part: Part, payload: memoryview) -> None:
        request = part.request
        if getattr(request, NEXT, None) is None:
            return
        segment = Segment(
            STATES,
            DTYPES[self._hello.dtype or ""],
            len(self._settings.layers),
            self._hello.hidden_size or 0,
            part.first,
            part.stop - part.start,
            len(payload),
            self._hello.boot,
            xxhash.xxh3_64_intdigest(payload),
        )
        try:
            spool.append(request.rid, segment, payload)
        except SpoolFull as error:
            self._fail(spool, request, f"spool-full: {error}")
        except OSError as error:
            self._fail(spool, request, f"spool-error: {error.strerror}")

    def _fail(self, spool: Spool, request: Any, reason: str) -> None:  # noqa: ANN401
        setattr(request, NEXT, None)
        try:
            spool.fail(request.rid, reason)
        except OSError:
            # The client finds rows missing, which says as much.
            LOG.warning("hsstore could not leave an error marker: %s", reason)

    def _sweep(self, spool: Spool) -> None:
        now = time.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            spool.sweep(self._settings.spool / self._hello.name)

    # -- hello ------------------------------------------------------------------------------

    def _say(self, hello: Hello) -> None:
        self._file.publish(hello)
        self._hello = hello

    def _refuse(self, reason: str) -> None:
        LOG.warning("hsstore captures nothing: %s", reason)
        self._hello = self._hello.refusing(reason)
        publish_refusal(self._file, self._hello)
        # The hello of the server before this one would speak for it.
        with contextlib.suppress(OSError):
            remove_dead_hellos(self._settings.spool)


def first_hello(boot: str, release: str, plugin: str) -> Hello:
    """What a process can say about itself before its model is loaded."""
    return Hello(
        boot=boot,
        rank=0,
        ranks=1,
        release=release,
        plugin=plugin,
        pid=os.getpid(),
        host=socket.gethostname(),
    )


def publish_refusal(file: HelloFile, hello: Hello) -> None:
    """Publish a refusing hello, or say in the log that the spool does not even take that."""
    try:
        file.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.publish(hello)
    except OSError as error:
        LOG.warning("hsstore cannot write to its spool folder: %s", error)


def _arguments(
    _self: object,
    input_ids: object,  # noqa: ARG001
    hidden_states: Any,  # noqa: ANN401
    lm_head: object,  # noqa: ARG001
    logits_metadata: Any,  # noqa: ANN401
    aux_hidden_states: Any = None,  # noqa: ANN401
    *_args: Any,  # noqa: ANN401
    **_kwargs: Any,  # noqa: ANN401
) -> tuple[Any, Any] | None:
    """The states that LogitsProcessor.forward was called with; None while decoding.

    The names are SGLang's, because it may pass any of them by keyword.
    """
    if not logits_metadata.forward_mode.is_extend():
        return None
    return aux_hidden_states, hidden_states


def _give_up(result: Any, batch: Any, reason: str) -> None:  # noqa: ANN401
    try:
        requests = [each for each in batch.reqs if RID.fullmatch(each.rid)]
        failed = tuple((each, f"capture-error: {reason}") for each in requests)
        _leave(result, Pending((), None, failed))
    except Exception:
        LOG.exception("hsstore could not tell whose rows were lost")


def _all_failed(
    parts: list[Part], failed: list[tuple[Any, str]], reason: str
) -> tuple[tuple[Any, str], ...]:
    return (*failed, *((part.request, reason) for part in parts))


def _leave(result: Any, pending: Pending) -> None:  # noqa: ANN401
    setattr(result, PENDING, pending)
