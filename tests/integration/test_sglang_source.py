"""The client of SGLang against a server of ours that speaks as one and fails when told to."""

import dataclasses
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.errors import HsstoreError, IdentityMismatch, MalformedInput, SourceUnavailable
from hsstore.extraction.extractor import extract
from hsstore.extraction.sglang.facts import Facts
from hsstore.extraction.sglang.server import Calibrate
from hsstore.extraction.sglang.source import ClientOptions, SGLangSource
from hsstore.extraction.sglang.transport import Ask
from hsstore.model.capture import Capture, Layer, ModelIdentity
from hsstore.model.identity import StoreIdentity
from hsstore.model.progress import Silent
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage.model_files import read_model
from hsstore.storage.store import Store
from hsstore.testing.fake_sglang import LONGEST, FakeSGLang, Fault, Kind, Launch
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import contents, empty_store

VOCABULARY = 1000
POISON = 666
LENGTHS = (5, 1, 33, 7, 64, 3, 21, 18)
QUICK = ClientOptions(draw=lambda: 0.01, concurrency=4, max_wait_seconds=20, request_seconds=20)


def identity_of(layers: Sequence[Layer] = ("final",), dtype: str = "float32") -> StoreIdentity:
    model = ModelIdentity(
        "maker/model", None, None, "llama", 8, 6, VOCABULARY, "0" * 32, None, None
    )
    return StoreIdentity("0" * 32, "now", model, Capture(tuple(layers), dtype), 16, 64, "none")


FINAL = identity_of()
SPOOLED = identity_of((1, 3, "final"), "bfloat16")


def ids_of(sample: int, tokens: int) -> NDArray[np.int32]:
    return np.random.default_rng(sample).integers(0, POISON, tokens, np.int32)


def requests(lengths: Sequence[int] = LENGTHS) -> list[Request]:
    return [Request(n, f"s{n}", ids_of(n, length)) for n, length in enumerate(lengths)]


def poisoned(sample: int = 100) -> Request:
    return Request(sample, f"s{sample}", np.array([1, POISON, 2], np.int32))


Answers = dict[int, NDArray[Any] | Failed]


def answers(
    source: SGLangSource,
    asked: Sequence[Request],
    each: Callable[[int], None] = lambda _: None,
    told: Callable[[str], None] = lambda _: None,
) -> Answers:
    """Every answer by sample; ``each`` is called with how many there are already."""
    found: Answers = {}
    collect(source, asked, found, each, told)
    return found


def collect(
    source: SGLangSource,
    asked: Sequence[Request],
    found: Answers,
    each: Callable[[int], None],
    told: Callable[[str], None] = lambda _: None,
) -> None:
    for answer in source.states(iter(asked)):
        if isinstance(answer, Waiting):
            told(answer.detail)
            continue
        assert answer.sample not in found
        found[answer.sample] = answer.states.copy() if isinstance(answer, Extracted) else answer
        source.settled([answer.sample])
        each(len(found))


def at(count: int, act: Callable[[], None]) -> Callable[[int], None]:
    return lambda done: act() if done == count else None


def assert_right(found: Answers, asked: Sequence[Request], identity: StoreIdentity = FINAL) -> None:
    assert sorted(found) == [request.sample for request in asked]
    for request in asked:
        states = found[request.sample]
        assert isinstance(states, np.ndarray), states
        np.testing.assert_array_equal(
            states, seeded_states(identity, request.input_ids), strict=True
        )


def opened(
    server: FakeSGLang,
    *others: FakeSGLang,
    options: ClientOptions = QUICK,
    calibrate: Calibrate | None = None,
) -> SGLangSource:
    urls = [server.url, *(each.url for each in others)]
    return SGLangSource(
        urls, server.identity, spool=server.spool, options=options, calibrate=calibrate
    )


def once(fault: Fault) -> Callable[[Sequence[int], int], Fault | None]:
    """The fault for the first request of every prompt but the known-good one."""
    return lambda ids, times: fault if times == 0 and len(ids) != 12 else None


def on_poison(fault: Fault) -> Callable[[Sequence[int], int], Fault | None]:
    return lambda ids, _: fault if POISON in ids else None


