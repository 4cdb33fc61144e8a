"""What the values of states give away, by dtype and place."""

import numpy as np
import pytest
import torch

from hsstore.interop.contents import state_faults
from hsstore.testing.foreign_trees import quantised

STORED = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32,
          "float64": np.float64, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}  # fmt: skip
WILD = {"bfloat16": (0x7F80, 0xFFC0), "float16": (np.inf, np.nan), "float32": (-np.inf, np.nan),
        "float64": (np.inf, np.nan), "float8_e4m3fn": (0x7F, 0xFF),
        "float8_e5m2": (0x7C, 0xFE)}  # fmt: skip


@pytest.mark.parametrize("begin", [0, 1000, 4095, 8191, 30_000])
def test_a_page_of_zeros_shows_wherever_it_begins(begin: int) -> None:
    states = np.full((40, 3, 5000), 0x3F80, np.uint16)
    states.reshape(-1)[begin : begin + 2048] = 0
    (fault,) = state_faults("hidden_states", "bfloat16", states, len(states))
    assert fault.kind == "all-zero"
    assert "stretches" in fault.detail
    assert fault.detail.endswith(f"in row {begin // 15_000}") or begin + 2048 > 15_000


@pytest.mark.parametrize("dtype", STORED)
def test_values_by_dtype(dtype: str) -> None:
    states = np.ones((50, 3, 40), STORED[dtype])
    assert [*state_faults("s", dtype, states, 50)] == []
    for wild in WILD[dtype]:
        hurt = states.copy()
        hurt[3, 2, 5] = wild
        assert [fault.kind for fault in state_faults("s", dtype, hurt, 50)] == ["non-finite"]
    hurt = states.copy()
    hurt[7] = 0
    assert [fault.kind for fault in state_faults("s", dtype, hurt, 50)] == ["all-zero"]
    hurt = states.copy()
    hurt[:, 1] = 0
    (fault,) = state_faults("s", dtype, hurt, 50)
    assert fault.detail == "layers 1 of s, counted from 0"


def test_only_zeros_may_be_behind_the_tokens_of_a_padded_sample() -> None:
    states = np.ones((50, 3, 2000), np.float32)
    states[40:] = 0
    assert [*state_faults("s", "float32", states, 40)] == []
    (fault,) = state_faults("s", "float32", states, 41)
    assert fault.detail == "1 rows of s, the first is 40"
    states[45, 1, 7] = np.nan
    (fault,) = state_faults("s", "float32", states, 40)
    assert fault.detail == "1 rows of s, the first is 45, layer 1"


def test_float8_with_one_scale_a_token_has_zeros_where_a_layer_is_much_smaller() -> None:
    """As where a first token's later layers are ten thousands, and its first ones hundredths."""
    states = torch.full((20, 3, 4096), 0.5)
    states[0, 0], states[0, 2, 9] = 0.01, 12_000.0
    bits = quantised(states)["hidden_states"].view(torch.uint8).numpy()
    assert not bits[0, 0].any()
    assert [*state_faults("hidden_states", "float8_e4m3fn", bits, 20)] == []
