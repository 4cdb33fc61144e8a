"""What a repair takes from reports, other stores and datasets, and that it proves each of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest

from hsstore.errors import MalformedInput, StorageFailed
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import RepairResult, repair
from hsstore.model import keys
from hsstore.model.finding import Finding, Summary, severity_of
from hsstore.model.manifest import StoredSample
from hsstore.model.progress import Silent
from hsstore.model.report import Report, Run
from hsstore.model.source import Extracted, Failed, Request
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import (
    LENGTHS,
    contents,
    empty_store,
    fill,
    filled_store,
    grown,
    key_of,
    more_samples,
)

SHARD = 1
FALSE = 3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled_store(tmp_path / "store")


def kinds(root: Path) -> list[str]:
    return [finding.kind for finding in fsck(root, threads=1)]


def mend(store: Store, source: SeededSource | None = None, **options: object) -> RepairResult:
    opener = None if source is None else lambda: source
    return repair(store.root, source=opener, apply=True, **options)  # type: ignore[arg-type]


def stored(store: Store, sample: int) -> StoredSample:
    shard = store.samples.extent(sample).shard
    return next(s for s in store.manifest(store.marker(shard)).samples if s.sample == sample)


# -- reports ---------------------------------------------------------------------------------------


class Wrong(SeededSource):
    """Gives some samples other states than the seeded ones."""

    wrong: Mapping[int, int] = {FALSE: 7}

    def answer(self, request: Request) -> Extracted | Failed:
        answer = super().answer(request)
        if request.sample in self.wrong and isinstance(answer, Extracted):
            answer.states[0, 0, 0] ^= self.wrong[request.sample]
        return answer


@pytest.fixture
def false(tmp_path: Path) -> Store:
    """A store of which one sample is intact and false."""
    store = empty_store(
        tmp_path / "false", LENGTHS, layers=(1, 3, "final"), hidden_size=64, chunk_rows=8,
        shard_rows=64,
    )  # fmt: skip
    from hsstore.extraction.extractor import extract  # noqa: PLC0415

    extract(store, Wrong(store.identity))
    return store


def report(store: Store, *samples: int, kind: str = "audit-wrong", generation: int = 1) -> Report:
    """A report that says of samples of SHARD that their states are false."""
    said = Finding(
        kind, severity_of(kind), "other states", shard=SHARD,
        samples=tuple(key_of(n) for n in samples), generation=generation,
    )  # fmt: skip
    run = Run(
        store.identity.uuid, str(store.root), "data", store.plan.generation, store.plan.samples,
        store.plan.shards, "2026-01-31T12:00:00Z",
    )  # fmt: skip
    return Report("report", run, (said,), {}, Summary("data", store.plan.shards, 0, complete=True))


@pytest.mark.parametrize("kind", ["audit-wrong", "content-shifted"])
def test_false_states_are_computed_again_only_for_a_report(false: Store, kind: str) -> None:
    wrong = stored(false, FALSE).content
    source = SeededSource(false.identity)
    assert mend(false, source).plan.steps == ()
    accused = report(false, FALSE, kind=kind)
    planned = repair(false.root, source=lambda: source, reports=[accused])
    (step,) = planned.plan.steps
    assert (step.action, step.reason, step.samples) == ("replace", kind, (key_of(FALSE),))
    assert (planned.found, source.asked) == (1, [])
    result = mend(false, source, reports=[accused])
    assert result.corrected
    assert source.asked == [FALSE]
    now = stored(false, FALSE)
    assert (now.previous, now.content == wrong) == (wrong, False)
    assert contents(false) == contents(filled_store(false.root.with_name("right")))
    (folder,) = (false.root / keys.QUARANTINE).iterdir()
    assert len(list(folder.iterdir())) > 1, "the false states were not put aside"


def test_what_was_replaced_since_is_told_and_left(false: Store) -> None:
    accused = report(false, FALSE)
    mend(false, SeededSource(false.identity), reports=[accused])
    source = SeededSource(false.identity)
    result = mend(false, source, reports=[accused])
    assert (result.found, result.plan.steps, source.asked) == (0, (), [])
    assert "generation 1, which was replaced since" in result.notes[0]


def test_a_shard_without_a_manifest_is_not_said_to_be_replaced(false: Store) -> None:
    accused = report(false, FALSE)
    shard = false.samples.extent(FALSE).shard
    (false.root / false.marker(shard).manifest_name).unlink()
    source = SeededSource(false.identity)
    result = mend(false, source, reports=[accused])
    assert result.corrected
    assert FALSE in source.asked
    (note,) = result.notes
    assert "no whole document tells whether that is what is there" in note
    assert "replaced" not in note


def test_the_same_result_is_not_stored_again_and_again(false: Store) -> None:
    for _ in range(2):
        source = Wrong(false.identity)
        result = mend(false, source, reports=[report(false, FALSE)])
        assert source.asked == [FALSE]
        assert result.done.samples_the_same == 1
        assert "the same states" in result.done.notes[0]
        assert [(f.kind, f.samples) for f in result.remaining] == [
            ("audit-wrong", (key_of(FALSE),))
        ]
        assert false.marker(SHARD).version.generation == 1
        assert list((false.root / keys.STAGE).iterdir()) == []


def test_one_the_same_and_one_not(false: Store) -> None:
    Wrong.wrong = {FALSE: 7, FALSE + 1: 5}
    try:
        false = fill_wrongly(false)
    finally:
        Wrong.wrong = {FALSE: 7}
    result = mend(false, Wrong(false.identity), reports=[report(false, FALSE, FALSE + 1)])
    assert [f.samples for f in result.remaining] == [(key_of(FALSE),)]
    assert false.marker(SHARD).version.generation == 2


def fill_wrongly(store: Store) -> Store:
    """A store like another, filled anew."""
    from hsstore.extraction.extractor import extract  # noqa: PLC0415

    like = store.identity
    other = empty_store(
        store.root.with_name("wrongly"), LENGTHS, layers=like.capture.layers, hidden_size=64,
        chunk_rows=8, shard_rows=64,
    )  # fmt: skip
    extract(other, Wrong(other.identity))
    return other


def test_a_source_that_fails_takes_nothing_away(false: Store) -> None:
    before = contents(false)
    source = SeededSource(false.identity, {key_of(FALSE): "too long"})
    result = mend(false, source, reports=[report(false, FALSE)])
    assert [f.kind for f in result.remaining] == ["audit-wrong"]
    assert contents(false) == before
    assert mend(false, reports=[report(false, FALSE)]).plan.lacks_source
    assert contents(false) == before


def test_a_false_accusation_and_a_source_that_fails_take_nothing_away(store: Store) -> None:
    """Bad memory, or a forger, calls whole states others than their digest's."""
    before = contents(store)
    source = SeededSource(store.identity, {key_of(FALSE): "too long"})
    accused = report(store, FALSE, kind="content-differs")
    assert mend(store, source, reports=[accused]).remaining
    assert (source.asked, contents(Store.open(store.root))) == ([FALSE], before)
    assert kinds(store.root) == []
    damage.flip_bit(store.root / keys.shard_file(SHARD), 10)
    accused = report(store, FALSE + 1, kind="content-differs")
    mend(store, SeededSource(store.identity, {key_of(FALSE + 1): "no"}), reports=[accused])
    assert contents(Store.open(store.root)) == before


