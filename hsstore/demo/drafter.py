"""A drafter small enough to train in seconds, fed the way EAGLE-3 feeds its own.

From the stored auxiliary states of a token and the embedding of the token after it, it predicts the
final state of that next token. Source: EAGLE-3, arXiv:2503.01840, section 3.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hsstore.demo.corpus import VOCABULARY
from hsstore.training.collate import pad_collate
from hsstore.training.dataset import HiddenStateDataset

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
    dataset: HiddenStateDataset, epochs: int, seed: int = 0, vocabulary: int = VOCABULARY
) -> Iterator[float]:
    """The mean loss of each epoch; the last stored layer is the target.

    ``vocabulary`` is how many token ids there are.
    """
    torch.manual_seed(seed)
    _, layers, hidden_size = dataset[0]["hidden_states"].shape
    drafter = Drafter(layers - 1, hidden_size, vocabulary)
    optimiser = torch.optim.Adam(drafter.parameters(), LEARNING_RATE)
    loader = DataLoader(dataset, BATCH, shuffle=True, collate_fn=pad_collate)
    for _ in range(epochs):
        losses = []
        for batch in loader:
            loss = _loss(drafter, batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
        yield sum(losses) / len(losses)


def _loss(drafter: Drafter, batch: dict[str, Tensor]) -> Tensor:
    """Mean smooth L1 over the tokens to learn from; position t predicts position t + 1."""
    states = batch["hidden_states"].float()
    predicted = drafter(states[:, :-1, :-1], batch["input_ids"][:, 1:])
    wanted = batch["loss_mask"][:, 1:]
    return nn.functional.smooth_l1_loss(predicted[wanted], states[:, 1:, -1][wanted])
