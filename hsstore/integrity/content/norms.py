"""Norms of samples, layer by layer, against those of the rest of the store.

They come from the manifests, so no payload is read. A sample's figure is the median over its rows:
rows of the first token, whose norm is a hundred times that of others in many models, do not move
it, unless the sample is short or its beginning one token over and over.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsstore.model.manifest import Manifest
from hsstore.storage.digest import STATISTICS_ROWS
from hsstore.storage.token_file import ShardTokens

# Samples of fewer rows have medians that one unusual token moves.
JUDGED_ROWS = 8
# Fewer samples of like length show no usual norm.
PEERS = 16
# How many standard deviations (by the median of deviations) and what factor an outlier is off.
# Measured: 5.6 and 1.2 within one model; 1.6 between layers 6 and 15 of 30.
DEVIATIONS = 6.0
FACTOR = 1.5
# A store of equal norms would make every rounding an outlier.
LEAST_DEVIATION = 0.01
# The standard deviation of a normal distribution, in medians of absolute deviations.
NORMAL = 1.4826
# Within what factor a norm is that of another layer.
LIKE = 1.15
# A sample is not judged if this part of it begins with one token, repeated.
SAME_TOKEN = 0.25


@dataclass(frozen=True, slots=True)
class Outlier:
    """A layer (its position) of a sample, its median norm and that of samples of like length.

    ``like`` is the layer that usually has such a norm, where that is one other.
    """

    shard: int
    sample: int
    layer: int
    norm: float
    usual: float
    like: int | None


class Norms:
    """The median norms of all samples seen, float32 [samples, layers] a shard."""

    def __init__(self) -> None:
        self._shards: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}

    def add(self, manifest: Manifest, tokens: ShardTokens | None) -> None:
        """Take the figures of a shard's samples that can be judged; its tokens show which."""
        self._shards.pop(manifest.version.shard, None)
        if tokens is None:
            return
        varied = _varied(tokens)
        judged = [
            sample
            for sample in manifest.samples
            if sample.statistics.rows >= JUDGED_ROWS and varied[sample.sample - tokens.first_sample]
        ]
        if not judged:
            return
        of = np.array([(s.sample, s.statistics.rows) for s in judged], np.int64)
        with np.errstate(over="ignore"):
            norms = np.array([s.statistics.median_norm for s in judged]).astype(np.float32)
        self._shards[manifest.version.shard] = of, norms

    def outliers(self) -> Iterator[Outlier]:
        """The layers whose norm is far from the usual one, by shard and sample."""
        if not self._shards:
            return
        shards = sorted(self._shards)
        of = np.concatenate([self._shards[shard][0] for shard in shards])
        norms = np.concatenate([self._shards[shard][1] for shard in shards])
        owner = np.repeat(shards, [len(self._shards[shard][0]) for shard in shards])
        found = []
        for alike in _alike(of[:, 1]):
            usual, far = _judged(norms[alike])
            for n, layer in np.argwhere(far):
                row = alike[n]
                shard, norm = int(owner[row]), float(norms[row, layer])
                like = _like(norm, usual, int(layer))
                figures = norm, float(usual[layer]), like
                found.append(Outlier(shard, int(of[row, 0]), int(layer), *figures))
        yield from sorted(found, key=lambda o: (o.shard, o.sample, o.layer))


def _varied(tokens: ShardTokens) -> NDArray[np.bool_]:
    """Whether each sample is more than the repetition of its first token."""
    varied = np.empty(len(tokens.keys), np.bool_)
    for n, (_, ids, _) in enumerate(tokens.samples()):
        other = np.flatnonzero(ids != ids[0])
        varied[n] = len(other) > 0 and other[0] <= SAME_TOKEN * len(ids)
    return varied


def _alike(rows: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Samples of like length, where there are enough of them."""
    size = np.log2(np.minimum(rows, STATISTICS_ROWS)).astype(np.int64)
    for one in np.unique(size):
        alike = np.flatnonzero(size == one)
        if len(alike) >= PEERS:
            yield alike


def _judged(norms: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The usual norm of each layer (NaN where there is none); [samples, layers], what is far."""
    usual = np.full(norms.shape[1], np.nan)
    far = np.zeros(norms.shape, np.bool_)
    for layer, column in enumerate(norms.T):
        told = np.isfinite(column) & (column > 0)
        if np.count_nonzero(told) < PEERS:
            continue
        logs = np.log(column[told].astype(np.float64))
        centre = np.median(logs)
        deviation = max(NORMAL * np.median(np.abs(logs - centre)), LEAST_DEVIATION)
        far[told, layer] = np.abs(logs - centre) > max(DEVIATIONS * deviation, np.log(FACTOR))
        far[~told, layer] = True
        usual[layer] = np.exp(centre)
    return usual, far


def _like(norm: float, usual: NDArray[np.float64], layer: int) -> int | None:
    """The one other layer whose usual norm this is, if there is one."""
    if not 0 < norm < np.inf:
        return None
    apart = np.abs(np.log(norm / usual))
    apart[layer] = np.nan
    near = np.flatnonzero(apart < np.log(LIKE))
    return int(near[0]) if len(near) == 1 else None
