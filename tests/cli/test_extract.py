"""hsstore extract: what it fills, how it stops, and the exit code for each end."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from hsstore.errors import SourceUnavailable
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage.claim import claimed
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, key_of
from hsstore_cli import extract
from hsstore_cli.main import main
from hsstore_cli.source_option import SourceOptions

LENGTHS = [5, 3, 9, 16, 1, 2]

Use = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return empty_store(tmp_path / "store", LENGTHS)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes the command compute with a seeded source; ``before`` runs ahead of each sample."""

    def install(
        before: Callable[[int], object] = lambda _: None, failing: dict[str, str] | None = None
    ) -> None:
        class Watched(SeededSource):
            def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
                def watched() -> Iterator[Request]:
                    for request in requests:
                        before(request.sample)
                        yield request

                return super().states(watched())

        def opened(options: SourceOptions, store: Store, _note: object) -> SeededSource:
            assert options == SourceOptions("transformers:model")
            return Watched(store.identity, failing)

        monkeypatch.setattr(extract, "open_source", opened)

    return install


def run(store: Store, *options: str) -> int:
    return main(["extract", str(store.root), "--source", "transformers:model", *options])


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_everything_is_filled(store: Store, use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use()
    assert run(store, "--json") == 0
    found = summary(capsys)
    assert (found["samples_extracted"], found["shards_committed"]) == (6, 4)
    assert found["store"]["complete"] is True
    assert run(store) == 0
    assert "6 of 6 samples committed, 0 absent" in capsys.readouterr().out


def test_a_range_of_shards_alone_is_filled(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use()
    assert run(store, "--shards", "1-2", "--json") == 0
    assert sorted(store.committed()) == [1, 2]
    assert summary(capsys)["store"]["samples_missing"] == 4
    assert run(store, "--shards", "3-4") == 2
    assert "the store has shards 0 to 3" in capsys.readouterr().err


def test_samples_that_cannot_be_had_make_exit_4(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use(failing={key_of(4): "too odd"})
    assert run(store) == 4
    shown = capsys.readouterr()
    assert "5 of 6 samples committed, 1 absent" in shown.out
    assert f"why absent: hsstore inspect {store.root} --shard 3" in shown.out
    assert "'sample-4' failed: seeded, too odd" in shown.err


def test_absent_samples_of_other_shards_do_not_count(store: Store, use: Use) -> None:
    use(failing={key_of(4): "too odd"})
    assert run(store, "--shards", "3") == 4
    assert run(store, "--shards", "0-1") == 0


@pytest.mark.parametrize("failing", [{}, {key_of(4): "too odd"}])
@pytest.mark.parametrize("content", ["{}", ""])
def test_an_unreadable_marker_makes_exit_4(
    store: Store,
    use: Use,
    capsys: pytest.CaptureFixture[str],
    failing: dict[str, str],
    content: str,
) -> None:
    use(failing=failing)
    run(store)
    (store.root / store.marker(3).name).write_text(content)
    capsys.readouterr()
    assert run(store) == 4
    shown = capsys.readouterr().out
    assert "4 committed before, 2 in shards whose marker cannot be read" in shown
    assert "4 of 6 samples committed" in shown
    assert f"cannot be read: hsstore fsck {store.root}" in shown
    assert run(store, "--shards", "0-2") == 0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_sample_in_work(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str], sent: signal.Signals
) -> None:
    use(before=lambda sample: os.kill(os.getpid(), sent) if sample == 0 else None)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run(store) == 32
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    shown = capsys.readouterr()
    assert "run the same command again to go on" in shown.out
    assert "1 staged, 5 missing" in shown.out
    use()
    assert run(store, "--json") == 0
    found = summary(capsys)
    assert (found["samples_resumed"], found["samples_extracted"]) == (1, 5)


def without_readers() -> TextIO:
    """A stream whose reader is gone, as after the end of a ``tee``."""
    reader, pipe = os.pipe()
    os.close(reader)
    return os.fdopen(pipe, "w", buffering=1)


def full() -> TextIO:
    """A stream onto a full disk."""
    return Path("/dev/full").open("w", buffering=1)


@pytest.mark.parametrize("spoilt", [without_readers, full])
def test_stopping_is_orderly_where_nobody_can_be_told(
    store: Store,
    use: Use,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spoilt: Callable[[], TextIO],
) -> None:
    use(before=lambda sample: os.kill(os.getpid(), signal.SIGINT) if sample == 3 else None)
    monkeypatch.setattr(sys, "stderr", spoilt())
    assert run(store) == 32
    assert capsys.readouterr().out.endswith("\nstopped; run the same command again to go on\n")
    use()
    assert run(store) == 0


def test_a_second_signal_stops_at_once(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    def twice(_: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    use(before=twice)
    assert run(store) == 32
    assert "interrupted" in capsys.readouterr().err
    use()
    assert run(store) == 0


def test_time_that_is_up_stops(store: Store, use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use()
    assert run(store, "--max-duration", "0.000001") == 32
    assert "0 of 6 samples committed" in capsys.readouterr().out


def test_shards_of_a_live_writer_make_exit_8(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use()
    with claimed(store.filesystem, store.root, store.identity.uuid, 1):
        assert run(store) == 8
    shown = capsys.readouterr().out
    assert "1 shard is held by another writer, first 1" in shown
    assert sorted(store.committed()) == [0, 2, 3]


def test_a_full_disk_says_what_is_kept(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(sample: int) -> None:
        if sample == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data")

    use(before=full)
    assert run(store) == 8
    told = capsys.readouterr().err
    assert "data: No space left on device; the samples in committed shards and journals are" in told
    assert "run the same command again to go on" in told


def test_a_source_must_be_given(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", str(store.root)]) == 2
    assert "give --source transformers:PATH" in capsys.readouterr().err


def test_a_filled_store_needs_no_model(
    store: Store, use: Use, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use()
    assert run(store) == 0
    monkeypatch.undo()
    assert run(store) == 0
    assert "6 of 6 samples committed" in capfd.readouterr().out
    assert main(["extract", str(store.root)]) == 2


def test_every_sample_is_accounted_for_when_an_error_ends_it(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lost(sample: int) -> None:
        if sample == 3:
            raise SourceUnavailable("the server is gone")

    use(before=lost, failing={key_of(1): "too odd"})
    log = tmp_path / "log.jsonl"
    assert run(store, "--json", "--log-json", str(log)) == 8
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["error"] == "the server is gone"
    assert "error: the server is gone" in shown.err
    account = found["account"]
    assert account.pop("total") == 6 == sum(account.values())
    assert (account["extracted"], account["failed"], account["not_reached"]) == (2, 1, 3)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events if e["event"] not in ("note", "figures")] == [
        "begin",
        "work",
        "sample-failed",
        "shard-committed",
        "shard-committed",
        "error",
        "summary",
    ]
    failed = next(e for e in events if e["event"] == "sample-failed")
    assert (failed["id"], failed["attempts"]) == (key_of(1), ["seeded: too odd"])
    assert events[-1]["account"]["not_reached"] == 3


def test_the_account_is_told_to_people_too(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use()
    assert run(store, "--shards", "0") == 0
    use(before=lambda sample: os.kill(os.getpid(), signal.SIGINT) if sample == 3 else None)
    capsys.readouterr()
    assert run(store) == 32
    shown = capsys.readouterr().out
    told = "6 samples: 2 committed before, 2 computed and committed, 2 not reached"
    assert f"asked for: {told}" in shown


def test_a_log_to_stderr_replaces_progress(
    store: Store, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use()
    assert run(store, "--log-json", "-", "--order", "longest-first") == 0
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines][-1] == "summary"
