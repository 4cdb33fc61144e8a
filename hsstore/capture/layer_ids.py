"""Which ids make SGLang capture the residual stream "after k blocks", for each model class.

SGLang's model classes take ids through ``set_dflash_layers_to_capture`` or, where they have no
such method, ``set_eagle3_layers_to_capture``. Both collect what enters block ``id + 1``, output
and residual added up, so the id of our layer k is k - 1, in every class listed here and in all five
releases of ``releases.RELEASES``; a class that is not listed is refused. The EAGLE3 method of some
classes (``uneven``) counts otherwise in some releases and is never called on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

DFLASH = "set_dflash_layers_to_capture"
EAGLE3 = "set_eagle3_layers_to_capture"

SEEN = "seen"
READ = "read"


class UnknownLayerIds(ValueError):
    """A model class, or a layer of it, whose ids in SGLang are not known here."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is known about one model class of SGLang.

    ``model_type`` is transformers' name for it and ``setters`` the methods that may be called, the
    first that a release has; ``evidence`` is SEEN where a real server's states were equal to
    transformers', READ where only SGLang's source says so: calibration needs a reference then.
    ``uneven`` tells that its EAGLE3 ids do not count like its DFLASH ids in every release.
    """

    model_type: str
    setters: tuple[str, ...]
    evidence: str
    uneven: bool = False


_BOTH = (DFLASH, EAGLE3)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        # Up to 0.5.20 the model appends the sum of output and residual before block id + 1; from
        # 0.5.22 on it takes the residual stream as prepared for that block. In Qwen2 and Qwen3 the
        # same; Mistral and Phi3 are LlamaForCausalLM under another name in every release.
        "LlamaForCausalLM": Family("llama", _BOTH, SEEN),
        "MistralForCausalLM": Family("mistral", _BOTH, SEEN),
        "Phi3ForCausalLM": Family("phi3", _BOTH, READ),
        "Qwen2ForCausalLM": Family("qwen2", (EAGLE3,), SEEN),
        "Qwen3ForCausalLM": Family("qwen3", _BOTH, SEEN),
        # These take the residual after the norm before attention has added the output to it, in
        # every release; so do those of DeepSeek from 0.5.17 on.
        "Qwen2MoeForCausalLM": Family("qwen2_moe", (EAGLE3,), READ),
        "Qwen3MoeForCausalLM": Family("qwen3_moe", _BOTH, READ),
        "MiniMaxM2ForCausalLM": Family("minimax_m2", (EAGLE3,), READ),
        # The sum, up to 0.5.20; it lacks the other ranks' part where a CUDA server fuses the
        # all-reduce of a block into the next one, as it does for a calibration's short prompt. The
        # same holds for GPT-OSS and GLM-4 MoE Lite up to 0.5.20, and for DeepSeek in 0.5.12.
        "Glm4MoeForCausalLM": Family("glm4_moe", (EAGLE3,), READ),
        # From 0.5.17 on the EAGLE3 method of these counts as we do, but for a list that begins
        # with 1 (GPT-OSS: but for one that ends with the number of blocks).
        "DeepseekV2ForCausalLM": Family("deepseek_v2", (DFLASH,), READ, uneven=True),
        "DeepseekV3ForCausalLM": Family("deepseek_v3", (DFLASH,), READ, uneven=True),
        "Glm4MoeLiteForCausalLM": Family("glm4_moe_lite", (DFLASH,), READ, uneven=True),
        "GptOssForCausalLM": Family("gpt_oss", (DFLASH,), READ, uneven=True),
        # Hands the ids on to the DeepseekV3ForCausalLM inside it.
        "KimiK25ForConditionalGeneration": Family("kimi_k25", (DFLASH,), READ, uneven=True),
        # Not Gemma3ForCausalLM: from 0.5.17 on it appends the output without the residual.
    }
)


def family(architecture: str) -> Family:
    """What is known about a model class; UnknownLayerIds where it is not listed."""
    found = FAMILIES.get(architecture)
    if found is None:
        raise UnknownLayerIds(
            f"the layer ids of {architecture} in SGLang are not known to this version of hsstore"
        )
    return found


def engine_ids(architecture: str, layers: Iterable[int], num_layers: int) -> tuple[int, ...]:
    """The ids to give SGLang for layers in our naming, ascending: the order it captures in.

    Raises UnknownLayerIds for a class that is not listed and for layers outside 1 to
    ``num_layers`` - 1: SGLang cannot capture the embedding, and drops the last block's state
    without a word.
    """
    family(architecture)
    ascending = sorted(layers)
    outside = [layer for layer in ascending if not 1 <= layer < num_layers]
    if outside:
        raise UnknownLayerIds(
            f"SGLang cannot capture layer {outside[0]} of {num_layers} blocks, "
            f"only 1 to {num_layers - 1} and 'final'"
        )
    return tuple(layer - 1 for layer in ascending)


def counts_block_outputs(model_type: str) -> bool:
    """Whether SGLang's id k of a model type is our layer k + 1, whichever method takes it."""
    known = [each for each in FAMILIES.values() if each.model_type == model_type]
    return bool(known) and not any(each.uneven for each in known)


def was_seen(model_type: str) -> bool:
    """Whether a real server's numbered layers of a model type were compared with transformers'."""
    return any(
        each.model_type == model_type and each.evidence == SEEN for each in FAMILIES.values()
    )
