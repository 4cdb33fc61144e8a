import pytest

from hsstore.capture.layer_ids import (
    DFLASH,
    EAGLE3,
    FAMILIES,
    READ,
    SEEN,
    UnknownLayerIds,
    counts_block_outputs,
    engine_ids,
    family,
    was_seen,
)


def test_an_id_is_one_less_than_the_blocks_before_it() -> None:
    assert engine_ids("LlamaForCausalLM", [31, 3, 59], 61) == (2, 30, 58)
    assert engine_ids("KimiK25ForConditionalGeneration", [1, 60], 61) == (0, 59)
    assert engine_ids("LlamaForCausalLM", [], 4) == ()


@pytest.mark.parametrize("layer", [0, 4, 5])
def test_the_embedding_and_the_last_block_are_refused(layer: int) -> None:
    with pytest.raises(UnknownLayerIds, match=f"layer {layer} of 4 blocks, only 1 to 3"):
        engine_ids("LlamaForCausalLM", [1, layer], 4)


def test_an_unknown_class_is_refused_by_name() -> None:
    for ask in (lambda: family("MambaForCausalLM"), lambda: engine_ids("MambaForCausalLM", [], 4)):
        with pytest.raises(UnknownLayerIds, match="MambaForCausalLM"):
            ask()


def test_the_uneven_method_is_never_called() -> None:
    for known in FAMILIES.values():
        assert known.evidence in (SEEN, READ)
        assert set(known.setters) <= {DFLASH, EAGLE3}
        assert not (known.uneven and EAGLE3 in known.setters)
    assert {name for name, known in FAMILIES.items() if known.uneven} >= {
        "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM",
        "GptOssForCausalLM", "KimiK25ForConditionalGeneration",
    }  # fmt: skip


def test_model_types_without_one_way_of_counting() -> None:
    assert counts_block_outputs("llama")
    assert counts_block_outputs("qwen3")
    assert not counts_block_outputs("deepseek_v3")
    assert not counts_block_outputs("mamba")


def test_a_class_that_leaves_the_residual_out_is_refused() -> None:
    with pytest.raises(UnknownLayerIds, match="Gemma3ForCausalLM"):
        engine_ids("Gemma3ForCausalLM", [1], 4)
    assert not counts_block_outputs("gemma3_text")


def test_what_was_seen_and_what_was_only_read() -> None:
    assert [was_seen(name) for name in ("llama", "mistral", "qwen2", "qwen3")] == [True] * 4
    assert [was_seen(name) for name in ("phi3", "deepseek_v3", "mamba")] == [False] * 3