# -- what comes when nothing is wrong -------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layers", [("final",), (1, 3), (5, 2, 3)])
def test_states_by_json_are_the_servers(layers: tuple[Layer, ...], dtype: str) -> None:
    identity = identity_of(layers, dtype)
    with FakeSGLang(identity) as server, opened(server) as source:
        assert_right(answers(source, requests()), requests(), identity)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_states_by_spool_are_the_servers(dtype: str, tmp_path: Path) -> None:
    identity = identity_of((3, 1, "final"), dtype)
    with FakeSGLang(identity, spool=tmp_path) as server, opened(server) as source:
        assert_right(answers(source, requests()), requests(), identity)
        assert not list(tmp_path.glob("hsstore-*"))


def test_requests_ask_for_what_they_need_and_no_rid_comes_twice(tmp_path: Path) -> None:
    with FakeSGLang(FINAL) as server, opened(server) as source:
        answers(source, requests())
        answers(source, requests())
    assert {body["return_hidden_states"] for body in server.asked} == {True}
    assert len({body["rid"] for body in server.asked}) == len(server.asked)
    assert len({body["extra_key"] for body in server.asked}) == len(server.asked)
    with FakeSGLang(SPOOLED, spool=tmp_path) as server, opened(server) as source:
        answers(source, requests())
    assert not any("return_hidden_states" in body for body in server.asked)


def test_no_more_are_at_work_than_the_server_takes() -> None:
    info = {"max_running_requests": 2, "max_queued_requests": 1}
    options = ClientOptions(concurrency=30)
    with (
        FakeSGLang(FINAL, launch=Launch(info=info), seconds=0.01) as server,
        opened(server, options=options) as source,
    ):
        answers(source, requests([4] * 40))
    assert server.peak == 3


def test_tokens_at_work_are_bounded() -> None:
    options = ClientOptions(batch_tokens=64, concurrency=30)
    with FakeSGLang(FINAL, seconds=0.01) as server, opened(server, options=options) as source:
        assert_right(answers(source, requests([30] * 20)), requests([30] * 20))
    assert server.peak == 2


# -- what no server is asked for ------------------------------------------------------------------


def test_samples_that_would_harm_a_server_are_not_sent() -> None:
    bad = [
        Request(0, "a", np.array([1, VOCABULARY], np.int32)),
        Request(1, "b", np.array([-1], np.int32)),
        Request(2, "c", np.ones(LONGEST + 1, np.int32)),
        Request(3, "d", np.ones(LONGEST, np.int32)),
    ]
    with FakeSGLang(FINAL) as server, opened(server) as source:
        found = answers(source, bad)
    kinds = [x.kind if isinstance(x, Failed) else None for x in map(found.get, range(4))]
    assert kinds == ["token-out-of-range", "token-out-of-range", "too-long", None]
    assert [len(prompt) for prompt in server.prompts()] == [12, LONGEST]


@pytest.mark.parametrize(
    ("layers", "spool", "words"),
    [
        ((1, "final"), None, "--spool"),
        (("final:pre",), None, "transformers:PATH"),
        (("final:pre",), "spool", "transformers:PATH"),
        ((0, 1), None, "embedding"),
    ],
)
def test_layers_that_cannot_come_are_refused_without_a_request(
    layers: tuple[Layer, ...], spool: str | None, words: str
) -> None:
    with pytest.raises(MalformedInput, match=words):
        SGLangSource(["http://x"], identity_of(layers), spool=Path(spool) if spool else None)


# -- which servers are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"version": "0.5.16"}, r"0\.5\.16.*rows.*--spool"),
        ({"allow_auto_truncate": True}, "truncate"),
        ({"chunked_prefill_size": 8192}, "chunked-prefill-size is 8192"),
        ({"enable_return_hidden_states": False}, "--enable-return-hidden-states"),
        ({"enable_return_aux_hidden_states": True}, "returns auxiliary layers"),
        ({"dtype": "bfloat16"}, "bfloat16, not float32"),
        ({"dtype": "auto"}, "auto, not float32"),
        ({"quantization": "fp8"}, "fp8"),
        ({"load_format": "dummy"}, "random"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "fp8_e4m3"),
        ({"model_path": "other/model"}, "other/model, not maker/model"),
        ({"pp_size": 2}, "pipeline"),
        ({"enable_dp_attention": True}, "attention"),
        ({"model_type": "qwen3"}, "qwen3, not llama"),
        ({"max_req_input_len": None}, "no SGLang server"),
        ({"version": 5}, "no SGLang server"),
    ],
)
def test_an_unfit_server_is_refused_before_a_request(info: dict[str, Any], words: str) -> None:
    with FakeSGLang(FINAL, launch=Launch(info=info)) as server:
        with pytest.raises(IdentityMismatch, match=words) as caught:
            opened(server)
        assert server.asked == []
    assert "server-flags" in str(caught.value)
    assert server.url in str(caught.value)


