"""What every source of hidden states keeps to; a new source joins by a line in SOURCES."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.demo.model import build_model
from hsstore.extraction.sglang.source import ClientOptions, SGLangSource
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model.capture import Capture
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import (
    Extracted,
    Failed,
    HiddenStateSource,
    Origin,
    Request,
    Waiting,
    differences,
    expected_match,
)
from hsstore.storage.codec import stored_dtype
from hsstore.storage.model_files import read_model
from hsstore.testing.fake_sglang import FakeSGLang
from hsstore.testing.sources import SeededSource

BROKEN = 3
LENGTHS = (5, 1, 12, 7, 12, 3)
Open = Callable[[Path, StoreIdentity], HiddenStateSource]

SOURCES: dict[str, Open] = {
    "seeded": lambda _, identity: SeededSource(identity, {f"s{BROKEN}": "broken"}),
    "transformers": TransformersSource,
    "transformers, batched": lambda path, identity: TransformersSource(
        path, identity, batch_tokens=32
    ),
    "sglang": lambda _, identity: FakelyServed(identity),
}


class FakelyServed(SGLangSource):
    """The client of SGLang, with a fake server and a spool of its own."""

    def __init__(self, identity: StoreIdentity) -> None:
        with contextlib.ExitStack() as stack:
            spool = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(FakeSGLang(identity, spool=spool))
            super().__init__(
                [server.url], identity, spool=spool, options=ClientOptions(concurrency=2)
            )
            self.rest = stack.pop_all()

    def close(self) -> None:
        super().close()
        self.rest.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_model(path)
    return path


@pytest.fixture(params=["bfloat16", "float16", "float32"])
def identity(model: Path, request: pytest.FixtureRequest) -> StoreIdentity:
    capture = Capture((1, 2, "final"), request.param)
    return StoreIdentity("0" * 32, "now", read_model(model), capture, 16, 64, "none")


@pytest.fixture(params=SOURCES)
def opened(
    model: Path, identity: StoreIdentity, request: pytest.FixtureRequest
) -> Iterator[Callable[[], HiddenStateSource]]:
    """Opens one source after the other; all are closed in the end."""
    sources: list[HiddenStateSource] = []

    def opener() -> HiddenStateSource:
        sources.append(SOURCES[request.param](model, identity))
        return sources[-1]

    yield opener
    for source in sources:
        source.close()


@pytest.fixture
def source(opened: Callable[[], HiddenStateSource]) -> HiddenStateSource:
    return opened()


def requests(lengths: tuple[int, ...] = LENGTHS) -> list[Request]:
    """Sample BROKEN cannot be had: its key is refused, or its tokens are no model's."""
    asked = []
    for n, length in enumerate(lengths):
        ids = np.random.default_rng(n).integers(0, 250, length, np.int32)
        asked.append(Request(n, f"s{n}", -1 - ids if n == BROKEN else ids))
    return asked


def answers(source: HiddenStateSource, asked: list[Request]) -> dict[int, NDArray[Any] | Failed]:
    """Every answer by sample; an array is copied before the next answer may overwrite it."""
    found: dict[int, NDArray[Any] | Failed] = {}
    for answer in source.states(iter(asked)):
        if isinstance(answer, Waiting):
            continue
        assert answer.sample not in found
        found[answer.sample] = answer.states.copy() if isinstance(answer, Extracted) else answer
    return found


def test_every_request_is_answered_once(source: HiddenStateSource) -> None:
    assert sorted(answers(source, requests())) == list(range(len(LENGTHS)))
    assert answers(source, []) == {}


def test_states_have_the_stores_shape_and_dtype(
    source: HiddenStateSource, identity: StoreIdentity
) -> None:
    geometry = identity.geometry
    asked = requests()
    for answer in source.states(asked):
        if not isinstance(answer, Extracted):
            continue
        tokens = len(asked[answer.sample].input_ids)
        assert answer.states.shape == (tokens, geometry.layers, geometry.hidden_size)
        assert answer.states.dtype == stored_dtype(identity.capture.dtype)
        assert answer.states.flags.c_contiguous


def test_what_cannot_be_computed_is_named_and_harms_no_other(source: HiddenStateSource) -> None:
    found = answers(source, requests())
    failed = [answer for answer in found.values() if isinstance(answer, Failed)]
    assert [answer.sample for answer in failed] == [BROKEN]
    assert failed[0].kind.isprintable()
    assert failed[0].detail.isprintable()
    assert all(line.isprintable() for line in failed[0].tried())


def test_requests_are_pulled_as_they_can_be_worked_on(source: HiddenStateSource) -> None:
    pulled = 0

    def endless() -> Iterator[Request]:
        nonlocal pulled
        ids = np.arange(8, dtype=np.int32)
        while True:
            pulled += 1
            yield Request(pulled - 1 + len(LENGTHS), "good", ids)

    given = source.states(endless())
    assert pulled == 0
    for n in range(10):
        next(given)
        assert n < pulled <= n + 6


def test_the_same_tokens_get_the_same_states(opened: Callable[[], HiddenStateSource]) -> None:
    source = opened()
    first, again, another = (answers(s, requests()) for s in (source, source, opened()))
    for sample, states in first.items():
        for other in (again[sample], another[sample]):
            if isinstance(states, Failed):
                assert other == states
            else:
                assert isinstance(other, np.ndarray)
                np.testing.assert_array_equal(states, other, strict=True)


def test_the_request_is_left_as_it_was(source: HiddenStateSource) -> None:
    asked, untouched = requests(), requests()
    for request in asked:
        request.input_ids.flags.writeable = False
    answers(source, asked)
    for request, before in zip(asked, untouched, strict=True):
        np.testing.assert_array_equal(request.input_ids, before.input_ids)


def test_overwritten_answers_change_nothing_later(opened: Callable[[], HiddenStateSource]) -> None:
    """A consumer may use the memory of an answer, as the source may once the next is asked for."""
    expected, found = answers(opened(), requests()), {}
    for answer in opened().states(requests()):
        if isinstance(answer, Extracted):
            found[answer.sample] = answer.states.copy()
            answer.states[:] = 0
    for sample, states in found.items():
        np.testing.assert_array_equal(states, expected[sample])


def test_the_origin_agrees_with_the_store(
    source: HiddenStateSource, identity: StoreIdentity
) -> None:
    origin = source.origin()
    assert differences(expected_match(identity.model, identity.capture), origin.match) == []
    assert origin.recorded["engine"]
    assert Origin.fields()(origin.to_document(), "") == []
    assert origin == source.origin()


def test_closing_twice_is_closing_once(source: HiddenStateSource) -> None:
    answers(source, requests())
    source.close()
    source.close()
