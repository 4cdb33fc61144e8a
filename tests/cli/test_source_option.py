from pathlib import Path

import click
import pytest

from hsstore.demo.model import build_model
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model.capture import Capture
from hsstore.model.identity import StoreIdentity
from hsstore.storage.model_files import read_model
from hsstore_cli.source_option import open_source


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model(folder)
    return folder


@pytest.fixture(scope="module")
def identity(model: Path) -> StoreIdentity:
    capture = Capture((1, "final"), "bfloat16")
    return StoreIdentity("0" * 32, "now", read_model(model), capture, 16, 64, "none")


def test_a_path_opens_the_embedded_source(model: Path, identity: StoreIdentity) -> None:
    source = open_source(f"transformers:{model}", identity, batch_tokens=99)
    assert isinstance(source, TransformersSource)
    assert source.origin().recorded["batch_tokens"] == "99"


@pytest.mark.parametrize(
    "text", [None, "", "transformers", "transformers:", "vllm:/m", "/m", ":/m"]
)
def test_anything_else_is_a_usage_error(text: str | None, identity: StoreIdentity) -> None:
    with pytest.raises(click.UsageError, match="transformers:PATH") as caught:
        open_source(text, identity)
    assert caught.value.exit_code == 2