def test_another_revision_is_refused() -> None:
    model = dataclasses.replace(FINAL.model, revision="a" * 40)
    identity = dataclasses.replace(FINAL, model=model)
    with FakeSGLang(identity, launch=Launch(info={"revision": "b" * 40})) as server:
        with pytest.raises(IdentityMismatch, match="revision"):
            opened(server)
        server.restart(Launch(info={"revision": "a" * 40, "kv_cache_dtype": "bfloat16"}))
        with opened(server) as source:
            assert source.origin().match["revision"] == "a" * 40
            assert source.origin().recorded["kv_cache_dtype"] == "bfloat16"


def test_weights_that_a_server_quantises_as_it_loads_them_are_refused(demo_model: Path) -> None:
    model = read_model(demo_model)
    identity = dataclasses.replace(FINAL, model=model)
    info = {"model_path": str(demo_model.absolute()), "quantization": "fp8"}
    with (
        FakeSGLang(identity, launch=Launch(info=info)) as server,
        pytest.raises(IdentityMismatch, match="quantises the weights as fp8"),
    ):
        opened(server)


def test_other_aux_layers_are_refused() -> None:
    launch = Launch(info={"return_aux_hidden_state_layer_ids": [0, 3]})
    with (
        FakeSGLang(identity_of((1, 3)), launch=launch) as server,
        pytest.raises(IdentityMismatch, match="ids 0 3, and the store needs 0 2"),
    ):
        opened(server)


def test_another_hidden_size_is_refused() -> None:
    fault: Fault = "too wide"
    with (
        FakeSGLang(FINAL, fault=lambda _ids, _times: fault) as server,
        pytest.raises(IdentityMismatch, match="12 rows of 7 values, not 12 rows of 6"),
    ):
        opened(server)


@pytest.mark.parametrize("kind", ["vllm", "web"])
def test_what_is_no_sglang_is_refused(kind: Kind) -> None:
    with (
        FakeSGLang(FINAL, launch=Launch(kind)) as server,
        pytest.raises(IdentityMismatch, match="no SGLang server"),
    ):
        opened(server)


def test_a_server_that_is_not_there_or_not_ready_is_named() -> None:
    with FakeSGLang(FINAL) as server:
        server.stop()
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            opened(server)
        server.start(Launch("loading"))
        with pytest.raises(SourceUnavailable, match="not ready"):
            opened(server)


def test_weights_of_no_finite_states_are_refused() -> None:
    with (
        FakeSGLang(FINAL, fault=lambda _ids, _times: "null") as server,
        pytest.raises(IdentityMismatch, match="not finite"),
    ):
        opened(server)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"layers": [1, 2, "final"]}, "1,2,final"),
        ({"dtype": "float16"}, "float16"),
        ({"hidden_size": 5}, "of 5 values"),
        ({"norm": "pre"}, "norm pre"),
        ({"refused": "an unknown release"}, "an unknown release"),
        ({"release": "0.5.12"}, "hello"),
        ({"engine_layers": [0, 3]}, r"layer ids \(0, 3\), not \(0, 2\)"),
        ({"ranks": 2}, "hello of its boot .* is missing"),
        ({"format": 2}, "hello"),
    ],
)
def test_a_plugin_that_captures_something_else_is_refused(
    hello: dict[str, Any], words: str, tmp_path: Path
) -> None:
    launch = Launch(info={"hello": hello})
    with FakeSGLang(SPOOLED, spool=tmp_path, launch=launch) as server:
        with pytest.raises(IdentityMismatch, match=words):
            opened(server)
        # Only the control prompt tells which hellos are this server's.
        assert len(server.asked) == (not {"engine_layers", "ranks"}.isdisjoint(hello))


def test_a_server_without_the_plugin_is_refused(tmp_path: Path) -> None:
    with (
        FakeSGLang(SPOOLED, spool=tmp_path, fault=lambda _ids, _times: "no spool") as server,
        pytest.raises(SourceUnavailable, match="wrote no states"),
    ):
        opened(server)


# -- the key --------------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeSGLang(FINAL, key="sesame-1234") as server:
        with pytest.raises(SourceUnavailable, match="HSSTORE_API_KEY"):
            opened(server)
        monkeypatch.setenv("HSSTORE_API_KEY", "not-sesame")
        with pytest.raises(SourceUnavailable) as caught:
            opened(server)
        assert "sesame" not in repr(caught.value)
        monkeypatch.setenv("HSSTORE_API_KEY", "sesame-1234")
        with opened(server) as source:
            assert_right(answers(source, requests()), requests())
            assert "sesame" not in repr(vars(source)) + repr(source.origin())


