"""Audits: states that are whole and false are found and named; numeric noise is not accused."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hsstore.demo.corpus import VOCABULARY
from hsstore.demo.model import build_model
from hsstore.errors import IdentityMismatch, SourceUnavailable
from hsstore.extraction.extractor import extract
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.integrity.auditing.audit import Audit
from hsstore.integrity.fsck import Fsck, fsck
from hsstore.model import keys
from hsstore.model.capture import Capture, Layer
from hsstore.model.finding import Finding, Level
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Request
from hsstore.storage.create import create
from hsstore.storage.model_files import read_model
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.falsities import (
    Falsity,
    States,
    falsify,
    instead,
    on_values,
    rounded,
    scaled,
    shifted,
    swapped,
    zeros,
)
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import filled_store

LAYERS: tuple[Layer, ...] = (1, 3, "final")
SAMPLES, LONG, SHORT = 28, 60, (1, 2, 7, 12, 21, 33)
TWIN, OTHER = 20, 21
DTYPES = ("float32", "bfloat16")


def audit(
    store: Store, source: HiddenStateSource, samples: int = 100, *, level: Level = "quick"
) -> tuple[list[Finding], Audit]:
    """What an audit finds, after the checks of that level."""
    audited = Audit(run_of(store, level), source, samples, seed=1)
    return list(audited), audited


def run_of(store: Store, level: Level = "quick") -> Fsck:
    run = fsck(store, level)
    assert isinstance(run, Fsck)
    return run


@pytest.fixture(scope="module", params=DTYPES)
def filled(
    request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """A store of the small model's states, filled by transformers with sdpa."""
    store = empty(demo_model, tmp_path_factory.mktemp("audited"), request.param)
    source = TransformersSource(demo_model, store.identity)
    extract(store, source)
    source.close()
    return store


def empty(model: Path, folder: Path, dtype: str) -> Store:
    dataset, random = folder / "dataset.jsonl", np.random.default_rng(5)
    lengths = [LONG] * (SAMPLES - len(SHORT)) + list(SHORT)
    lines = [
        json.dumps({"id": f"sample-{n}", "input_ids": random.integers(0, VOCABULARY, k).tolist()})
        for n, k in enumerate(lengths)
    ]
    dataset.write_text("\n".join(lines))
    return create(folder / dtype, dataset, model, LAYERS, dtype=dtype, chunk_rows=16,
                  shard_rows=256)  # fmt: skip


@pytest.fixture(scope="module")
def eager(demo_model: Path, filled: Store) -> Iterator[TransformersSource]:
    """The same model by other kernels: every layer differs by noise."""
    source = TransformersSource(demo_model, filled.identity, attention="eager")
    yield source
    source.close()


# -- right ones ------------------------------------------------------------------------------------


def test_equal_states_are_counted_and_nothing_is_said(filled: Store, demo_model: Path) -> None:
    source = TransformersSource(demo_model, filled.identity)
    findings, audited = audit(filled, source)
    source.close()
    assert findings == []
    assert (audited.counts.exact, audited.counts.population) == (SAMPLES, SAMPLES)
    assert audited.summary.complete


def test_noise_is_noted_and_not_accused(filled: Store, eager: TransformersSource) -> None:
    findings, audited = audit(filled, eager)
    assert {finding.kind for finding in findings} == {"audit-noise"}
    assert audited.counts.noise == len(findings) >= SAMPLES - len(SHORT)
    assert audited.counts.noise + audited.counts.exact == SAMPLES
    assert (audited.summary.complete, audited.summary.sound) == (True, True)


def test_samples_that_were_computed_in_a_batch_are_not_accused(
    filled: Store, demo_model: Path, tmp_path: Path
) -> None:
    store = empty(demo_model, tmp_path, filled.identity.capture.dtype)
    together = TransformersSource(demo_model, store.identity, batch_tokens=500)
    extract(store, together)
    together.close()
    alone = TransformersSource(demo_model, store.identity)
    findings, audited = audit(store, alone)
    alone.close()
    assert {finding.kind for finding in findings} == {"audit-noise"}
    assert audited.summary.complete


# -- wrong ones ------------------------------------------------------------------------------------


def _reversed_row(states: States) -> States:
    changed = states.copy()
    changed[7] = states[7, :, ::-1]
    return changed


def _not_finite(values: States) -> States:
    changed = values.copy()
    changed[7:9, :, 3] = np.inf
    return changed


def _akin(values: States) -> States:
    noise = np.random.default_rng(0).standard_normal(values.shape, np.float32)
    changed: States = values + np.abs(values).mean(-1, keepdims=True) * noise / 2
    return changed


