"""fsck finds each kind of damage, names its place, and says nothing of healthy stores."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsstore.errors import NotAStore, UnsupportedFormat
from hsstore.extraction.extractor import extract
from hsstore.integrity.examine import Listing
from hsstore.integrity.fsck import Fsck, Unopened, fsck
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.finding import KINDS, LEVELS, Finding, Level
from hsstore.model.keys import ShardVersion
from hsstore.model.progress import Silent
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.damage import CORPUS, Damage
from hsstore.testing.faults import Unreadable
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, filled_store, key_of


@pytest.fixture(scope="module", params=["none", "blosc-zstd"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(tmp_path_factory.mktemp("filled") / "store", codec=request.param).root


def check(store: Store | Path, level: Level = "data") -> tuple[list[Finding], Fsck | Unopened]:
    run = fsck(store, level, threads=2)
    return list(run), run


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_corpus_is_found_at_its_level_and_named(
    filled: Path, tmp_path: Path, entry: Damage
) -> None:
    store = Store.open(copytree(filled, tmp_path / "store"))
    path = entry.inflict(store)
    for level in LEVELS:
        findings, run = check(tmp_path / "store", level)
        named = [f for f in findings if (f.kind, f.path) == (entry.kind, path)]
        if LEVELS.index(level) >= LEVELS.index(entry.level):
            assert named, findings
            assert f"hsstore repair {tmp_path / 'store'}" in (named[0].repair or "")
            assert not run.summary.sound
        else:
            assert findings == []
    assert {f.kind for f in findings} <= KINDS.keys()


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    codec=st.sampled_from(["none", "blosc-zstd"]),
    failing=st.sampled_from([{}, {key_of(0): "broken"}]),
)
def test_healthy_stores_are_silent(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    dtype: str,
    codec: str,
    failing: dict[str, str],
) -> None:
    root = tmp_path_factory.mktemp("healthy") / "store"
    store = filled_store(root, lengths, dtype=dtype, codec=codec, failing=failing)
    findings, run = check(store)
    assert [f.kind for f in findings] == ["sample-absent"] * len(failing)
    assert run.summary.complete
    assert run.summary.unverified == 0


def test_one_flipped_bit_names_one_sample_and_its_bytes(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    manifest = store.manifest(store.marker(2))
    sample = manifest.samples[1]
    number = sample.first_row // store.identity.chunk_rows
    chunk = next(c for c in manifest.chunks if c.chunk == number)
    damage.flip_bit(tmp_path / "store" / keys.shard_file(2), chunk.offset + 7)
    (finding,), run = check(store)
    assert (finding.shard, finding.samples, finding.chunk) == (2, (sample.key,), chunk.chunk)
    assert finding.byte_range == (chunk.offset, chunk.offset + chunk.length)
    assert chunk.xxh3_64 in (finding.evidence or "")
    assert finding.repair == (
        f"hsstore repair {tmp_path / 'store'} --shards 2 --source transformers:PATH --apply"
    )
    assert run.summary.samples_damaged == 1


def test_swapped_shard_files_of_one_layout_are_found_by_their_chunks(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", [8] * 24)
    damage.swap(store.root / keys.shard_file(0), store.root / keys.shard_file(2))
    assert check(store, "manifest")[0] == []
    findings, _ = check(store)
    assert {(f.kind, f.shard) for f in findings} == {("chunk-damaged", 0), ("chunk-damaged", 2)}
    assert len(findings) == 16


def test_unfinished_store_names_missing_shards(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    findings, run = check(store, "quick")
    assert [(f.kind, f.shard) for f in findings] == [
        ("shard-missing", n) for n in range(1, store.plan.shards)
    ]
    assert run.summary.complete


def test_absent_sample_is_named_at_every_level(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", failing={key_of(4): "broken"})
    for level in LEVELS:
        (finding,), _ = check(store, level)
        assert (finding.kind, finding.samples) == ("sample-absent", ("sample-4",))


def test_foreign_files_are_warnings(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    places = (
        "notes.txt",
        "commit/00000001-000001.json.bak",
        "commit/00000099-000001.json",
        "manifest/README",
        "plan/00000000/extra.npz",
        "states.zarr/hidden_states/c/0/extra",
    )
    for place in places:
        (store.root / place).write_bytes(b"hello")
    (store.root / "commit/.00000001-000001.json.0a0b0c0d").write_bytes(b"an interrupted publish")
    findings, run = check(store)
    assert {f.path for f in findings} == set(places)
    assert {f.kind for f in findings} == {"foreign-file"}
    assert run.summary.sound


def test_unopenable_stores_raise(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        fsck(tmp_path)
    store = filled_store(tmp_path / "store")
    newer = {**store.identity.to_document(), "format": 2}
    (store.root / keys.IDENTITY).write_bytes(seal(newer))
    with pytest.raises(UnsupportedFormat):
        fsck(store.root)


@pytest.mark.parametrize(
    ("name", "hurt", "kind"),
    [
        (keys.IDENTITY, damage.flip_bit, "identity-invalid"),
        (keys.plan(0), damage.flip_bit, "plan-invalid"),
        (keys.plan(0), damage.to_folder, "plan-invalid"),
        (keys.plan(0), Path.unlink, "plan-invalid"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_finding(
    tmp_path: Path, name: str, hurt: Callable[[Path], object], kind: str
) -> None:
    store = filled_store(tmp_path / "store")
    hurt(store.root / name)
    (finding,), run = check(store.root)
    assert (finding.kind, finding.severity) == (kind, "error")
    assert (finding.path or "") in (name, keys.PLAN)
    assert "put back" in finding.detail
    assert not run.summary.sound
    assert not run.summary.complete


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (lambda _: keys.shard_file(1), "data-unreadable"),
        (lambda store: store.marker(1).name, "marker-unreadable"),
        (lambda store: store.marker(1).manifest_name, "manifest-unreadable"),
        (lambda _: keys.tokens(0, 1), "tokens-unreadable"),
        (lambda _: keys.array_chunk(keys.LOSS_MASK, 1), "array-unreadable"),
        (lambda _: keys.zarr_metadata(), "metadata-unreadable"),
    ],
)
def test_unreadable_is_not_called_damaged(
    tmp_path: Path, name: Callable[[Store], str], kind: str
) -> None:
    store = filled_store(tmp_path / "store")
    path = name(store)
    failing = Store.open(store.root, filesystem=Unreadable(store.root / path))
    findings, _ = check(failing)
    assert {f.kind for f in findings if f.path == path} == {kind}


class Lost(Filesystem):
    """EIO wherever anything is asked of one name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def status(self, path: Path) -> os.stat_result:
        if path == self.path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().status(path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("path", "kind"),
    [(keys.shard_file(1), "data-unreadable"), (keys.QUARANTINE, "folder-unreadable")],
)
def test_a_name_that_the_disk_does_not_answer_for_is_no_reason_to_end(
    tmp_path: Path, path: str, kind: str, level: Level
) -> None:
    store = filled_store(tmp_path / "store")
    (store.root / keys.marker(ShardVersion(1, 1), absent=False)).unlink()
    (store.root / keys.shard_file(2)).unlink()
    lost = Lost(store.root / path)
    findings, run = check(Store.open(store.root, to_check=True, filesystem=lost), level)
    assert {f.kind for f in findings if f.path == path} == {kind}
    assert "data-missing" in {f.kind for f in findings if f.shard == 2}
    assert run.summary.complete


