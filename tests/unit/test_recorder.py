"""The recorder with stand-ins for SGLang's objects: what a real server does not do on demand."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hsstore.capture import recorder as recorder_module
from hsstore.capture.recorder import Recorder, first_hello
from hsstore.capture.settings import Settings
from hsstore.capture.spool_format import rid
from hsstore.testing.spool_probe import CaptureError, Probe, joined, read_segments

BOOT = "00112233445566778899aabbccddeeff"
HIDDEN = 8
RID = rid("a" * 16, 1)
OTHER = rid("a" * 16, 2)


class LlamaForCausalLM:
    def __init__(self) -> None:
        self.ids: list[int] = []

    def set_dflash_layers_to_capture(self, ids: list[int]) -> None:
        self.ids = ids


class MambaForCausalLM(LlamaForCausalLM):
    pass


def runner(model: Any, **options: Any) -> Any:  # noqa: ANN401
    args = {
        "nnodes": 1, "pp_size": 1, "enable_dp_attention": False, "attn_cp_size": 1, "dp_size": 1,
        "speculative_algorithm": None, "disaggregation_mode": "null", "enable_pdmux": False,
        "enable_two_batch_overlap": False, "is_embedding": False, "dllm_algorithm": None,
        "model_path": "/model", **options,
    }  # fmt: skip
    config = SimpleNamespace(
        dtype=torch.float32,
        hidden_size=HIDDEN,
        num_hidden_layers=4,
        hf_config=SimpleNamespace(model_type="llama"),
    )
    return SimpleNamespace(
        model=model,
        model_config=config,
        server_args=SimpleNamespace(**args),
        is_draft_worker=False,
        tp_rank=options.get("tp_rank", 0),
        dp_rank=None,
    )


def request(name: str = RID, prompt: int = 6) -> Any:  # noqa: ANN401
    return SimpleNamespace(rid=name, origin_input_ids=[0] * prompt)


EXTEND = SimpleNamespace(is_extend=lambda: True)


class Server:
    """A recorder whose hooks are called as a server does, on states that tell their row."""

    def __init__(self, spool: Path, layers: tuple[int | str, ...] = (3, "final", 1)) -> None:
        self.spool = spool
        # 0.5.12 needs nothing of SGLang to tell its ranks.
        hello = first_hello(BOOT, "0.5.12", "0.1.0")
        self.recorder = Recorder(Settings(spool, layers, 1 << 20, BOOT), hello)
        self.model: Any = LlamaForCausalLM()
        self.worker = SimpleNamespace(is_draft_worker=False)

    def load(self, **options: Any) -> None:  # noqa: ANN401
        self.recorder.load(None, runner(self.model, **options))

    def states(self, tokens: int, layers: int = 2) -> tuple[Any, Any]:
        values = torch.arange(tokens, dtype=torch.float32)[:, None].repeat(1, HIDDEN)
        return [values + 1000 * (at + 1) for at in range(layers)], values + 9000

    def forward(
        self,
        parts: list[tuple[Any, int, int]],
        aux: Any = None,  # noqa: ANN401
        final: Any = None,  # noqa: ANN401
    ) -> None:
        tokens = sum(extend for _, _, extend in parts)
        states = self.states(tokens)
        aux, final = (states[0] if aux is None else aux), (states[1] if final is None else final)
        metadata = SimpleNamespace(forward_mode=EXTEND)
        output = self.recorder.logits(
            lambda *_: SimpleNamespace(), None, None, final, None, metadata, aux
        )
        batch = SimpleNamespace(
            forward_mode=EXTEND,
            reqs=[each for each, _, _ in parts],
            extend_prefix_lens=[prefix for _, prefix, _ in parts],
            extend_seq_lens=[extend for _, _, extend in parts],
        )
        result = SimpleNamespace(logits_output=output)
        self.recorder.forward(result, self.worker, batch)
        self.recorder.result(None, batch, result)

    def hello(self) -> dict[str, Any]:
        [found] = Probe("", self.spool).hellos()
        return found

    def rows(self, tokens: int, name: str = RID) -> torch.Tensor:
        return joined(read_segments((self.spool / name).read_bytes(), name), tokens)

    def reason(self, name: str = RID) -> str:
        with pytest.raises(CaptureError) as error:
            self.rows(6, name)
        return str(error.value)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server(tmp_path)
    server.load()
    return server


def test_rows_are_in_stored_order_whatever_order_the_engine_captures_in(server: Server) -> None:
    assert server.model.ids == [0, 2]
    server.forward([(request("foreign"), 0, 3), (request(), 0, 6)])
    rows = server.rows(6)[:, :, 0]
    assert rows[0].tolist() == [2003, 9003, 1003]
    assert rows[5].tolist() == [2008, 9008, 1008]
    assert server.hello()["checked"] is True
    assert server.hello()["layers"] == [3, "final", 1]


def test_chunks_interleave_with_other_requests(server: Server) -> None:
    one, two = request(RID, 6), request(OTHER, 4)
    server.forward([(one, 0, 4)])
    server.forward([(two, 0, 3), (one, 4, 2)])
    server.forward([(two, 3, 1)])
    assert server.rows(6)[:, 1, 0].tolist() == [9000, 9001, 9002, 9003, 9003, 9004]
    assert server.rows(4, OTHER)[:, 1, 0].tolist() == [9000, 9001, 9002, 9000]


def test_decoded_rows_and_rows_captured_before_a_retraction_are_dropped(server: Server) -> None:
    again = request(RID, 6)
    server.forward([(again, 0, 4)])
    server.forward([(again, 0, 9), (request(OTHER, 2), 0, 2)])
    assert server.rows(6)[:, 1, 0].tolist() == [9000, 9001, 9002, 9003, 9004, 9005]
    assert server.rows(2, OTHER)[:, 1, 0].tolist() == [9009, 9010]
    server.forward([(again, 8, 1)])  # a decoding row of a mixed batch
    assert server.rows(6).shape[0] == 6


def test_a_cached_prefix_is_an_error_marker(server: Server) -> None:
    server.forward([(request(), 4, 2), (request(OTHER), 0, 6)])
    assert server.reason().startswith("cached-prefix: rows 0 to 3")
    assert server.rows(6, OTHER).shape[0] == 6


def test_packed_states_are_taken_apart(server: Server) -> None:
    aux, final = server.states(6)
    server.forward([(request(), 0, 6)], torch.cat(aux, dim=-1), final)
    assert server.rows(6)[0, :, 0].tolist() == [2000, 9000, 1000]


@pytest.mark.parametrize("name", ["../../x", "x", None, ["a"], f"{RID}\n", "HEALTH_CHECK_1"])
def test_foreign_requests_leave_nothing(server: Server, name: Any) -> None:  # noqa: ANN401
    server.forward([(request(name), 0, 6)])
    assert Probe("", server.spool).files() == []
    assert list(server.spool.parent.glob("x*")) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda aux, final: (aux[:1], final), "1 states of numbered layers, not 2"),
        (lambda aux, final: (aux * 2, final), "4 states"),
        (lambda _, final: ([], final), "0 states"),
        (lambda aux, final: ([aux[0], aux[1][:3]], final), r"layer 3 is \[3, 8\]"),
        (lambda aux, final: ([x[:5] for x in aux], final[:5]), r"\[5, 8\], not \[6, 8\]"),
        (lambda aux, final: ([x.half() for x in aux], final), "torch.float16, not float32"),
        (lambda aux, final: (torch.cat([*aux, aux[0]], -1), final), "packed states"),
    ],
)
def test_wrong_states_at_the_first_forward_refuse_the_server(
    server: Server,
    wrong: Any,  # noqa: ANN401
    why: str,
) -> None:
    server.forward([(request("warm-up"), 0, 6)], *wrong(*server.states(6)))
    assert re.search(why, server.hello()["refused"])
    assert server.hello()["checked"] is False
    server.forward([(request(), 0, 6)])
    assert server.reason().startswith("refused: ")


def test_wrong_states_later_cost_their_requests_only(server: Server) -> None:
    server.forward([(request("warm-up"), 0, 6)])
    aux, final = server.states(6)
    server.forward([(request(), 0, 6)], aux[:1], final)
    assert server.reason().startswith("wrong-states: ")
    server.forward([(request(OTHER), 0, 6)])
    assert server.rows(6, OTHER).shape[0] == 6
    assert server.hello()["refused"] is None


def test_a_request_that_failed_once_gets_no_more_rows(server: Server) -> None:
    server.forward([(request("warm-up"), 0, 6)])
    one = request()
    aux, final = server.states(4)
    server.forward([(one, 0, 4)], aux[:1], final)
    server.forward([(one, 4, 2)])
    assert server.reason().startswith("wrong-states: ")


def test_nothing_raises_into_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    server.forward([(request("warm-up"), 0, 6)])
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "to_host", broken)
        server.forward([(request(), 0, 6)])
    assert server.reason() == "capture-error: RuntimeError: out of memory"
    server.recorder.forward(object(), server.worker, object())
    server.recorder.result(None, None, SimpleNamespace(_hsstore_pending=object()))
    server.recorder.load(None, object())


def test_states_that_went_by_the_hook_are_an_error_marker(server: Server) -> None:
    server.forward([(request("warm-up"), 0, 6)])
    batch = SimpleNamespace(
        forward_mode=EXTEND, reqs=[request()], extend_prefix_lens=[0], extend_seq_lens=[6]
    )
    result = SimpleNamespace(logits_output=SimpleNamespace())
    server.recorder.forward(result, server.worker, batch)
    server.recorder.result(None, batch, result)
    assert "CUDA graphs" in server.reason()


def test_a_full_spool_is_an_error_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsstore.capture.spool.WAIT_SECONDS", 0.0)
    server = Server(tmp_path)
    server.recorder._settings = replace(server.recorder._settings, spool_bytes=300)
    server.load()
    server.recorder._spool._wait_seconds = 0.0  # type: ignore[union-attr]
    server.forward([(request(RID, 2), 0, 2)])
    assert server.rows(2).shape[0] == 2
    server.forward([(request(OTHER, 2), 0, 2)])
    assert server.reason(OTHER).startswith("spool-full: ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nnodes": 2}, "several nodes"),
        ({"enable_flashinfer_allreduce_fusion": True}, "a fused all-reduce"),
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"enable_dp_attention": True}, "data-parallel attention"),
        ({"attn_cp_size": 2}, "context parallelism"),
        ({"speculative_algorithm": "EAGLE3"}, "speculative decoding"),
        ({"is_embedding": True}, "embedding"),
    ],
)
def test_launch_options_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    server = Server(tmp_path)
    server.load(**options)
    assert why in server.hello()["refused"]
    assert server.model.ids == []
    server.forward([(request(), 0, 6)])
    assert Probe("", tmp_path).files() == []


def test_unknown_classes_and_layers_are_refused(tmp_path: Path) -> None:
    for at, (layers, model) in enumerate(
        (((1, 4), LlamaForCausalLM()), ((0,), LlamaForCausalLM()), ((1,), MambaForCausalLM()))
    ):
        folder = tmp_path / str(at)
        folder.mkdir()
        server = Server(folder, layers)
        server.model = model
        server.load()
        assert server.hello()["refused"]
        assert server.model.ids == []


def test_a_missing_option_is_not_taken_for_off(tmp_path: Path) -> None:
    server = Server(tmp_path)
    broken = runner(server.model)
    del broken.server_args.pp_size
    server.recorder.load(None, broken)
    assert "pp_size" in server.hello()["refused"]


def test_other_tensor_parallel_ranks_choose_the_layers_and_write_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.load(tp_rank=1)
    server.forward([(request(), 0, 6)])
    assert server.model.ids == [0, 2]
    assert list(tmp_path.iterdir()) == []


def test_draft_workers_are_left_alone(tmp_path: Path) -> None:
    server = Server(tmp_path)
    draft = runner(server.model)
    draft.is_draft_worker = True
    server.recorder.load(None, draft)
    assert list(tmp_path.iterdir()) == []
    assert server.model.ids == []


def test_the_final_state_alone_needs_no_ids(tmp_path: Path) -> None:
    server = Server(tmp_path, ("final",))
    server.load()
    server.forward([(request(), 0, 6)], aux=[])
    assert server.rows(6)[:, 0, 0].tolist() == [9000, 9001, 9002, 9003, 9004, 9005]
    assert json.loads(json.dumps(server.hello()["engine_layers"])) == []