def test_a_replica_that_replaced_the_false_states_has_the_right_ones(false: Store) -> None:
    replica = Store.open(copytree(false.root, false.root.with_name("replica")))
    accused = report(false, FALSE)
    assert mend(false, reports=[accused], replica=replica.root).remaining
    assert mend(replica, SeededSource(replica.identity), reports=[accused]).corrected
    result = mend(false, reports=[accused], replica=replica.root)
    assert (result.corrected, result.done.samples_from_replica) == (True, 1)
    assert contents(false) == contents(replica)


def test_only_the_shards_of_a_report_are_looked_at_and_nothing_is_believed(store: Store) -> None:
    for shard in (SHARD, SHARD + 1):
        damage.flip_bit(store.root / keys.shard_file(shard), 10)
    source = SeededSource(store.identity)
    damaged = report(store, FALSE, FALSE + 1, kind="chunk-damaged")
    assert mend(store, source, reports=[damaged]).corrected
    assert source.asked == [FALSE], "the report's word is no damage"
    assert kinds(store.root) == ["chunk-damaged"]


def test_a_report_of_another_store_is_refused(store: Store, false: Store) -> None:
    with pytest.raises(MalformedInput, match="of another store"):
        mend(store, reports=[report(false, FALSE)])


# -- other stores ----------------------------------------------------------------------------------


