from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hsstore.extraction.sglang.source import SGLangSource
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore.testing.fake_sglang import FakeSGLang
from hsstore.testing.stores import empty_store
from hsstore_cli.source_option import SourceOptions, open_source, source_options


def ignore(_: str) -> None:
    pass


@pytest.fixture
def store(demo_model: Path, tmp_path: Path) -> Store:
    dataset = tmp_path / "dataset.jsonl"
    dataset.write_text('{"input_ids": [1, 2, 3]}\n')
    return create(tmp_path / "store", dataset, demo_model, (1, "final"), dtype="bfloat16")


@click.command()
@source_options
def shown(options: SourceOptions) -> None:
    """Print what was understood."""
    click.echo(repr(options))


def parsed(*typed: str) -> str:
    return CliRunner().invoke(shown, typed).output


def test_a_path_opens_the_embedded_source(demo_model: Path, store: Store) -> None:
    said: list[str] = []
    options = SourceOptions(source=f"transformers:{demo_model}", batch_tokens=99)
    source = open_source(options, store, said.append)
    assert isinstance(source, TransformersSource)
    assert source.origin().recorded["batch_tokens"] == "99"
    assert str(demo_model) in said[0]


def test_a_url_opens_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def make(*given: object, spool: bool, recording: bool) -> object:
        asked.append((*given, spool, recording))
        return lambda _ask, _facts: None

    monkeypatch.setattr("hsstore.extraction.sglang.calibration.make_calibrator", make)
    store = empty_store(tmp_path / "store", [5], layers=("final",))
    with FakeSGLang(store.identity) as server:
        options = SourceOptions(servers=(server.url,), reference="MODEL", concurrency=3)
        source = open_source(options, store, ignore)
        assert isinstance(source, SGLangSource)
        source.close()
    assert asked == [(store, "MODEL", ignore, False, True)]


def test_all_options_arrive() -> None:
    typed = (
        "--server http://a --server http://b --spool /s --concurrency 3 --batch-tokens 4 "
        "--max-attempts 5 --max-wait 6.5 --reference M"
    )
    expected = SourceOptions(None, ("http://a", "http://b"), Path("/s"), 3, 4, 5, 6.5, "M")
    assert parsed(*typed.split()) == f"{expected!r}\n"
    assert [word for pair in expected.words() for word in pair] == typed.split()


def test_nothing_may_be_given_where_a_command_allows_it() -> None:
    assert parsed() == f"{SourceOptions()!r}\n"
    assert not SourceOptions().given
    with pytest.raises(click.UsageError, match=r"--source transformers:PATH.* or --server URL"):
        SourceOptions().require()


@pytest.mark.parametrize("text", ["", "transformers", "transformers:", "vllm:/m", "/m", ":/m"])
def test_any_other_source_is_a_usage_error(text: str) -> None:
    assert "transformers:PATH" in parsed("--source", text)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--source transformers:M --server http://a", "exclude each other"),
        ("--source transformers:M --spool /s", "--spool is for a --server"),
        ("--reference M", "--reference is for a --server"),
        ("--server http://a --concurrency 0", "--concurrency"),
        ("--server http://a --max-wait inf", "--max-wait"),
        ("--server http://a --max-wait 0", "--max-wait"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(typed: str, words: str) -> None:
    assert words in parsed(*typed.split())
