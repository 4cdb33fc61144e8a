"""Level thorough finds states that are intact and false, names them, and accuses no others."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hsstore.integrity.fsck import Fsck, fsck
from hsstore.integrity.repair import repair
from hsstore.integrity.scrub.merge import merge
from hsstore.integrity.scrub.report_file import read_report
from hsstore.integrity.scrub.schedule import Scrub
from hsstore.integrity.scrub.state import State
from hsstore.integrity.scrub.verdicts import Accusation
from hsstore.model import keys
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.model.identity import StoreIdentity
from hsstore.storage import digest
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing import causal, damage
from hsstore.testing.causal import CausalSource, States, causal_store, conversations, plant
from hsstore.testing.stores import LENGTHS, VOCABULARY, filled_store, grown_filled_store

SAMPLES = 60
NAN = {"bfloat16": 0x7FC0, "float16": np.nan, "float32": np.nan}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of each codec and dtype."""
    folder = tmp_path_factory.mktemp("causal")
    forms = [("none", "bfloat16"), ("blosc-zstd", "bfloat16"), ("none", "float32")]
    forms += [("blosc-zstd", "float16")]
    texts = conversations(SAMPLES)
    return {
        f"{codec}-{dtype}": causal_store(folder / f"{n}", texts, dtype=dtype, codec=codec).root
        for n, (codec, dtype) in enumerate(forms)
    }


@pytest.fixture(
    params=["none-bfloat16", "blosc-zstd-bfloat16", "none-float32", "blosc-zstd-float16"]
)
def store(stores: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store.open(shutil.copytree(stores[request.param], tmp_path / "store"))


@pytest.fixture
def plain(stores: dict[str, Path], tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(stores["none-bfloat16"], tmp_path / "store"))


def check(store: Store, level: Level = "thorough") -> tuple[list[Finding], Fsck]:
    run = fsck(store, level, threads=2)
    assert isinstance(run, Fsck)
    return list(run), run


def test_states_of_a_model_are_silent(store: Store) -> None:
    findings, run = check(store)
    assert findings == []
    assert run.summary.complete
    assert run.summary.unverified == 0


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    codec=st.sampled_from(["none", "blosc-zstd"]),
)
def test_random_states_are_silent(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], dtype: str, codec: str
) -> None:
    root = tmp_path_factory.mktemp("random") / "store"
    assert check(filled_store(root, lengths, dtype=dtype, codec=codec))[0] == []


def test_grown_stores_are_silent(tmp_path: Path) -> None:
    assert check(grown_filled_store(tmp_path / "store"))[0] == []