def test_a_store_of_another_geometry_codec_and_selection_gives_what_it_has(
    store: Store, tmp_path: Path
) -> None:
    """It has the samples 2 to 8 and one more, in other places and under other numbers."""
    selection = [n for n in range(2, 9)] + [99]  # noqa: C416
    dataset = tmp_path / "selection.jsonl"
    lines = []
    for number in reversed(selection):
        length = LENGTHS[number] if number < len(LENGTHS) else 4
        more_samples(dataset, [length], first=number)
        lines.append(dataset.read_text())
    dataset.write_text("".join(lines))
    replica = made_like(store, tmp_path / "replica", dataset)
    healthy = contents(store)
    rmtree(store.root / keys.ZARR / keys.HIDDEN_STATES / "c" / str(SHARD))
    wanted = set(store.samples.shard_samples(SHARD))
    source = SeededSource(store.identity)
    result = mend(store, source, replica=replica.root)
    assert result.corrected
    assert set(source.asked) == wanted - set(selection)
    assert result.done.samples_from_replica == len(wanted & set(selection)) > 0
    assert contents(Store.open(store.root)) == healthy
    assert kinds(store.root) == []


def test_a_damaged_array_of_digests_hides_no_sample(store: Store, tmp_path: Path) -> None:
    dataset = more_samples(tmp_path / "dataset.jsonl", LENGTHS, first=0)
    replica = made_like(store, tmp_path / "replica", dataset)
    table = replica.root / keys.array_chunk(keys.SAMPLE_DIGEST, 0)
    table.write_bytes(bytes(len(table.read_bytes())))
    rmtree(store.root / keys.ZARR / keys.HIDDEN_STATES / "c" / str(SHARD))
    result = mend(store, replica=replica.root)
    assert (result.corrected, result.done.samples_from_replica > 0) == (True, True)


def made_like(store: Store, root: Path, dataset: Path) -> Store:
    """A filled store of the same model and capture, otherwise shaped."""
    from hsstore.storage.create import create  # noqa: PLC0415
    from hsstore.testing.stores import CONFIG  # noqa: PLC0415

    model = root.with_name("model") / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(CONFIG | {"hidden_size": 64}))
    capture = store.identity.capture
    return fill(
        create(root, dataset, model, capture.layers, capture.dtype, codec="blosc-zstd",
               chunk_rows=4, shard_rows=48)
    )  # fmt: skip


@pytest.mark.parametrize("also", ["index", "marker", "manifest", "plan"])
def test_copies_damaged_in_different_places_mend_each_other(
    store: Store, tmp_path: Path, also: str
) -> None:
    other = Store.open(copytree(store.root, tmp_path / "other"))
    healthy = contents(store)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 10)
    damage.flip_bit(other.root / keys.shard_file(SHARD), other.marker(SHARD).data_bytes - 500)
    hurt = {
        "index": keys.shard_file(SHARD),
        "marker": other.marker(SHARD).name,
        "manifest": other.marker(SHARD + 1).manifest_name,
        "plan": keys.tokens(0, SHARD),
    }[also]
    size = (other.root / hurt).stat().st_size
    damage.flip_bit(other.root / hurt, size - 3 if also == "index" else None)
    assert mend(store, replica=other.root).corrected
    assert mend(other, replica=store.root).corrected
    for each in (store, other):
        assert kinds(each.root) == []
        assert contents(Store.open(each.root)) == healthy


# -- datasets --------------------------------------------------------------------------------------


def lose_tokens(store: Store, shard: int) -> None:
    """Lose the tokens of a shard in both places."""
    (store.root / keys.tokens(store.plan.token_files[shard].generation, shard)).unlink()
    damage.flip_bit(store.root / keys.array_chunk(keys.INPUT_IDS, shard), 4)


