"""A tree of foreign files as what computes a store's states: it reads them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hsstore.errors import SourceUnavailable
from hsstore.interop.foreign import Fault, ForeignFile, Format, Reading
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request, expected_match
from hsstore.storage.digest import content_digest

# Two samples in memory beside the one that is being written.
AHEAD = 2


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a tree has of a store's samples: the file of each, or why there is none."""

    files: Mapping[int, ForeignFile]
    reasons: Mapping[int, Failed]


class TreeSource:
    """A HiddenStateSource that answers with what the files hold, bit for bit.

    A sample whose file is damaged fails with the kind of the fault; a tree that is gone raises
    SourceUnavailable. A file may hold padding behind
    its sample, which is cut off; whether that is wanted, whoever makes ``holdings`` has decided.
    """

    def __init__(
        self,
        form: Format,
        identity: StoreIdentity,
        holdings: Holdings,
        recorded: Mapping[str, str],
    ) -> None:
        self._form = form
        self._identity = identity
        self._holdings = holdings
        expected = expected_match(identity.model, identity.capture)
        # Of the model, files tell nothing.
        proven = {name: expected[name] for name in ("dtype", "layers")}
        self._origin = Origin({**dict.fromkeys(expected), **proven}, dict(recorded))
        self._last_read: ForeignFile | None = None
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="read-tree")

    def origin(self) -> Origin:
        """Dtype and layers, which are known; the model is the word of whoever imports."""
        return self._origin

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        """The answers in the order of ``requests``, files being read ahead."""
        waiting: deque[tuple[Request, Future[Reading] | None]] = deque()
        for request in requests:
            waiting.append((request, self._begin(request)))
            if len(waiting) > AHEAD:
                yield self._answer(*waiting.popleft())
        while waiting:
            yield self._answer(*waiting.popleft())

    def settled(self, samples: Iterable[int]) -> None:
        """Nothing is kept for a sample once it is answered."""

    def close(self) -> None:
        """End the reading ahead."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _begin(self, request: Request) -> Future[Reading] | None:
        file = self._holdings.files.get(request.sample)
        if file is None:
            return None
        return self._threads.submit(self._form.read, file, self._identity.model.hidden_size)

    def _answer(self, request: Request, reading: Future[Reading] | None) -> Extracted | Failed:
        if reading is None:
            return self._holdings.reasons[request.sample]
        return self._judged(request, reading.result())

    def _judged(self, request: Request, reading: Reading) -> Extracted | Failed:
        name = self._holdings.files[request.sample].name
        sample, count = reading.sample, len(request.input_ids)
        if reading.faults or sample is None:
            if reading.faults[0].kind == "unreadable":
                self._refuse_outage(self._holdings.files[request.sample], reading.faults[0])
            return failed(request.sample, name, reading.faults[0])
        if not np.array_equal(sample.tokens.input_ids[:count], request.input_ids):
            changed = Fault("unmatched", "its tokens are others than when the tree was looked at")
            return failed(request.sample, name, changed)
        states = sample.states[:count]
        wanted = (count, len(self._identity.capture.layers), self._identity.model.hidden_size)
        if states.shape != wanted:
            told = Fault("shape", f"states {list(states.shape)}, not {list(wanted)}")
            return failed(request.sample, name, told)
        if sample.dtype != self._identity.capture.dtype:
            dtype = self._identity.capture.dtype
            return failed(
                request.sample, name, Fault("dtype", f"states in {sample.dtype}, not {dtype}")
            )
        self._last_read = self._holdings.files[request.sample]
        return Extracted(request.sample, states, self._origin_of(sample.dequantised))

    def _refuse_outage(self, file: ForeignFile, fault: Fault) -> None:
        """SourceUnavailable where not one file is damaged, but the tree is gone, or going."""
        again = self._last_read
        gone = not file.path.exists()
        if gone or (
            again and any(f.kind == "unreadable" for f in self._form.look(again)[0].faults)
        ):
            raise SourceUnavailable(
                f"the tree can no longer be read: {fault.detail}",
                place=str(file.path),
                remedy="bring it back, then run the same command again to go on",
            )

    def _origin_of(self, dequantised: str | None) -> Origin | None:
        if dequantised is None:
            return None
        recorded = {**self._origin.recorded, "dequantised": dequantised}
        return Origin(self._origin.match, recorded)


def failed(sample: int, name: str, fault: Fault) -> Failed:
    """A sample without states, by the fault of the file that should have them."""
    return Failed(sample, fault.kind, f"{name}: {fault.detail}")


def states_digest(form: Format, file: ForeignFile, hidden: int) -> str | None:
    """The digest of the states in a file, None where they cannot be read."""
    sample = form.read(file, hidden).sample
    return None if sample is None else content_digest(sample.states)
