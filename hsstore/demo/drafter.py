"""A drafter small enough to train in seconds, fed the way EAGLE-3 feeds its own.

From the stored auxiliary states of a token and the embedding of the token after it, it predicts the
final state of that next token. Source: EAGLE-3, arXiv:2503.01840, section 3.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hsstore.demo.corpus import VOCABULARY
from hsstore.training.collate import Batch, PackedBatch, pack_collate, pad_collate
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.token_batches import TokenBatches

BATCH = 8
LEARNING_RATE = 3e-3


class Drafter(nn.Module):
    """Two layers over [auxiliary states, next token's embedding]."""

    def __init__(self, auxiliary_layers: int, hidden_size: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden_size)
        self.fuse = nn.Linear((auxiliary_layers + 1) * hidden_size, 2 * hidden_size)
        self.out = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, auxiliary: Tensor, next_ids: Tensor) -> Tensor:
        """Predicted final states [batch, tokens, hidden] of the tokens ``next_ids``."""
        fused = torch.cat([auxiliary.flatten(2), self.embedding(next_ids)], dim=-1)
        predicted: Tensor = self.out(nn.functional.silu(self.fuse(fused)))
        return predicted


def train(
    dataset: HiddenStateDataset,
    epochs: int,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
    *,
    packed: bool = False,
) -> Iterator[float]:
    """The mean loss of each epoch; the last stored layer is the target.

    ``vocabulary`` is how many token ids there are; ``packed`` puts the samples of a batch end to
    end, where else they are padded. That changes no loss but for rounding.
    """
    torch.manual_seed(seed)
    _, layers, hidden_size = dataset[0]["hidden_states"].shape
    drafter = Drafter(layers - 1, hidden_size, vocabulary)
    optimiser = torch.optim.Adam(drafter.parameters(), LEARNING_RATE)
    batches = TokenBatches(
        dataset, BATCH * int(dataset.lengths.max()), max_samples=BATCH, shape="padded", seed=seed
    )
    collate = pack_collate if packed else pad_collate
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate)
    for _ in range(epochs):
        losses = []
        for batch in loader:
            loss = _loss(drafter, batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
        yield sum(losses) / len(losses)


def _loss(drafter: Drafter, batch: Batch | PackedBatch) -> Tensor:
    """Mean smooth L1 over the tokens to learn from; position t predicts position t + 1."""
    states = batch["hidden_states"].float()
    predicted = drafter(states[:, :-1, :-1], batch["input_ids"][:, 1:])
    wanted = batch["loss_mask"][:, 1:]
    if "document_ids" in batch:
        # The last token of a sample does not predict the first of the next.
        documents = batch["document_ids"]
        wanted = wanted & (documents[:, :-1] == documents[:, 1:])
    return nn.functional.smooth_l1_loss(predicted[wanted], states[:, 1:, -1][wanted])