def test_nothing_of_a_servers_secrets_is_kept() -> None:
    seen: list[Facts] = []
    with (
        FakeSGLang(FINAL) as server,
        opened(server, calibrate=lambda _ask, facts: seen.append(facts)) as source,
    ):
        assert "secret-of-the-server" not in repr(seen) + repr(source.origin())
    assert len(seen) == 1


# -- what is tried again --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    ["busy", "disconnect", "abort", "other rid", "rows missing", "cached", "null", "too wide",
     "other weights version", "no json", "error"],
)  # fmt: skip
def test_one_bad_answer_a_sample_is_not_believed_and_asked_for_again(fault: Fault) -> None:
    with FakeSGLang(FINAL, fault=once(fault)) as server, opened(server) as source:
        assert_right(answers(source, requests()), requests())
    assert_asked_again(server)


@pytest.mark.parametrize(
    "fault",
    ["abort", "torn spool", "damaged spool", "no spool", "rows twice", "spool full", "other boot"],
)
def test_one_bad_spool_file_a_sample_is_not_believed(fault: Fault, tmp_path: Path) -> None:
    with FakeSGLang(SPOOLED, fault=once(fault), spool=tmp_path) as server:
        with opened(server) as source:
            assert_right(answers(source, requests()), requests(), SPOOLED)
        assert_asked_again(server)
        assert not list(tmp_path.glob("hsstore-*"))


def assert_asked_again(server: FakeSGLang) -> None:
    asked = server.prompts()
    assert all(asked.count(request.input_ids.tolist()) >= 2 for request in requests())


def test_a_storm_of_503_costs_no_attempt() -> None:
    options = ClientOptions(draw=lambda: 0.01, concurrency=8, max_attempts=1)
    with (
        FakeSGLang(FINAL, most=2, seconds=0.005) as server,
        opened(server, options=options) as source,
    ):
        assert_right(answers(source, requests([9] * 60)), requests([9] * 60))
    assert server.peak == 2


def test_a_request_that_hangs_is_aborted_and_asked_for_again() -> None:
    options = ClientOptions(draw=lambda: 0.01, request_seconds=0.2)
    with FakeSGLang(FINAL, fault=once("hang")) as server:
        with opened(server, options=options) as source:
            assert_right(answers(source, requests([5])), requests([5]))
        assert server.aborted == [server.asked[1]["rid"]]


# -- samples that cannot be had -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "tries"),
    [
        ("rejected", "rejected", 1),
        ("error", "server-error", 3),
        ("abort", "aborted", 3),
        ("not found", "disconnect", 3),
        ("null", "non-finite", 3),
        ("rows missing", "wrong-shape", 3),
    ],
)
def test_a_sample_that_fails_each_time_is_set_aside(fault: Fault, kind: str, tries: int) -> None:
    with FakeSGLang(FINAL, fault=on_poison(fault)) as server, opened(server) as source:
        found = answers(source, [poisoned(), *requests()])
    failed = found.pop(100)
    assert isinstance(failed, Failed)
    assert failed.kind == kind
    assert len(failed.attempts) == tries
    assert all(line.startswith(f"{kind}: ") and server.url in line for line in failed.attempts)
    assert_right(found, requests())
    # The first time, it may as well be the server that is not the one that was verified.
    assert server.prompts().count([1, POISON, 2]) == tries + (fault == "not found")


def test_the_sample_that_kills_the_server_is_found_and_no_other_is_blamed() -> None:
    """It is asked for once among others, then alone until it has killed the server 3 times."""
    with FakeSGLang(FINAL, fault=on_poison("die"), seconds=0.01) as server:
        restarter = Restarter(server)
        with opened(server) as source, restarter:
            found = answers(source, [*requests(), poisoned()])
    failed = found.pop(100)
    assert isinstance(failed, Failed)
    assert failed.kind == "disconnect"
    assert len(failed.attempts) == 3
    assert_right(found, requests())
    assert server.prompts().count([1, POISON, 2]) == 4


