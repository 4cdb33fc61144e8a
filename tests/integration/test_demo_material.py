"""The demo's model and corpus: the same every time, and worth learning from."""

from pathlib import Path

import numpy as np
import torch

from hsstore.demo import corpus
from hsstore.demo.model import HIDDEN_SIZE, NUM_LAYERS, build_model
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model.capture import Capture
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Request
from hsstore.storage.model_files import read_model
from hsstore.storage.tokenised import read_samples


def test_the_model_depends_on_the_seed_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_model(tmp_path / name, seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = (read_model(tmp_path / name) for name in "abc")
    assert a.weights_digest == b.weights_digest != c.weights_digest
    assert (a.num_layers, a.hidden_size, a.vocab_size) == (NUM_LAYERS, HIDDEN_SIZE, 258)


def test_the_corpus_is_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    tokens = corpus.write_dataset(path, 30)
    found = list(read_samples(path))
    assert len({sample.key for sample in found}) == 30
    assert sum(len(sample.input_ids) for sample in found) == tokens
    for sample in found:
        assert bytes(sample.input_ids[1:-1].tolist()).decode(errors="ignore").isprintable() is False
        assert 0 < sample.loss_mask.sum() < len(sample.loss_mask)


def test_a_head_learns_from_the_states(tmp_path: Path) -> None:
    build_model(tmp_path)
    capture = Capture((1, 2, 3, "final"), "bfloat16")
    identity = StoreIdentity("0" * 32, "now", read_model(tmp_path), capture, 16, 64, "none")
    asked = [
        Request(n, sample.id, np.array(sample.input_ids, np.int32))
        for n, sample in enumerate(corpus.samples(6))
    ]
    states = []
    for answer in TransformersSource(tmp_path, identity).states(asked):
        assert isinstance(answer, Extracted)
        rows = torch.from_numpy(answer.states.view(np.int16).copy())
        states.append(rows.view(torch.bfloat16).float())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = torch.nn.Linear(3 * HIDDEN_SIZE, HIDDEN_SIZE)
    optimiser = torch.optim.AdamW(head.parameters(), lr=2e-3)
    losses = []
    for _ in range(20):
        # The stored final state of each token, from the aux layers of the same token.
        errors = [(head(s[:, :3].flatten(1)) - s[:, 3]).square().mean() for s in states]
        loss = torch.stack(errors).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
