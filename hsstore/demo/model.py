"""A small Llama with seeded random weights, for byte tokens."""

from pathlib import Path

import torch

from hsstore.demo.corpus import VOCABULARY
from hsstore.extraction.transformers_model import quiet, require_transformers

HIDDEN_SIZE = 128
NUM_LAYERS = 4


def build_model(folder: Path, seed: int = 0) -> None:
    """Write a model folder (config.json, safetensors in bfloat16) of about a million parameters.

    Nothing trained it. Its weights are drawn wide enough for every block to change the residual
    stream, and its norms lie away from 1, so that layers and norms cannot be mixed up unseen.
    Raises SourceUnavailable without the transformers package.
    """
    transformers = require_transformers()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=3 * HIDDEN_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=None,
    )
    # Leaves the caller's random state as it was.
    with quiet(transformers), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        model.to(torch.bfloat16).save_pretrained(folder)