class Restarter:
    """Starts a server again whenever it is down, as the service manager of a real one does."""

    def __init__(self, server: FakeSGLang, info: Mapping[str, Any] | None = None) -> None:
        self.server = server
        self.info = info or {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self.over.wait(0.02):
            if not self.server.listening:
                self.server.start(Launch(info=self.info))

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def test_a_broken_server_is_an_outage_and_no_reason_to_fail_samples() -> None:
    broken = threading.Event()

    def fault(_ids: Sequence[int], _times: int) -> Fault | None:
        return "error" if broken.is_set() else None

    with FakeSGLang(FINAL, fault=fault) as server, opened(server) as source:
        broken.set()
        found: Answers = {}
        for answer in source.states(requests()):
            if isinstance(answer, Waiting):
                broken.clear()
            elif isinstance(answer, Extracted):
                found[answer.sample] = answer.states.copy()
            else:
                pytest.fail(f"{answer}")
    assert_right(found, requests())


# -- servers that end, return, or are replaced ----------------------------------------------------


def test_a_server_that_returns_is_verified_and_calibrated_again() -> None:
    calibrated: list[str] = []
    with (
        FakeSGLang(FINAL) as server,
        opened(server, calibrate=lambda _ask, facts: calibrated.append(facts.boot)) as source,
    ):
        found = answers(source, requests(), at(3, server.restart))
    assert_right(found, requests())
    assert len(set(calibrated)) == len(calibrated) == 2


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch("vllm"), "no SGLang server"),
        (Launch("web"), "no SGLang server"),
        (Launch(info={"model_type": "qwen3"}), "qwen3"),
        (Launch(info={"chunked_prefill_size": 64}), "chunk"),
        (Launch(weights=1), "other weights"),
    ],
)
def test_a_server_that_was_replaced_is_refused_without_one_wrong_sample(
    launch: Launch, words: str
) -> None:
    asked = requests([9] * 60)
    prompt = np.arange(1, 5, dtype=np.int32)

    def calibrate(ask: Ask, _facts: Facts) -> None:
        if not np.array_equal(ask(prompt), seeded_states(FINAL, prompt)):
            raise IdentityMismatch("other weights answer here")

    found: Answers = {}
    with FakeSGLang(FINAL) as server, opened(server, calibrate=calibrate) as source:
        with pytest.raises(IdentityMismatch, match=words):
            collect(source, asked, found, at(5, lambda: server.restart(launch)))
        with pytest.raises(IdentityMismatch, match=words):
            list(source.states(asked))
    assert 5 <= len(found) < 60
    assert_right(found, [request for request in asked if request.sample in found])


def test_a_spool_server_that_was_replaced_is_refused_without_one_wrong_sample(
    tmp_path: Path,
) -> None:
    asked = requests([9] * 60)
    prompt = np.arange(1, 5, dtype=np.int32)

    def calibrate(ask: Ask, _facts: Facts) -> None:
        if not np.array_equal(ask(prompt), seeded_states(SPOOLED, prompt)):
            raise IdentityMismatch("other weights answer here")

    found: Answers = {}
    with FakeSGLang(SPOOLED, spool=tmp_path) as server:
        restart = at(5, lambda: server.restart(Launch(weights=1)))
        with (
            opened(server, calibrate=calibrate) as source,
            pytest.raises(IdentityMismatch, match="other weights"),
        ):
            collect(source, asked, found, restart)
        assert not list(tmp_path.glob("hsstore-*"))
    assert_right(found, [r for r in asked if r.sample in found], SPOOLED)


def test_a_server_that_stays_away_is_waited_for_and_then_named() -> None:
    options = ClientOptions(draw=lambda: 0.01, max_wait_seconds=0.5)
    with FakeSGLang(FINAL) as server, opened(server, options=options) as source:
        with pytest.raises(SourceUnavailable, match="no server for") as caught:
            collect(source, requests([9] * 40), {}, at(2, server.stop))
        assert server.url in str(caught.value)


def test_an_outage_is_told() -> None:
    with FakeSGLang(FINAL) as server, opened(server) as source:
        server.stop()
        # The first may come before the loss is noticed.
        for answer in islice(source.states(requests()), 10):
            assert isinstance(answer, Waiting)
            if answer.outage:
                assert server.url in answer.detail
                return
    pytest.fail("no outage was told")


def test_calibration_has_the_last_word() -> None:
    def calibrate(_ask: Ask, _facts: Facts) -> None:
        raise IdentityMismatch("layer 3 is layer 2")

    with (
        FakeSGLang(FINAL) as server,
        pytest.raises(HsstoreError, match="layer 3 is layer 2"),
    ):
        opened(server, calibrate=calibrate)


# -- several servers ------------------------------------------------------------------------------


