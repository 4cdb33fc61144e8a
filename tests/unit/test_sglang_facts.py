from dataclasses import replace
from typing import Any

import pytest

from hsstore.errors import IdentityMismatch
from hsstore.extraction.sglang.facts import Facts, read_facts

MODEL: dict[str, Any] = {"model_path": "m", "weight_version": "default", "api_key": "hunter2"}
SERVER: dict[str, Any] = {
    "version": "0.5.23",
    "max_req_input_len": 100,
    "dtype": "half",
    "api_key": "hunter2",
    "admin_api_key": "hunter2",
    "launch_command": "--api-key hunter2",
    "random_seed": 7,
    "internal_states": [{"startup_time": {"load": 1.5}, "api_key": "hunter2"}],
}


def facts(**changes: object) -> Facts:
    return read_facts(MODEL, SERVER | changes, "http://x")


def test_only_the_whitelist_is_kept() -> None:
    assert "hunter2" not in repr(facts())


def test_what_a_release_does_not_tell_is_unknown_and_dtypes_have_our_names() -> None:
    found = facts()
    assert (found.release, found.dtype, found.longest_prompt) == ("0.5.23", "float16", 99)
    assert (found.quantization, found.max_queued_requests, found.tp_size) == (None, None, 1)


def test_a_launch_has_a_boot_of_its_own() -> None:
    assert facts() == facts()
    assert facts(random_seed=8).boot != facts().boot
    later = facts(internal_states=[{"startup_time": {"load": 1.25}}])
    assert later.boot != facts().boot
    assert replace(later, boot=facts().boot) == facts()


def test_the_order_in_which_ranks_answer_makes_no_other_launch() -> None:
    ranks = [{"random_seed": n, "startup_time": {"load": n}} for n in range(3)]
    assert facts(internal_states=ranks) == facts(internal_states=ranks[::-1])


@pytest.mark.parametrize(
    ("model", "server"),
    [
        ([], SERVER),
        (MODEL, None),
        ({}, SERVER),
        (MODEL, {}),
        (MODEL, SERVER | {"max_req_input_len": "many"}),
        (MODEL, SERVER | {"internal_states": 5}),
        (MODEL, SERVER | {"return_aux_hidden_state_layer_ids": [None]}),
    ],
)
def test_what_no_sglang_says_is_refused(model: object, server: object) -> None:
    with pytest.raises(IdentityMismatch, match="no SGLang server"):
        read_facts(model, server, "http://x")