LAYERS_SWAPPED = "layer 1: the state of layer 3; layer 3: the state of layer 1"
FALSITIES: dict[str, tuple[Falsity, str]] = {
    "swapped layers": (swapped(0, 1), LAYERS_SWAPPED),
    "late by one": (shifted(1), "every layer: rows that come 1 too late"),
    "early by three": (shifted(-3), "every layer: rows that come 3 too early"),
    "late from row 40 on": (
        shifted(1, 40), "every layer: rows that come 1 too late in rows 40 to 59 of 60"
    ),
    "scaled": (scaled(1.5), "every layer: the right state times 1.5"),
    "scaled by less than noise": (scaled(1.03), "every layer: the right state times 1.03"),
    "negated": (scaled(-1), "every layer: the right state times -1"),
    "zeros": (zeros(1), "layer 3: all zeros"),
    "some zeros": (zeros(2, 50), "layer final: zeros in rows 50 to 59 of 60"),
    "one row": (_reversed_row, "every layer: other values in row 7 of 60"),
    "not finite": (
        on_values(_not_finite), "every layer: values that are not finite in rows 7 to 8 of 60"
    ),
    "akin": (on_values(_akin), "every layer: akin to what was computed, but not the same"),
}  # fmt: skip
COMPUTED: dict[str, tuple[int, tuple[Layer, ...], str]] = {
    "before the norm": (0, (1, 3, "final:pre"), "layer final: the state before the final norm"),
    "a later layer": (
        0, (2, 3, "final"), "layer 1: likely the state of a later block, on the way to layer 3"
    ),
    "an earlier layer": (
        0, (1, 2, "final"), "layer 3: likely the state of an earlier block, on the way to layer 1"
    ),
    "other weights": (1, LAYERS, "every layer: nothing in common with what was computed"),
}  # fmt: skip
OWN_WORDS = {
    "another sample": f"its rows are also stored as sample 'sample-{TWIN}'",
    "exchanged": f"what belongs here is stored as sample 'sample-{OTHER}'",
    "rounded": "every layer: values rounded to ",
}
WORDS = {
    **{name: words for name, (_, words) in FALSITIES.items()},
    **{name: words for name, (*_, words) in COMPUTED.items()},
    **OWN_WORDS,
}
ROUNDED = {"float32": (16, "7 of the 23 bits"), "bfloat16": (4, "3 of the 7 bits")}


@pytest.fixture(scope="module")
def false(
    filled: Store, demo_model: Path, eager: TransformersSource,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Finding], Audit]:  # fmt: skip
    """An audit of a store in which each of these is one sample: the findings by name."""
    folder = tmp_path_factory.mktemp("false")
    build_model(folder / "model", seed=1)
    store = Store.open(shutil.copytree(filled.root, folder / "store"))
    models, reader = (demo_model, folder / "model"), Reader(store)
    falsities = [falsity for falsity, _ in FALSITIES.values()]
    for model, layers, _ in COMPUTED.values():
        falsities.append(instead(computed(models[model], store, len(falsities), layers)))
    falsities += [instead(reader.read(TWIN)), instead(reader.read(OTHER))]
    own = reader.read(len(falsities) - 1)
    falsities.append(rounded(ROUNDED[store.identity.capture.dtype][0]))
    for sample, falsity in enumerate(falsities):
        falsify(store, sample, falsity)
    falsify(store, OTHER, instead(own))
    findings, audited = audit(store, eager)
    wrong = {f.samples: f for f in findings if f.kind != "audit-noise"}
    assert set(wrong) == {(f"sample-{n}",) for n in (*range(len(falsities)), OTHER)}
    return {name: wrong[f"sample-{n}",] for n, name in enumerate(WORDS)}, audited


def computed(model: Path, store: Store, sample: int, layers: tuple[Layer, ...]) -> States:
    """What transformers says of a sample in other layers, or with another model."""
    capture = Capture(layers, store.identity.capture.dtype)
    source = TransformersSource(
        model, StoreIdentity("0" * 32, "", read_model(model), capture, 16, 256, "none")
    )
    tokens = store.tokens(store.samples.extent(sample).shard)
    _, ids, _ = tokens.sample(sample - tokens.first_sample)
    (answer,) = source.states([Request(sample, "", ids)])
    assert isinstance(answer, Extracted)
    states = answer.states.copy()
    source.close()
    return states


@pytest.mark.parametrize("name", WORDS)
def test_falsities_are_named(false: tuple[dict[str, Finding], Audit], name: str) -> None:
    finding = false[0][name]
    assert (finding.kind, finding.severity) == ("audit-wrong", "error")
    assert WORDS[name] in finding.detail
    assert (finding.evidence or "").count("; layer") == len(LAYERS) - 1
    assert (finding.generation or 0) > 1