def test_a_long_sample_goes_to_the_server_that_takes_it() -> None:
    short = Launch(info={"max_req_input_len": 31})
    with (
        FakeSGLang(FINAL, launch=short) as one,
        FakeSGLang(FINAL) as other,
        opened(one, other) as source,
    ):
        asked = requests([30, 31, 5, 200, 40, 7])
        assert_right(answers(source, asked), asked)
    assert max(map(len, one.prompts())) <= 30


def test_the_only_server_for_a_long_sample_is_not_waited_for_forever() -> None:
    options = dataclasses.replace(QUICK, max_wait_seconds=0.5)
    short = Launch(info={"max_req_input_len": 31})
    found: Answers = {}
    with (
        FakeSGLang(FINAL, launch=short) as one,
        FakeSGLang(FINAL) as other,
        opened(one, other, options=options) as source,
    ):
        other.stop()
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            collect(source, requests([200, 5, 7, 3]), found, lambda _: None)
    assert sorted(found) == [1, 2, 3]


def test_a_server_that_returns_for_shorter_prompts_is_not_the_samples_fault() -> None:
    short = Launch(info={"max_req_input_len": 31})
    found: Answers = {}
    with FakeSGLang(FINAL, seconds=0.01) as server, opened(server) as source:
        restart = at(1, lambda: server.restart(short))
        with pytest.raises(SourceUnavailable, match="no server takes a sample of 200 tokens"):
            collect(source, requests([5, *[200] * 40]), found, restart)
    assert not any(isinstance(answer, Failed) for answer in found.values())


def test_what_was_abandoned_while_the_server_was_judged_is_not_asked_again() -> None:
    options = dataclasses.replace(QUICK, max_attempts=1, request_seconds=2.0)

    def fault(ids: Sequence[int], times: int) -> Fault | None:
        if POISON in ids:
            return "error"
        return "hang" if len(ids) == 12 and times == 1 else None

    with FakeSGLang(FINAL, fault=fault) as server, opened(server, options=options) as source:
        given = source.states([poisoned()])
        assert isinstance(next(given), Waiting)
        given.close()
        assert_right(answers(source, requests()), requests())
        time.sleep(2)
        assert_right(answers(source, requests()), requests())
    assert server.prompts().count([1, POISON, 2]) == 1


def test_a_server_that_broke_once_fails_no_sample_of_one_attempt() -> None:
    broken = threading.Event()
    options = dataclasses.replace(QUICK, max_attempts=1)

    def fault(_ids: Sequence[int], _times: int) -> Fault | None:
        return "error" if broken.is_set() else None

    with FakeSGLang(FINAL, fault=fault) as server, opened(server, options=options) as source:
        broken.set()
        assert_right(answers(source, requests(), told=lambda _: broken.clear()), requests())


def test_several_servers_share_the_work_and_take_over_from_one_that_ends() -> None:
    asked = requests([9] * 60)
    with (
        FakeSGLang(FINAL, seconds=0.01) as one,
        FakeSGLang(FINAL, seconds=0.01) as other,
        opened(one, other) as source,
    ):
        found = answers(source, asked, at(20, other.stop))
    assert_right(found, asked)
    assert min(len(one.asked), len(other.asked)) > 5


def test_one_of_several_that_is_replaced_costs_no_sample() -> None:
    asked = requests([9] * 60)
    replaced = Launch("vllm")
    told: list[str] = []
    with (
        FakeSGLang(FINAL, seconds=0.01) as one,
        FakeSGLang(FINAL, seconds=0.01) as other,
        opened(one, other) as source,
    ):
        restart = at(20, lambda: other.restart(replaced))
        found = answers(source, asked, restart, told.append)
    assert_right(found, asked)
    assert [line for line in told if other.url in line and "no SGLang server" in line]