@pytest.mark.parametrize("tables", [False, True])
def test_tokens_lost_twice_come_from_the_dataset(
    store: Store, tmp_path: Path, *, tables: bool
) -> None:
    healthy = contents(store)
    lose_tokens(store, SHARD)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 10)
    if tables:
        damage.flip_bit(store.root / keys.array_chunk(keys.SAMPLE_LENGTH, 0), 3)
    dataset = more_samples(tmp_path / "dataset.jsonl", LENGTHS, first=0)
    source = SeededSource(store.identity)
    assert mend(store, source).remaining
    assert mend(store, source, datasets=[dataset]).corrected
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy


def test_a_growth_comes_from_its_own_dataset_or_from_one_of_all(tmp_path: Path) -> None:
    for number, (first, lengths) in enumerate([(6, LENGTHS[6:]), (0, LENGTHS)]):
        store = filled_store(tmp_path / f"store-{number}", LENGTHS[:6])
        store = fill(grown(store, LENGTHS[6:]))
        lose_tokens(store, 0)
        lose_tokens(store, store.plan.shards - 1)
        dataset = more_samples(tmp_path / f"{number}.jsonl", lengths, first=first)
        result = mend(store, datasets=[dataset])
        left = {f.shard for f in result.remaining}
        assert left == (set() if first == 0 else {0})


def test_another_dataset_proves_nothing(store: Store, tmp_path: Path) -> None:
    lose_tokens(store, SHARD)
    wrong = more_samples(tmp_path / "wrong.jsonl", LENGTHS, first=1)
    assert {f.kind for f in mend(store, datasets=[wrong]).remaining} == {"tokens-missing"}
    assert not (store.root / keys.tokens(0, SHARD)).exists()


def test_a_dataset_that_cannot_be_read_is_not_passed_over(store: Store, tmp_path: Path) -> None:
    lose_tokens(store, SHARD)
    dataset = more_samples(tmp_path / "dataset.jsonl", LENGTHS, first=0)
    with pytest.raises(StorageFailed, match="File name too long"):
        mend(store, datasets=[tmp_path / ("x" * 300), dataset])
    assert mend(store, datasets=[dataset]).corrected


def test_numbers_as_keys_need_no_manifest(tmp_path: Path) -> None:
    named = filled_store(tmp_path / "named", shards=range(1))
    dataset = more_samples(tmp_path / "numbered.jsonl", LENGTHS, first=0, named=False)
    store = made_like(named, tmp_path / "numbered", dataset)
    before = store.tokens(SHARD)
    (store.root / store.marker(SHARD).manifest_name).unlink()
    (store.root / keys.tokens(0, SHARD)).unlink()
    mend(store)
    assert np.array_equal(store.tokens(SHARD).input_ids, before.input_ids)


# -- the plan of a repair --------------------------------------------------------------------------


class Counting(Silent):
    """Adds up what is said to be done, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []

    def start(self, total: int, done: int, unit: str) -> None:  # noqa: ARG002 - Progress
        self.pieces.append([total, done])

    def advance(self, units: int) -> None:
        self.pieces[-1][1] += units


def test_progress_adds_up_and_never_rests(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 10)
    (store.root / keys.zarr_metadata()).unlink()
    counting = Counting()
    mend(store, SeededSource(store.identity), progress=counting)
    assert [total for total, _ in counting.pieces if total] != []
    assert [done for _, done in counting.pieces] == [total for total, _ in counting.pieces]
    assert len(counting.pieces) >= 4, "looking, restoring, mending, checking again"


def test_the_plan_says_what_it_costs(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 10)
    (step,) = repair(store.root, source=lambda: SeededSource(store.identity)).plan.steps
    row_bytes = store.identity.geometry.row_bytes
    manifest = store.manifest(store.marker(SHARD))
    assert step.tokens == LENGTHS[FALSE]
    assert step.reads_bytes == sum(chunk.length for chunk in manifest.chunks)
    assert step.writes_bytes > sum(LENGTHS[s.sample] for s in manifest.samples) * row_bytes
    assert step.to_json()["seconds"] is step.seconds