def test_tokens_that_no_layer_tells_apart_accuse_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of new tokens, whose embeddings are all the mean of the others."""
    new, states = VOCABULARY - 1, causal.causal_states

    def alike(identity: StoreIdentity, ids: NDArray[np.int32]) -> States:
        return states(identity, np.where(ids == new, new - 1, ids))

    monkeypatch.setattr(causal, "causal_states", alike)
    texts = conversations(SAMPLES)
    texts += [np.array([first, 5, 6, 7, 8, 9], np.int32) for first in (new - 1, new)]
    assert check(causal_store(tmp_path / "store", texts))[0] == []


# -- each kind planted ----------------------------------------------------------------------------

# Sample 20 begins as every second one does; 37 has the same length, 21 the other prompt.
SAMPLE, SAME_LENGTH, OTHER = 20, 37, 21


def put(rows: slice, layers: slice, value: Any) -> Callable[[States], States]:  # noqa: ANN401
    """States with one value in part of them."""

    def changed(states: States) -> States:
        states[rows, layers] = value
        return states

    return changed


def first_row_everywhere(states: States) -> States:
    states[:, 1] = states[0, 1]
    return states


def stuck(states: States) -> States:
    states[7:] = states[7]
    return states


EVERY = slice(None)
PLANTED = {
    "zero-rows": ("content-zero", put(slice(3, 5), EVERY, 0), "layer final: rows 3-4 of"),
    "zero-layer": ("content-zero", put(EVERY, slice(1, 2), 0), "layer 3: all rows"),
    "zero-row": ("content-zero", put(slice(0, 1), slice(0, 1), 0), "layer 1: row 0 of"),
    "constant": ("content-constant", first_row_everywhere, "layer 3: all rows"),
    "stuck": ("content-constant", stuck, "layer final: rows 7-"),
    "early": ("content-shifted", lambda s: np.roll(s, -1, axis=0), "the same token agree"),
    "late": ("content-shifted", lambda s: np.roll(s, 1, axis=0), "the same token agree"),
    "layers": ("content-shifted", lambda s: s[:, ::-1].copy(), "the same token agree"),
}


@pytest.mark.parametrize(("kind", "false", "evidence"), PLANTED.values(), ids=PLANTED)
def test_false_states_are_named(
    plain: Store, kind: str, false: Callable[[States], States], evidence: str
) -> None:
    plant(plain, {SAMPLE: false})
    shard = plain.samples.extent(SAMPLE).shard
    named = [f for f in check(plain)[0] if f.kind == kind]
    assert [(f.shard, f.samples, f.generation) for f in named] == [(shard, (f"#{SAMPLE}",), 2)]
    assert evidence in (named[0].evidence or "")
    assert named[0].severity == "error"
    assert named[0].path == keys.shard_file(shard)
    assert named[0].repair == (
        f"hsstore repair {plain.root} --from-report REPORT --source transformers:PATH --apply"
    )
    kinds = {f.kind for level in LEVELS[:3] for f in check(plain, level)[0]}
    assert kinds <= {"content-outlier"}


def test_values_that_are_not_finite_are_named(store: Store) -> None:
    dtype = store.identity.capture.dtype
    plant(store, {SAMPLE: put(slice(2, 3), slice(2, 3), NAN[dtype])})
    # Its statistics are no numbers either, and they are in the manifest.
    assert {f.kind for f in check(store, "data")[0]} == {"content-outlier"}
    ((named,), run) = check(store)
    assert named.kind == "content-nonfinite"
    assert (named.samples, named.generation) == ((f"#{SAMPLE}",), 2)
    assert named.evidence == "layer final: row 2 of 14"
    assert not run.summary.sound


def test_rows_of_another_sample_are_named(plain: Store) -> None:
    other = Reader(plain).read(SAME_LENGTH)
    plant(plain, {SAMPLE: lambda _: other})
    assert check(plain, "data")[0] == []
    findings, _ = check(plain)
    duplicated = {f.samples: f.evidence for f in findings if f.kind == "content-duplicated"}
    assert duplicated.keys() == {(f"#{SAMPLE}",), (f"#{SAME_LENGTH}",)}
    assert f"all rows equal those of #{SAME_LENGTH}, or the other" in (
        duplicated[f"#{SAMPLE}",] or ""
    )
    # Who agrees with the others that have the same prompt tells which of both is false.
    (shifted,) = [f for f in findings if f.kind == "content-shifted"]
    assert shifted.samples == (f"#{SAMPLE}",)
    assert "begin with the same 2 tokens" in (shifted.evidence or "")


def test_a_shifted_shard_is_named_sample_by_sample(plain: Store) -> None:
    shard = plain.samples.extent(SAMPLE).shard
    samples = plain.samples.shard_samples(shard)
    plant(plain, dict.fromkeys(samples, lambda s: np.roll(s, -1, axis=0)))
    shifted = [f.samples for f in check(plain)[0] if f.kind == "content-shifted"]
    assert shifted == [(f"#{sample}",) for sample in samples]


def test_swapped_layers_stand_out_already_in_the_manifest(plain: Store) -> None:
    plant(plain, {SAMPLE: lambda s: s[:, [0, 2, 1]].copy()})
    assert check(plain, "quick")[0] == []
    for level in ("manifest", "data"):
        (found,), _ = check(plain, level)
        assert (found.kind, found.samples, found.generation) == (
            "content-outlier",
            (f"#{SAMPLE}",),
            2,
        )
        assert "layer 3: median norm" in (found.evidence or "")
        assert "which layer final usually has" in (found.evidence or "")


def test_what_shows_beside_other_shards_only_is_not_taken_back_by_a_look_at_fewer(
    plain: Store, tmp_path: Path
) -> None:
    plant(plain, {SAMPLE: lambda s: s[:, [0, 2, 1]].copy()})
    shard = plain.samples.extent(SAMPLE).shard
    state, reports = tmp_path / "state", [tmp_path / f"{n}.jsonl" for n in range(4)]

    def found(number: int, shards: range | None = None, age: int | None = 1000) -> list[Finding]:
        scrub = Scrub(max_age_seconds=age, state=state, report=reports[number])
        return list(fsck(plain, "data", shards=shards, scrub=scrub))

    (outlier,) = found(0)
    assert outlier.kind == "content-outlier"
    assert found(1) == [outlier], "only its shard is looked at, the others being verified"
    assert found(2, range(shard, shard + 1), None) == [outlier]
    assert found(3, range(shard + 1, shard + 2)) == []
    alone = list(fsck(plain, "data", shards=range(shard, shard + 1),
                      scrub=Scrub(report=reports[2])))  # fmt: skip
    assert alone == [], "nobody remembered it"
    for paths in (reports[::2], reports[2::-2]):
        assert merge([*map(read_report, paths)]).findings == (outlier,)
    repair(plain, source=lambda: CausalSource(plain.identity), apply=True,
           reports=[read_report(reports[0])])  # fmt: skip
    assert found(3) == []


def test_a_look_at_all_shards_takes_back_what_another_saw(plain: Store, tmp_path: Path) -> None:
    shard, state = plain.samples.extent(SAMPLE).shard, tmp_path / "state"
    memory = State(state, plain.identity.uuid, print)
    said = Finding("content-outlier", "error", "norms", shard=shard, generation=1, evidence="far")
    memory.accuse(Accusation("data", said))
    memory.close()
    one = range(shard, shard + 1)

    def kinds(level: Level, shards: range | None = None) -> list[str]:
        return [f.kind for f in fsck(plain, level, shards=shards, scrub=Scrub(state=state))]

    assert kinds("manifest") == kinds("manifest", one) == [], "these do not see as much"
    assert kinds("data", one) == kinds("data", one) == ["content-outlier"]
    assert kinds("data") == kinds("data", one) == []


def test_samples_of_a_shard_that_stand_out_alike_are_one_finding(plain: Store) -> None:
    shard = plain.samples.extent(SAMPLE).shard
    samples = plain.samples.shard_samples(shard)
    plant(plain, dict.fromkeys(samples, lambda s: s[:, [1, 1, 2]].copy()))
    (found,), _ = check(plain, "manifest")
    assert found.samples == tuple(f"#{sample}" for sample in samples)
    assert f"#{samples[0]}: layer 1: median norm" in (found.evidence or "")


def test_a_repair_of_something_else_leaves_it_and_says_so(plain: Store) -> None:
    plant(plain, {SAMPLE: lambda s: s[:, [0, 2, 1]].copy()})
    other = next(k for k in range(plain.plan.shards) if k != plain.samples.extent(SAMPLE).shard)
    damage.flip_bit(plain.root / keys.shard_file(other), 9)
    result = repair(plain, source=lambda: CausalSource(plain.identity), apply=True)
    assert result.done.samples_reextracted == 1
    assert [(f.kind, f.samples) for f in result.remaining] == [("content-outlier", (f"#{SAMPLE}",))]
    assert not result.corrected


# -- manifests that say what is not so ------------------------------------------------------------


def forged(store: Store, change: Callable[[dict[str, Any]], None], shard: int = 1) -> str:
    """Change the manifest of a shard, seals included; the key of its first sample."""
    marker = store.marker(shard)
    document = store.manifest(marker).to_document()
    change(document)
    damage.forge_manifest(store, marker, document)
    key: str = document["samples"][0]["key"]
    return key


def test_another_content_digest_is_found(plain: Store) -> None:
    key = forged(plain, lambda d: d["samples"][0].update(content="0" * 32))
    assert check(plain, "data")[0] == []
    (found,), _ = check(plain)
    assert (found.kind, found.samples) == ("content-differs", (key,))
    assert "expected 00000000" in (found.evidence or "")


def test_other_statistics_are_found(plain: Store) -> None:
    def change(document: dict[str, Any]) -> None:
        figures = document["samples"][0]["statistics"]["max_abs"]
        figures[1] = "4060000000000000"

    key = forged(plain, change)
    (found,), _ = check(plain)
    assert (found.kind, found.samples) == ("content-differs", (key,))
    assert "layer 3: max_abs" in (found.evidence or "")
    assert "said 128" in (found.evidence or "")


def rewritten(store: Store, change: Callable[[bytearray], None]) -> str:
    """Change the last chunk of the first sample of shard 1, hash and seals included; its key."""
    path = store.root / keys.shard_file(1)
    last = store.manifest(store.marker(1)).samples[0].rows // 8

    def rehash(document: dict[str, Any]) -> None:
        _, offset, length, _ = document["chunks"][last]
        raw = bytearray(path.read_bytes()[offset : offset + length])
        change(raw)
        damage.overwrite(path, offset, bytes(raw))
        document["chunks"][last][3] = digest.chunk_digest(raw)

    return forged(store, rehash)


def set_last_byte(raw: bytearray) -> None:
    raw[-1] = 1


def test_padding_that_is_not_zeros_is_found(plain: Store) -> None:
    key = rewritten(plain, set_last_byte)
    assert check(plain, "data")[0] == []
    (found,), _ = check(plain)
    assert (found.kind, found.samples) == ("content-differs", (key,))
    assert "padding" in found.detail


def test_a_chunk_that_does_not_decode_is_found(stores: dict[str, Path], tmp_path: Path) -> None:
    store = Store.open(shutil.copytree(stores["blosc-zstd-bfloat16"], tmp_path / "store"))
    key = rewritten(store, lambda raw: raw.__setitem__(slice(20, None), b"\xff" * (len(raw) - 20)))
    assert check(store, "data")[0] == []
    (found,), _ = check(store)
    assert (found.kind, found.samples) == ("content-differs", (key,))
    assert "does not decode" in (found.evidence or "")


# -- one reading, and what stands in its way ----------------------------------------


class Metered(Filesystem):
    """Counts the bytes read of each file."""

    def __init__(self) -> None:
        self.bytes: dict[Path, int] = {}

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        count = super().read_at(fd, into, offset, path)
        self.bytes[path] = self.bytes.get(path, 0) + count
        return count


def test_every_byte_is_read_once(store: Store) -> None:
    meter = Metered()
    findings, run = check(Store.open(store.root, filesystem=meter))
    assert findings == []
    for shard in range(store.plan.shards):
        path = store.root / keys.shard_file(shard)
        stored = sum(c.length for c in store.manifest(store.marker(shard)).chunks)
        assert meter.bytes[path] == stored + store.identity.geometry.index_bytes
    assert run.summary.bytes_checked > 0


def test_damage_is_named_as_such_and_the_rest_is_looked_at(plain: Store) -> None:
    plant(plain, {SAMPLE: put(EVERY, slice(1, 2), 0)})
    shard = plain.samples.extent(SAMPLE).shard
    manifest = plain.manifest(plain.marker(shard))
    hurt = next(s for s in manifest.samples if s.sample != SAMPLE)
    chunk = next(c for c in manifest.chunks if c.chunk == hurt.first_row // 8)
    damage.flip_bit(plain.root / keys.shard_file(shard), chunk.offset + 20)
    found = {(f.kind, f.samples) for f in check(plain)[0]}
    assert ("chunk-damaged", (hurt.key,)) in found
    assert ("content-zero", (f"#{SAMPLE}",)) in found
    assert not any(kind.startswith("content") and samples == (hurt.key,) for kind, samples in found)


def test_samples_whose_tokens_are_lost_count_as_unverified(plain: Store) -> None:
    (plain.root / keys.tokens(0, 1)).unlink()
    findings, run = check(plain)
    assert {f.kind for f in findings} == {"tokens-missing"}
    assert run.summary.unverified == len(plain.samples.shard_samples(1))


def test_many_random_norms_hold_no_outlier(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", LENGTHS * 8)
    assert check(store, "manifest")[0] == []