def test_a_server_that_is_out_for_good_is_told_to_the_user(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store", [9] * 150, layers=("final",), shard_rows=64)
    heard = Heard()
    with (
        FakeSGLang(store.identity, seconds=0.05) as one,
        FakeSGLang(store.identity, seconds=0.05) as other,
        opened(one, other) as source,
    ):
        heard.each_shard = at(2, lambda: other.restart(Launch("vllm")))
        assert extract(store, source, progress=heard).complete
    (note,) = heard.notes
    assert note.startswith("out for good: ")
    assert other.url in note
    assert "no SGLang server" in note
    assert heard.named["source-news"] == [{"detail": note}]


class Heard(Silent):
    """Keeps notes and events; ``each_shard`` is called with how many were committed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.named: dict[str, list[Mapping[str, Any]]] = {}
        self.each_shard: Callable[[int], None] = lambda _: None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        self.named.setdefault(name, []).append(members)
        if name == "shard-committed":
            self.each_shard(len(self.named[name]))


def test_what_servers_say_of_themselves_is_told_apart() -> None:
    launch = Launch(info={"version": "0.5.22"})
    with (
        FakeSGLang(FINAL, seconds=0.01) as one,
        FakeSGLang(FINAL, launch=launch) as other,
        opened(one, other) as source,
    ):
        assert source.origin().recorded["engine_version"] == "0.5.23"
        origins = [a.origin for a in source.states(requests()) if isinstance(a, Extracted)]
    assert {o.recorded["engine_version"] for o in origins if o} == {"0.5.22"}


# -- ending ---------------------------------------------------------------------------------------


def test_what_is_not_wanted_any_more_is_aborted(tmp_path: Path) -> None:
    def hang(ids: Sequence[int], _times: int) -> Fault | None:
        return "hang" if len(ids) == 9 else None

    with FakeSGLang(SPOOLED, fault=hang, spool=tmp_path) as server:
        source = opened(server)
        given = source.states(requests([5, 9, 9]))
        assert isinstance(next(given), Extracted)
        until(lambda: len(server.asked) == 4)
        given.close()
        hung = [body["rid"] for body in server.asked if len(body["input_ids"]) == 9]
        assert sorted(server.aborted) == sorted(hung)
        assert len(hung) == 2
        source.close()
        assert not list(tmp_path.glob("hsstore-*"))
        source.close()
    assert not [t for t in threading.enumerate() if t.name == "hsstore-sglang"]


def until(true: Callable[[], bool]) -> None:
    """Wait until the server has seen something, which it does in a moment."""
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


def test_spool_files_stay_until_they_are_settled(tmp_path: Path) -> None:
    with FakeSGLang(SPOOLED, spool=tmp_path) as server, opened(server) as source:
        samples = [a.sample for a in source.states(requests()) if isinstance(a, Extracted)]
        assert len(list(tmp_path.glob("hsstore-*"))) == len(samples) == len(LENGTHS)
        source.settled(samples)
        assert not list(tmp_path.glob("hsstore-*"))


def test_a_slow_consumer_slows_the_server_down(tmp_path: Path) -> None:
    """The spool takes 3 of the samples; the next are asked for when those are settled."""
    row_bytes = SPOOLED.geometry.row_bytes
    launch = Launch(info={"hello": {"spool_bytes": 35 * row_bytes}})
    with FakeSGLang(SPOOLED, spool=tmp_path, launch=launch) as server, opened(server) as source:
        given = source.states(requests([10] * 5))
        samples = [a.sample for a in (next(given) for _ in range(3)) if isinstance(a, Extracted)]
        assert len(samples) == 3
        assert isinstance(next(given), Waiting)
        assert len(server.asked) == 4
        source.settled(samples)
        rest = [a for a in given if isinstance(a, Extracted)]
        assert len(rest) == 2


def test_a_sample_beyond_the_whole_spool_is_told(tmp_path: Path) -> None:
    launch = Launch(info={"hello": {"spool_bytes": 35 * SPOOLED.geometry.row_bytes}})
    with FakeSGLang(SPOOLED, spool=tmp_path, launch=launch) as server, opened(server) as source:
        given = source.states(requests([40]))
        with pytest.raises(SourceUnavailable, match="HSSTORE_SPOOL_BYTES"):
            next(given)


def test_what_no_server_takes_is_foreseen(tmp_path: Path) -> None:
    launch = Launch(info={"hello": {"spool_bytes": 35 * SPOOLED.geometry.row_bytes}})
    with FakeSGLang(SPOOLED, spool=tmp_path, launch=launch) as server, opened(server) as source:
        assert source.foresee([]) is None
        assert source.foresee([3, 31]) is None
        told = source.foresee([10_000, 3, 20_000])
        assert told is not None
        assert told.startswith("2 samples have more than the ")
        with pytest.raises(SourceUnavailable, match=r"a sample of 32 tokens .*, 31 at most"):
            source.foresee([3, 32, 20_000])


def test_a_file_that_a_server_writes_late_is_removed_too(tmp_path: Path) -> None:
    def hang(ids: Sequence[int], _times: int) -> Fault | None:
        return "hang" if len(ids) == 9 else None

    with FakeSGLang(SPOOLED, fault=hang, spool=tmp_path) as server:
        source = opened(server)
        given = source.states(requests([5, 9]))
        next(given)
        until(lambda: len(server.asked) == 3)
        given.close()
        (late,) = (body["rid"] for body in server.asked if len(body["input_ids"]) == 9)
        writing = threading.Timer(0.5, (tmp_path / late).write_bytes, [b"late"])
        writing.start()
        source.close()
        writing.join()
    assert not list(tmp_path.glob("hsstore-*"))


def test_a_spool_that_stays_full_is_told_and_ends_the_run(tmp_path: Path) -> None:
    options = dataclasses.replace(QUICK, max_wait_seconds=1.0)
    told: list[str] = []
    with (
        FakeSGLang(SPOOLED, spool=tmp_path, fault=lambda ids, _: full_but_for_control(ids)) as one,
        opened(one, options=options) as source,
        pytest.raises(SourceUnavailable, match="the spool is full: no room"),
    ):
        answers(source, requests(), told=told.append)
    assert "the spool is full: no room" in told
    assert len(one.asked) < 150


def test_a_hello_of_another_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def denied(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and str(path).startswith("hello."):
            raise PermissionError(errno.EACCES, "denied")  # root may read all
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", denied)
    with (
        FakeSGLang(SPOOLED, spool=tmp_path) as server,
        pytest.raises(SourceUnavailable, match=r"cannot be read.*one user"),
    ):
        opened(server)


def full_but_for_control(ids: Sequence[int]) -> Fault | None:
    return None if len(ids) == 12 else "spool full"


def test_a_spool_folder_that_was_made_anew_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    with FakeSGLang(SPOOLED, spool=folder) as server, opened(server) as source:
        assert_right(answers(source, requests()), requests(), SPOOLED)
        server.stop()
        shutil.rmtree(folder)
        folder.mkdir()
        server.start(Launch())
        assert_right(answers(source, requests()), requests(), SPOOLED)


def test_weights_that_a_spool_server_is_given_while_it_runs_are_noticed(tmp_path: Path) -> None:
    """The launch stays the same; what it says of its weights does not."""
    options = dataclasses.replace(QUICK, facts_seconds=0.0)
    versions: list[str | None] = []

    def calibrate(_ask: Ask, facts: Facts) -> None:
        versions.append(facts.weight_version)

    with (
        FakeSGLang(SPOOLED, spool=tmp_path) as server,
        opened(server, options=options, calibrate=calibrate) as source,
    ):
        given = source.states(requests())
        next(given)
        server.launch.info = {"load_format": "flash_rl"}
        list(given)
    assert len(versions) == 2


def test_a_consumer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Request]:
        yield from requests()
        raise RuntimeError("the reader of requests broke")

    with FakeSGLang(SPOOLED, spool=tmp_path) as server:
        with opened(server) as source, pytest.raises(RuntimeError, match="reader"):
            list(source.states(broken()))
        assert not list(tmp_path.glob("hsstore-*"))


# -- filling a store ------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [("final",), (1, 3, "final")])
def test_a_store_is_filled_through_a_restart(layers: tuple[Layer, ...], tmp_path: Path) -> None:
    spool = tmp_path / "spool" if len(layers) > 1 else None
    if spool is not None:
        spool.mkdir()
    lengths = [1 + n * 7 % 40 for n in range(60)]
    store = empty_store(tmp_path / "store", lengths, layers=layers, shard_rows=64)
    deaths = iter([True])

    def fault(ids: Sequence[int], _times: int) -> Fault | None:
        return "die" if len(ids) == 36 and next(deaths, False) else None

    # The spool holds but a few of them, so that journalling has to keep pace.
    launch = Launch(info={"hello": {"spool_bytes": 100 * store.identity.geometry.row_bytes}})
    with FakeSGLang(store.identity, spool=spool, fault=fault, launch=launch) as server:
        with opened(server) as source, Restarter(server, launch.info):
            summary = extract(store, source)
        if spool is not None:
            assert not list(spool.glob("hsstore-*"))
    assert summary.complete
    assert (summary.samples_extracted, summary.samples_failed) == (60, 0)
    expected = filled_like(tmp_path / "expected", lengths, layers)
    assert contents(store) == contents(expected)


def filled_like(root: Path, lengths: Sequence[int], layers: Sequence[Layer]) -> Store:
    store = empty_store(root, lengths, layers=layers, shard_rows=64)
    extract(store, SeededSource(store.identity))
    return store
