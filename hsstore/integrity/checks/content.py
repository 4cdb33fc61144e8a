"""Whether decoded rows can be what a model answered to their tokens."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.content.faults import Fault, faults
from hsstore.integrity.content.sample_scan import SampleScan
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.finding import Finding


def check(case: ShardCase) -> Iterator[Finding]:
    """Judge each sample of the shard by itself; samples with one fault make one finding."""
    if case.look is None or case.manifest is None:
        return
    tokens = case.subject.tokens(case.shard)
    alike: dict[Fault, list[int]] = {}
    for scan in case.look.scans:
        sample = scan.stored.sample
        ids = None if tokens is None else tokens.sample(sample - tokens.first_sample)[1]
        for fault in _faults(scan, ids):
            case.unsound.add(sample)
            alike.setdefault(fault, []).append(sample)
    for (kind, detail, evidence), samples in alike.items():
        yield case.finding(
            kind,
            detail,
            samples=samples,
            path=keys.shard_file(case.shard),
            evidence=evidence,
            generation=case.manifest.version.generation,
        )


def _faults(scan: SampleScan, ids: NDArray[np.int32] | None) -> Iterable[Fault]:
    if scan.undecodable is not None:
        return [("content-differs", "a chunk does not decode", scan.undecodable)]
    if scan.looked is None:
        return []
    with np.errstate(all="ignore"):
        return [*faults(scan.form, scan.looked, ids)]