class LyingOnce(Filesystem):
    """Flips one bit of the first read of a shard file, as bad memory would."""

    def __init__(self) -> None:
        self.lied = False

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        count = super().read_at(fd, into, offset, path)
        if not self.lied and path.name == "0" and offset == 0:
            self.lied = True
            memoryview(into)[3] ^= 1
        return count


def test_what_is_right_at_the_second_reading_is_only_a_warning(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    findings, run = check(Store.open(store.root, filesystem=LyingOnce()))
    assert [f.kind for f in findings] == ["chunk-unstable"]
    assert run.summary.sound


GARBAGE = (
    b"",
    b"\0" * 512,
    b"{",
    b"[" * 100_000,
    b"null",
    b'{"seal":"\\ud800"}',
    b'{"format":' + b"9" * 5000 + b"}",
    b'{"format":1,"kind":7,"seal":null}',
    b"\xff\xfe\x00",
    b'{"format":2,"kind":"commit"}',
)


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:20]))
def test_garbage_anywhere_is_survived(tmp_path: Path, garbage: bytes) -> None:
    whole = filled_store(tmp_path / "store")
    healthy = contents(whole)
    for path in sorted(p for p in whole.root.rglob("*") if p.is_file()):
        name = path.relative_to(whole.root).as_posix()
        if name in (keys.IDENTITY, keys.plan(0)):
            continue
        before = path.read_bytes()
        path.write_bytes(garbage)
        findings, _ = check(Store.open(whole.root))
        assert any(f.path == name for f in findings), (name, findings)
        json.dumps([f.to_json() for f in findings])
        path.write_bytes(before)
    assert contents(whole) == healthy
    assert check(whole)[0] == []


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": [[10**30, 10**30, 10**30, "0" * 16]]},
        {"samples": [{"sample": 10**20, "origin": 10**9}]},
        {"data_bytes": 10**30},
        {"samples": [{"first_row": 10**18, "rows": 10**18}]},
    ],
)
def test_resealed_nonsense_is_survived(tmp_path: Path, change: dict[str, list[object]]) -> None:
    store = filled_store(tmp_path / "store")
    marker = store.marker(1)
    document = store.manifest(marker).to_document()
    if "samples" in change:
        change = {"samples": [{**document["samples"][0], **s} for s in change["samples"]]}  # type: ignore[dict-item]
    damage.forge_manifest(store, marker, {**document, **change})
    for level in LEVELS:
        findings, _ = check(store, level)
    assert "manifest-invalid" in {f.kind for f in findings}


