"""hsstore status: every sample counted once, and no payload needed for it."""

import json
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.storage.claim import claimed
from hsstore.storage.stage import open_stage
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import empty_store, fill, key_of
from hsstore_cli.main import main

LENGTHS = [5, 3, 9, 16, 1, 2]


def status(store: Store, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["status", str(store.root), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def stage_one(store: Store, sample: int) -> None:
    """Leave one sample in a journal, as a stopped writer does."""
    extent = store.samples.extent(sample)
    version = keys.ShardVersion(extent.shard, 1)
    tokens = store.tokens(extent.shard)
    key, ids, _ = tokens.sample(sample - tokens.first_sample)
    with claimed(store.filesystem, store.root, store.identity.uuid, extent.shard) as claim:
        writer = open_stage(store.filesystem, store.root, store.identity, version, claim)
        states = seeded_states(store.identity, ids)
        writer.add(extent, key, states, SeededSource(store.identity).origin())
        writer.close()


def test_an_empty_store_misses_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = status(empty_store(tmp_path / "store", LENGTHS), capsys)
    assert (found["samples_missing"], found["samples"]) == (6, 6)
    assert found["complete"] is False
    assert found["allocated_bytes"] == 0
    assert found["last_commit"] is None
    assert found["payload_bytes"] == sum(LENGTHS) * 2 * 8 * 2
    assert main(["status", str(tmp_path / "store")]) == 0
    assert "verified     nothing, for nothing is committed\n" in capsys.readouterr().out


def test_nothing_is_left_where_only_absent_samples_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.storage.status._pace", lambda _: (None, 12345.6))
    store = fill(empty_store(tmp_path / "store", LENGTHS), failing={key_of(1): "too long"})
    assert status(store, capsys)["seconds_left"] == 0
    assert main(["status", str(store.root)]) == 0
    assert "pace         12,346 tok/s\n" in capsys.readouterr().out


def test_every_sample_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    fill(store, shards=range(1), failing={key_of(1): "too long"})
    stage_one(store, 4)
    found = status(store, capsys)
    counted = {n: found[f"samples_{n}"] for n in ("committed", "absent", "staged", "missing")}
    assert counted == {"committed": 1, "absent": 1, "staged": 1, "missing": 3}
    assert found["shards_absent"] == [0]
    assert (found["shards_committed"], found["shards_staged"]) == (1, 1)
    assert found["tokens_committed"] == LENGTHS[0]


def test_a_full_store_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS))
    found = status(store, capsys)
    assert found["complete"] is True
    assert found["snapshot"] == store.snapshot_id()
    assert isinstance(found["last_commit"], str)
    assert isinstance(found["allocated_bytes"], int)
    assert found["allocated_bytes"] > 0


def test_a_torn_marker_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS))
    (store.root / store.marker(1).name).write_bytes(b"{")
    assert main(["status", str(store.root)]) == 0
    shown = capsys.readouterr().out
    assert "unreadable   markers of shards 1" in shown
    assert f"next: hsstore fsck {store.root}" in shown


def test_the_pace_is_that_of_the_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(3))
    read = Store.read_marker

    def ten_seconds_apart(self: Store, version: keys.ShardVersion, *, absent: bool) -> object:
        marker = read(self, version, absent=absent)
        object.__setattr__(marker, "committed", f"2026-01-01T00:00:{version.shard * 10:02}Z")
        return marker

    monkeypatch.setattr(Store, "read_marker", ten_seconds_apart)
    found = status(store, capsys)
    assert found["last_commit"] == "2026-01-01T00:00:20Z"
    assert found["tokens_per_second"] == pytest.approx((9 + 16) / 20)
    assert found["seconds_left"] == pytest.approx(3 / 1.25)


@pytest.mark.parametrize(
    ("times", "last", "pace"),
    [
        (["2026-01-01T00:00:00+00:00", "2026-01-01T01:00:10.5+01:00"], 1, 16 / 10.5),
        (["2026-01-01T00:00:00Z", "yesterday"], 0, None),
        (["", "yesterday"], None, None),
    ],
)
def test_any_time_that_a_marker_may_tell_is_taken_and_none_needed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    times: list[str],
    last: int | None,
    pace: float | None,
) -> None:
    store = fill(empty_store(tmp_path / "store", [5, 16, 3], shard_rows=16), shards=range(2))
    for shard, time in enumerate(times):
        marker = store.marker(shard)
        object.__setattr__(marker, "committed", time)
        (store.root / marker.name).write_bytes(seal(marker.to_document()))
    found = status(store, capsys)
    assert found["last_commit"] == (None if last is None else times[last])
    assert found["tokens_per_second"] == (pace and pytest.approx(pace))


def test_people_are_told_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(1))
    assert main(["status", str(store.root)]) == 0
    shown = capsys.readouterr().out
    assert "shards       1 of 4 committed" in shown
    assert "missing      4 samples" in shown
    assert "next: hsstore extract" in shown


def test_a_folder_that_is_no_store_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 8
    assert "no hsstore store here" in capsys.readouterr().err