def test_falsities_are_counted(false: tuple[dict[str, Finding], Audit], filled: Store) -> None:
    findings, audited = false
    wrong = len(WORDS) + 1
    assert (audited.counts.wrong, audited.counts.audited) == (wrong, SAMPLES)
    assert audited.summary.findings["error"] == audited.summary.samples_damaged == wrong
    assert (audited.summary.complete, audited.summary.sound) == (True, False)
    assert ROUNDED[filled.identity.capture.dtype][1] in findings["rounded"].detail


# -- what is not compared --------------------------------------------------------------------------


def test_a_seeded_source_audits_its_own_store(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", failing={"sample-1": "no"})
    findings, audited = audit(store, SeededSource(store.identity))
    assert {finding.kind for finding in findings} == {"sample-absent"}
    assert (audited.counts.population, audited.counts.exact) == (11, 11)


def test_drawing_samples_lists_the_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed = filled_store(tmp_path / "store"), []
    committed = Store.committed

    def counted(self: Store) -> dict[int, tuple[ShardVersion, bool]]:
        listed.append(self)
        return committed(self)

    audited = Audit(run_of(store), SeededSource(store.identity), 3, seed=1)
    monkeypatch.setattr(Store, "committed", counted)
    assert len(audited._choose()) == 3
    assert len(listed) == 1


def test_a_sample_that_cannot_be_computed_leaves_the_audit_incomplete(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    findings, audited = audit(store, SeededSource(store.identity, {"sample-3": "out of memory"}))
    (finding,) = findings
    assert (finding.kind, finding.severity, finding.repair) == ("audit-failed", "warning", None)
    assert "out of memory" in finding.detail
    assert (audited.counts.exact, audited.counts.failed) == (11, 1)
    assert (audited.summary.sound, audited.summary.complete) == (True, False)


@pytest.mark.parametrize("level", ["quick", "data"])
def test_damaged_samples_are_reported_once_and_not_audited(tmp_path: Path, level: Level) -> None:
    store = filled_store(tmp_path / "store")
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    source = SeededSource(store.identity)
    findings, audited = audit(store, source, level=level)
    assert [(f.kind, f.samples) for f in findings] == [("chunk-damaged", ("sample-3",))]
    assert (audited.counts.damaged, audited.counts.exact) == (1, 11)
    assert audited.summary.findings["error"] == audited.summary.samples_damaged == 1
    assert 3 not in source.asked


def test_lost_tokens_leave_the_audit_incomplete(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    (store.root / keys.tokens(0, 1)).unlink()
    findings, audited = audit(store, SeededSource(store.identity))
    kinds = [finding.kind for finding in findings]
    assert kinds.count("tokens-missing") == 1
    assert kinds.count("audit-failed") == audited.counts.failed > 0
    assert not audited.summary.complete


class Dying(SeededSource):
    """Is gone after five answers."""

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        for number, request in enumerate(requests):
            if number == 5:
                raise SourceUnavailable("nobody answers")
            yield self.answer(request)


def test_a_source_that_goes_away_leaves_the_audit_incomplete(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    findings, audited = audit(store, Dying(store.identity))
    (finding,) = findings
    assert finding.kind == "audit-failed"
    assert "7 samples could not be computed again: nobody answers" in finding.detail
    assert (audited.counts.exact, audited.summary.complete) == (5, False)


def test_another_model_is_refused(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    with pytest.raises(IdentityMismatch, match="other-model"):
        audit(store, SeededSource(store.identity, match={"config": "other-model"}))


class Rival(SeededSource):
    """While it computes sample 3, another writer puts false states in its place."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.identity)
        self.store = store

    def answer(self, request: Request) -> Extracted | Failed:
        if request.sample == 3:
            falsify(self.store, 3, scaled(2))
        return super().answer(request)


def test_a_shard_replaced_meanwhile_is_examined_anew(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    findings, audited = audit(store, Rival(store))
    (finding,) = [found for found in findings if found.severity == "error"]
    assert (finding.kind, finding.samples, finding.generation) == ("audit-wrong", ("sample-3",), 2)
    assert finding.repair == (
        f"hsstore repair {store.root} --from-report REPORT --source transformers:PATH --apply"
    )
    assert audited.counts.wrong == 1


def test_an_audit_of_an_empty_store_is_not_complete(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(0))
    _, audited = audit(store, SeededSource(store.identity))
    assert (audited.counts.population, audited.summary.complete) == (0, False)


def test_nothing_is_written(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in sorted(store.root.rglob("*"))}
    audit(store, SeededSource(store.identity), level="data")
    assert {path: path.stat().st_mtime_ns for path in sorted(store.root.rglob("*"))} == before
