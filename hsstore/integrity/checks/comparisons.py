"""Whether samples can stand beside each other: what shows only once many were seen.

Each run compares what it saw itself.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.content.beginnings import Stray
from hsstore.integrity.content.form import Form
from hsstore.integrity.content.norms import Outlier
from hsstore.integrity.content.twins import Twin
from hsstore.integrity.content.words import some
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.finding import Finding

SHOWN_SAMPLES = 3


def note(case: ShardCase) -> None:
    """Keep what is needed of a shard to compare it with others, and let go of the rest."""
    subject = case.subject
    if case.manifest is not None and subject.at_least("manifest"):
        subject.compared.add(case.manifest, subject.tokens(case.shard), case.look, case.unsound)
    case.look = None


def check(subject: Subject) -> Iterator[Finding]:
    """Compare all samples noted: norms from level manifest on, rows at level thorough."""
    yield from _outliers(subject)
    said: dict[tuple[int, int, str], list[str]] = {}
    for twin in subject.compared.twins.found():
        if _is_of_alike_tokens(subject, twin):
            continue
        kind = "content-shifted" if twin.shifted else "content-duplicated"
        said.setdefault((twin.shard, twin.sample, kind), []).append(_twin_words(subject, twin))
    for stray in subject.compared.beginnings.strays():
        where = (stray.shard, stray.sample, "content-shifted")
        said.setdefault(where, []).append(_stray_words(subject, stray))
    for (shard, sample, kind), evidence in sorted(said.items()):
        yield _finding(subject, kind, _DETAILS[kind], shard, [sample], "; ".join(evidence))


def _is_of_alike_tokens(subject: Subject, twin: Twin) -> bool:
    """Whether the tokens that equal rows depend on differ in one pair only.

    Tokens that were never trained may share their embedding: then no layer tells them apart.
    """
    if twin.shifted:
        return False
    one, other = (
        _ids(subject, sample)[: _DEPTH[twin.place]] for sample in (twin.sample, twin.other)
    )
    if len(one) != len(other):
        return False
    pairs = np.sort(np.stack([one, other]), axis=0)[:, one != other]
    return len(np.unique(pairs, axis=1).T) == 1


def _ids(subject: Subject, sample: int) -> NDArray[np.int32]:
    """The token ids of a sample; none where its token file is lost meanwhile."""
    tokens = subject.tokens(subject.shard_of(sample))
    if tokens is None:
        return np.empty(0, np.int32)
    _, ids, _ = tokens.sample(sample - tokens.first_sample)
    return ids


# On how many tokens a row depends.
_DEPTH = {"first": 1, "second": 2, "last": None, "all": None}

_DETAILS = {
    "content-duplicated": "rows of the sample are those of another one, whose tokens are not",
    "content-shifted": "the sample begins with other rows than its tokens: shifted, of another "
    "sample, layer or model",
    "content-outlier": "norms far from those of samples of like length: another layer, the other "
    "side of a norm, or another model",
}


def _finding(
    subject: Subject, kind: str, detail: str, shard: int, samples: list[int], evidence: str
) -> Finding:
    return subject.finding(
        kind,
        detail,
        shard=shard,
        samples=samples,
        path=keys.shard_file(shard),
        evidence=evidence,
        generation=subject.compared.generations[shard],
    )


def _outliers(subject: Subject) -> Iterator[Finding]:
    """One finding for the samples of a shard that stand out in the same layers."""
    by_sample: dict[tuple[int, int], list[Outlier]] = {}
    for outlier in subject.compared.norms.outliers():
        if outlier.sample not in subject.compared.unsound:
            by_sample.setdefault((outlier.shard, outlier.sample), []).append(outlier)
    alike: dict[tuple[int, tuple[int, ...]], list[list[Outlier]]] = {}
    for (shard, _), found in by_sample.items():
        alike.setdefault((shard, tuple(o.layer for o in found)), []).append(found)
    for (shard, _), every in alike.items():
        samples = [found[0].sample for found in every]
        evidence = _outlier_words(subject, shard, every)
        detail = _DETAILS["content-outlier"]
        yield _finding(subject, "content-outlier", detail, shard, samples, evidence)


def _outlier_words(subject: Subject, shard: int, every: list[list[Outlier]]) -> str:
    form = Form(subject.store.identity)
    names = subject.keys(shard, [found[0].sample for found in every])
    parts = []
    for name, found in [*zip(names, every, strict=True)][:SHOWN_SAMPLES]:
        figures = "; ".join(_figure(form, outlier) for outlier in found)
        parts.append(f"{name}: {figures}" if len(every) > 1 else figures)
    return some([*parts, *names[SHOWN_SAMPLES:]], SHOWN_SAMPLES)


def _figure(form: Form, outlier: Outlier) -> str:
    like = "" if outlier.like is None else f", which {form.names[outlier.like]} usually has"
    name = form.names[outlier.layer]
    return f"{name}: median norm {outlier.norm:.4g}{like}, usually {outlier.usual:.4g}"


def _twin_words(subject: Subject, twin: Twin) -> str:
    shard = subject.shard_of(twin.other)
    (other,) = subject.keys(shard, [twin.other])
    doubt = "" if twin.certain else ", or the other way round: one of both is false"
    if twin.place == "all":
        return f"all rows equal those of {other}{doubt}"
    return f"its {twin.place} row equals the {twin.other_place} row of {other}{doubt}"


def _stray_words(subject: Subject, stray: Stray) -> str:
    form = Form(subject.store.identity)
    layer = form.names[form.telling[stray.layer]]
    more = f"; {stray.unnamed} more that may be astray are not named" if stray.unnamed else ""
    same = "token" if stray.tokens == 1 else f"{stray.tokens} tokens"
    return (
        f"{stray.witnesses} other samples that begin with the same {same} agree in "
        f"row {stray.tokens - 1}, and this one's is {stray.error:.2f} off in {layer}{more}"
    )