def test_states_of_another_model_are_found(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    marker = store.marker(1)
    document = store.manifest(marker).to_document()
    origin = document["origins"][0]
    document["origins"] = [{**origin, "match": {**origin["match"], "dtype": "float64"}}]
    damage.forge_manifest(store, marker, document)
    findings, _ = check(store)
    assert [(f.kind, f.shard) for f in findings] == [("origin-contradicts", 1)]


def test_mixed_engines_are_a_note(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    extract(store, SeededSource(store.identity, engine="another"))
    (finding,), run = check(store)
    assert (finding.kind, finding.severity) == ("origin-mixed", "note")
    assert "another, seeded" in finding.detail
    assert run.summary.sound


def test_shards_restrict_what_is_checked(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    damage.flip_bit(store.root / keys.shard_file(0), 9)
    assert [f.shard for f in fsck(store, shards=range(1))] == [0]
    assert [*fsck(store, shards=range(1, 99))] == []


def test_stop_leaves_a_partial_summary(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    run = fsck(store, stop=lambda: True)
    assert [*run] == []
    assert not run.summary.complete
    assert run.summary.unverified == store.plan.samples


class Counting(Filesystem):
    """Notes which folders are listed, which files are read and whose cached pages are dropped."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.read_whole: list[Path] = []
        self.paths: dict[int, Path] = {}
        self.events: list[tuple[str, Path]] = []

    def names(self, path: Path) -> list[str]:
        self.listed.append(path.name)
        return super().names(path)

    def read(self, path: Path) -> bytes:
        self.read_whole.append(path)
        return super().read(path)

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def forget_cached(self, fd: int) -> None:
        self.events.append(("forget", self.paths[fd]))
        super().forget_cached(fd)

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        self.events.append(("read", path))
        return super().read_at(fd, into, offset, path)


def test_missing_shards_cost_no_listing_and_at_quick_no_token_file(tmp_path: Path) -> None:
    root = empty_store(tmp_path / "store", [16] * 60).root
    for level in LEVELS:
        counting = Counting()
        findings, run = check(Store.open(root, filesystem=counting), level)
        assert run.summary.shards_total == 60
        assert {f.kind for f in findings} == {"shard-missing"}
        assert counting.listed.count(keys.COMMIT) <= 4
        tokens = [path for path in counting.read_whole if path.suffix == ".npz"]
        if level == "quick":
            assert tokens == []
            assert findings[7].samples is None
            assert "1 samples were never extracted: #7 to #7" in findings[7].detail
        else:
            assert len(tokens) == 60
            assert findings[7].samples == (key_of(7),)


def test_chunks_are_read_from_the_disk_not_from_the_cache(tmp_path: Path) -> None:
    root = filled_store(tmp_path / "store").root
    counting = Counting()
    assert check(Store.open(root, filesystem=counting))[0] == []
    for shard in range(4):
        path = root / keys.shard_file(shard)
        events = [event for event, of in counting.events if of == path]
        assert events[0] == "forget"
        assert events.count("forget") <= 2


def test_cases_are_kept_only_for_who_asks(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    kept = Fsck(Subject(store, "quick"), None, Silent(), lambda: False, keep_cases=True)
    plain = Fsck(Subject(store, "quick"), None, Silent(), lambda: False)
    assert [*kept] == [*plain]
    assert [case.shard for case in kept.cases] == [1, 2, 3]
    assert plain.cases == []


def test_shards_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    """The identity may leave open what was computed with; all shards must agree nevertheless."""
    store = filled_store(tmp_path / "store")
    assert store.identity.model.weights_digest is None
    for shard, weights in ((0, "a" * 32), (1, "b" * 32), (2, "b" * 32)):
        marker = store.marker(shard)
        document = store.manifest(marker).to_document()
        origin = document["origins"][0]
        document["origins"] = [{**origin, "match": {**origin["match"], "weights": weights}}]
        damage.forge_manifest(store, marker, document)
    (finding,), run = check(store)
    assert (finding.kind, finding.severity, finding.repair) == ("origin-contradicts", "error", None)
    assert finding.detail.startswith("in shard 0, weights is 'aaaa")
    assert finding.detail.endswith("as in shard 1 and 1 more")
    assert not run.summary.sound


class Unlisted(Filesystem):
    """Where commit/ cannot be listed, as for a user without the right to."""

    def names(self, path: Path) -> list[str]:
        if path.name == keys.COMMIT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return super().names(path)


def test_shards_are_not_called_lost_where_markers_cannot_be_listed(tmp_path: Path) -> None:
    root = filled_store(tmp_path / "store").root
    run = fsck(Store.open(root, filesystem=Unlisted()))
    assert [(f.kind, f.path, f.repair) for f in run] == [("folder-unreadable", "commit", None)]
    assert not run.summary.complete


class Listed(Filesystem):
    """Counts how often commit/ is listed."""

    def __init__(self) -> None:
        self.times = 0

    def names(self, path: Path) -> list[str]:
        self.times += path.name == keys.COMMIT
        return super().names(path)


@pytest.mark.parametrize("level", LEVELS)
def test_damage_of_many_shards_lists_the_markers_no_more_often_than_of_one(
    tmp_path: Path, level: Level
) -> None:
    root, listed = filled_store(tmp_path / "store").root, []
    for shards in ([0], [1, 2, 3]):
        for shard in shards:
            (root / keys.shard_file(shard)).unlink()
        for folder in (keys.COMMIT, keys.INTENT):
            os.utime(root / folder, (1e9, 1e9))
        counting = Listed()
        assert list(fsck(Store.open(root, filesystem=counting), level))
        listed.append(counting.times)
    assert listed[0] == listed[1]


@pytest.mark.parametrize("folder", [keys.COMMIT, keys.INTENT])
def test_names_are_listed_again_once_they_changed(tmp_path: Path, folder: str) -> None:
    store = filled_store(tmp_path / "store")
    for each in (keys.COMMIT, keys.INTENT):
        os.utime(store.root / each, (1e9, 1e9))
    listing = Listing(Subject(store))
    assert listing.now() is listing
    name = keys.intent(ShardVersion(1, 2)) if folder == keys.INTENT else keys.marker(
        ShardVersion(1, 2), absent=False)  # fmt: skip
    (store.root / name).touch()
    assert listing.now().of(1) != listing.of(1)
    assert listing.now() is not listing.now(), "the folder changed this very moment"
