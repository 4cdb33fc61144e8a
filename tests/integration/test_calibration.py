"""Calibration against transformers acting as the server: what is right passes, what is wrong is
named before a sample is believed."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from hsstore.demo import corpus
from hsstore.errors import IdentityMismatch, InvalidDocument, MalformedInput, SourceUnavailable
from hsstore.extraction.sglang.calibration import make_calibrator, prompt_of
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.integrity.auditing.likeness import values_of
from hsstore.model import keys
from hsstore.model.calibration import Calibration
from hsstore.model.capture import Capture, Layer
from hsstore.model.source import Extracted, Request
from hsstore.storage.calibrations import calibrations, publish_calibration
from hsstore.storage.create import create
from hsstore.storage.model_files import read_model
from hsstore.storage.store import Store

LAYERS: tuple[Layer, ...] = (1, 2, 3, "final")
States = NDArray[Any]


@dataclass(frozen=True)
class Facts:
    release: str = "0.5.23"
    model_path: str = "/nowhere/model"
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    aux_layer_ids: tuple[int, ...] | None = None


@dataclass
class Server:
    """A model of this machine behind the ask of a server; ``change`` spoils its answers."""

    model: Path
    store: Store
    layers: tuple[Layer, ...] = LAYERS
    change: Callable[[States], States] = lambda states: states
    asked: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        identity = self.store.identity
        identity = dataclasses.replace(
            identity,
            model=read_model(self.model),
            capture=Capture(self.layers, identity.capture.dtype),
        )
        self.source = TransformersSource(self.model, identity)

    def ask(self, ids: NDArray[np.int32]) -> States:
        self.asked.append(ids.tolist())
        (answer,) = self.source.states([Request(0, "prompt", ids)])
        assert isinstance(answer, Extracted)
        return self.change(answer.states.copy())


def new_store(
    root: Path, model: Path, dtype: str, layers: Sequence[Layer] = LAYERS, tokens: int = 60
) -> Store:
    dataset = root.with_suffix(".jsonl")
    lines = [{"input_ids": s.input_ids[:tokens]} for s in corpus.samples(3)]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return create(root, dataset, model, layers, dtype=dtype)


def calibrate(
    server: Server,
    reference: str | None = None,
    notes: list[str] | None = None,
    facts: Facts = Facts(),
) -> None:
    told: list[str] = [] if notes is None else notes
    make_calibrator(server.store, reference, told.append, spool=True)(server.ask, facts)


def with_weights(
    model: Path, folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Path:
    """A copy of a model folder, every tensor changed."""
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = {name: change(name, tensor) for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hsstore.demo.model import build_model  # noqa: PLC0415 - torch and transformers

    folder = tmp_path_factory.mktemp("other") / "model"
    build_model(folder, seed=7)
    return folder


@pytest.fixture(params=["float32", "bfloat16"])
def store(request: pytest.FixtureRequest, tmp_path: Path, demo_model: Path) -> Store:
    return new_store(tmp_path / "store", demo_model, request.param)


# -- what is right passes, and is recorded ---------------------------------------------------------


def test_without_recording_a_server_is_proved_and_the_store_left_as_it_is(
    store: Store, demo_model: Path, other_model: Path
) -> None:
    notes: list[str] = []
    reference = str(demo_model)
    prove = make_calibrator(store, reference, notes.append, spool=True, recording=False)
    prove(Server(demo_model, store).ask, Facts())
    assert "layers and norm are those of transformers" in notes[0]
    assert calibrations(store) == []
    with pytest.raises(IdentityMismatch, match="other weights"):
        prove(Server(other_model, store).ask, Facts())


def test_the_right_server_passes_by_reference(store: Store, demo_model: Path) -> None:
    notes: list[str] = []
    calibrate(Server(demo_model, store), str(demo_model), notes)
    (found,) = calibrations(store)
    assert (found.method, found.norm, found.layers, found.doubt) == (
        "reference",
        "post",
        LAYERS,
        "",
    )
    assert found.engine.layers == (0, 1, 2, "final")
    assert [layer.relative_error for layer in found.agreement] == [0.0] * 4
    assert min(layer.cosine for layer in found.agreement) == pytest.approx(1)
    (told,) = notes
    assert told.startswith(f"{found.name}: layers and norm are those of transformers, ")
    assert told.endswith("relative error up to 0, cosine from 1.0000")


def test_the_model_of_a_local_server_is_the_reference(store: Store, demo_model: Path) -> None:
    calibrate(Server(demo_model, store), facts=Facts(model_path=str(demo_model)))
    assert [found.method for found in calibrations(store)] == ["reference"]


def test_the_right_server_passes_by_structure_with_its_doubt(
    store: Store, demo_model: Path
) -> None:
    notes: list[str] = []
    calibrate(Server(demo_model, store), None, notes)
    (found,) = calibrations(store)
    assert (found.method, found.agreement) == ("structure", ())
    assert "no reference was at hand" in found.doubt
    assert "nothing shows that its weights are the store's" in found.doubt
    assert "'final' is on the right side of the final norm rests on what the server says" in (
        found.doubt
    )
    assert notes == [f"{found.name}: by structure alone; {found.doubt}"]


def test_weights_of_the_norm_alone_prove_the_norm(
    store: Store, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.extraction.sglang.reference.AT_HAND_BYTES", 0)
    calibrate(Server(demo_model, store), facts=Facts(model_path=str(demo_model)))
    (found,) = calibrations(store)
    assert found.method == "structure"
    assert "final norm" not in found.doubt


def test_the_prompt_is_asked_again_whole_and_in_part(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    calibrate(server)
    first, second, part = server.asked
    assert first == second == prompt_of(store).tolist()
    assert part == first[: len(part)]
    assert len(part) < len(first) == 48


def test_identity_stays_as_it_was(store: Store, demo_model: Path) -> None:
    before = (store.root / keys.IDENTITY).read_bytes()
    calibrate(Server(demo_model, store))
    assert (store.root / keys.IDENTITY).read_bytes() == before


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers  # noqa: PLC0415 - slow

    folder = tmp_path_factory.mktemp("phi3") / "model"
    config = transformers.Phi3Config(
        vocab_size=corpus.VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, initializer_range=0.08,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.Phi3ForCausalLM(config).save_pretrained(folder)
    return folder


PHI3 = Facts(architectures=("Phi3ForCausalLM",))


def test_layers_of_a_family_never_seen_are_doubted_without_a_reference(
    tmp_path: Path, phi3: Path
) -> None:
    store = new_store(tmp_path / "store", phi3, "float32")
    server = Server(phi3, store)
    calibrate(server, facts=PHI3)
    calibrate(server, str(phi3), facts=PHI3)
    by_structure, by_reference = calibrations(store)
    assert "SGLang's layers of phi3 were read in its source only" in by_structure.doubt
    assert (by_reference.method, by_reference.doubt) == ("reference", "")


def test_the_final_state_of_any_family_is_not(tmp_path: Path, phi3: Path) -> None:
    store = new_store(tmp_path / "store", phi3, "float32", ("final",))
    calibrate(Server(phi3, store, ("final",)), facts=PHI3)
    (found,) = calibrations(store)
    assert found.method == "structure"
    assert "read in its source" not in found.doubt


# -- what is wrong is named -----------------------------------------------------------------------


def shifted(states: States) -> States:
    return np.concatenate([states[:1], states[:-1]])


def swapped(states: States) -> States:
    return states[:, [2, 1, 0, 3]]


def holed(states: States) -> States:
    states[7, 2, 5] = np.nan if states.dtype == np.float32 else 0x7FC0
    return states


def doubled(states: States) -> States:
    states[:, 1] = states[:, 0]
    return states


@pytest.mark.parametrize(
    ("layers", "change", "told"),
    [
        ((1, 3, 2, "final"), None, "layer 2 of the store looks like the state after 3"),
        ((1, 2, 3, "final:pre"), None, "the state 'final' looks like the last one before the norm"),
        (LAYERS, swapped, "layer 1 of the store looks like the state after 3 blocks"),
        (LAYERS, shifted, "has its rows shifted: they come one token late"),
        (LAYERS, holed, "layer 3 holds NaN or infinity"),
        (LAYERS, doubled, "layer 2 of the store looks like the state after 1 blocks"),
    ],
)
def test_a_wrong_answer_is_named_by_reference(
    store: Store,
    demo_model: Path,
    layers: tuple[Layer, ...],
    change: Callable[[States], States] | None,
    told: str,
) -> None:
    server = Server(demo_model, store, layers, change or (lambda states: states))
    with pytest.raises(IdentityMismatch, match=told):
        calibrate(server, str(demo_model))
    assert calibrations(store) == []


def test_rows_that_come_late_are_named_where_the_first_is_another(
    store: Store, demo_model: Path
) -> None:
    def late(states: States) -> States:
        return np.concatenate([states[-1:], states[:-1]])

    with pytest.raises(IdentityMismatch, match="asked in part gives other states"):
        calibrate(Server(demo_model, store, change=late), str(demo_model))


def test_rows_that_come_early_are_named(store: Store, demo_model: Path) -> None:
    prompt = prompt_of(store)
    server = Server(demo_model, store)
    whole = server.ask(np.append(prompt, 1).astype(np.int32))
    with pytest.raises(IdentityMismatch, match="has its rows shifted: they come one token early"):
        make_calibrator(store, str(demo_model), print, spool=True)(
            lambda ids: whole[1 : len(ids) + 1].copy(), Facts()
        )


def test_other_weights_are_named_by_reference(
    store: Store, demo_model: Path, other_model: Path
) -> None:
    with pytest.raises(IdentityMismatch, match="like no state of the reference: other weights"):
        calibrate(Server(other_model, store), str(demo_model))


@pytest.mark.parametrize(
    ("layers", "change", "told"),
    [
        ((1, 2, 3, "final:pre"), None, "'final' looks like the last one before the norm"),
        (LAYERS, shifted, "has the same row for tokens 0 and 1, which differ"),
        (LAYERS, holed, "layer 3 holds NaN"),
        (LAYERS, doubled, "layers 1 and 2 are one and the same state"),
    ],
)
def test_a_wrong_answer_is_named_by_structure(
    store: Store,
    demo_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: tuple[Layer, ...],
    change: Callable[[States], States] | None,
    told: str,
) -> None:
    monkeypatch.setattr("hsstore.extraction.sglang.reference.AT_HAND_BYTES", 0)
    server = Server(demo_model, store, layers, change or (lambda states: states))
    with pytest.raises(IdentityMismatch, match=told):
        calibrate(server, facts=Facts(model_path=str(demo_model)))


def test_layers_in_another_order_are_refused_or_doubted_by_structure(
    store: Store, demo_model: Path
) -> None:
    middle_last = Server(demo_model, store, change=lambda states: states[:, [0, 2, 1, 3]])
    notes: list[str] = []
    try:
        calibrate(middle_last, None, notes)
    except IdentityMismatch as error:
        assert "layers 1, 2 and 3 are not in this order" in str(error)  # noqa: PT017
    else:
        assert "the order of 1, 2, 3 is not sure" in notes[0]


def test_a_folder_with_other_weights_is_refused(
    store: Store, demo_model: Path, other_model: Path
) -> None:
    with pytest.raises(IdentityMismatch, match=r"model folder.*holds other weights"):
        calibrate(Server(demo_model, store), facts=Facts(model_path=str(other_model)))


def test_another_shape_is_refused(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store, change=lambda states: states[1:])
    with pytest.raises(IdentityMismatch, match=r"shape \(47, 4, 128\), not \(48, 4, 128\)"):
        calibrate(server)


def test_an_unstable_server_is_refused(store: Store, demo_model: Path) -> None:
    def forgetful(states: States) -> States:
        return states if len(server.asked) == 1 else states[::-1].copy()

    server = Server(demo_model, store, change=forgetful)
    with pytest.raises(IdentityMismatch, match="asked twice gives other states"):
        calibrate(server)


def test_a_reference_that_was_asked_for_must_work(store: Store, demo_model: Path) -> None:
    broken = store.root.with_name("broken")
    shutil.copytree(demo_model, broken)
    (file,) = broken.glob("*.safetensors")
    tensors = load_file(file)
    save_file({n: t for n, t in tensors.items() if "layers.3" not in n}, file, {"format": "pt"})
    bare = new_store(store.root.with_name("bare"), broken / "config.json", "float32")
    with pytest.raises(SourceUnavailable, match="the weights do not fill the model"):
        calibrate(Server(demo_model, bare), str(broken))
    with pytest.raises(MalformedInput, match="no such model"):
        calibrate(Server(demo_model, store), str(store.root / "nothing"))


def test_a_reference_at_hand_that_does_not_work_is_a_doubt(
    tmp_path: Path, demo_model: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(demo_model, broken)
    (file,) = broken.glob("*.safetensors")
    tensors = load_file(file)
    save_file({n: t for n, t in tensors.items() if "layers.3" not in n}, file, {"format": "pt"})
    store = new_store(tmp_path / "store", broken, "float32")
    server = Server(demo_model, new_store(tmp_path / "whole", demo_model, "float32"))
    make_calibrator(store, None, print, spool=True)(server.ask, Facts(model_path=str(broken)))
    (found,) = calibrations(store)
    assert "could not be the reference: the weights do not fill the model" in found.doubt


# -- resuming -------------------------------------------------------------------------------------


def test_a_resume_adds_nothing(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    for _ in range(2):
        calibrate(server, str(demo_model))
    calibrate(server)
    assert [found.number for found in calibrations(store)] == [0]


def test_a_reference_betters_what_was_told_by_structure(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    calibrate(server)
    calibrate(server, str(demo_model))
    calibrate(server)
    assert [found.method for found in calibrations(store)] == ["structure", "reference"]


def test_another_release_with_the_same_states_is_added(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    calibrate(server)
    calibrate(server, facts=Facts(release="0.5.24"))
    assert [found.engine.release for found in calibrations(store)] == ["0.5.23", "0.5.24"]


def test_other_weights_are_refused_on_resume(
    store: Store, demo_model: Path, other_model: Path
) -> None:
    calibrate(Server(demo_model, store))
    with pytest.raises(IdentityMismatch, match="other weights or layers than at calibration 0"):
        calibrate(Server(other_model, store))


def test_one_changed_layer_is_refused_on_resume(
    store: Store, demo_model: Path, tmp_path: Path
) -> None:
    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if "layers.1." not in name or "proj" not in name:
            return tensor
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        return (tensor.float() + 0.2 * tensor.float().std() * noise).to(tensor.dtype)

    calibrate(Server(demo_model, store))
    with pytest.raises(IdentityMismatch, match="other weights or layers"):
        calibrate(Server(with_weights(demo_model, tmp_path / "changed", change), store))


def test_noise_of_another_engine_is_no_other_weights(store: Store, demo_model: Path) -> None:
    calibrate(Server(demo_model, store))
    server = Server(demo_model, store)
    server.source = TransformersSource(demo_model, store.identity, attention="eager")
    calibrate(server, facts=Facts(release="0.5.24"))
    assert len(calibrations(store)) == 2


def test_a_server_without_ids_for_the_layers_is_refused(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    with pytest.raises(IdentityMismatch, match="ids of StrangeForCausalLM in SGLang are not known"):
        calibrate(server, facts=Facts(architectures=("StrangeForCausalLM",)))
    json_server = make_calibrator(store, None, print, spool=False)
    with pytest.raises(IdentityMismatch, match="no ids of the layers 1,2,3,final"):
        json_server(server.ask, Facts(aux_layer_ids=(0,)))
    json_server(server.ask, Facts(aux_layer_ids=(0, 1, 2)))
    (found,) = calibrations(store)
    assert (found.engine.transport, found.engine.layers) == ("json", (0, 1, 2, "final"))


# -- the record -----------------------------------------------------------------------------------


def test_of_two_that_calibrate_at_once_the_second_compares(
    store: Store, demo_model: Path, other_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds no calibration at its start; the slower one finds the name taken."""

    def overtaken(own: Store, found: Calibration) -> None:
        monkeypatch.setattr(where, publish_calibration)
        calibrate(first, facts=rival[0])
        publish_calibration(own, found)

    where = "hsstore.extraction.sglang.calibration.publish_calibration"
    first = Server(demo_model, store)
    rival: list[Facts] = []
    for facts, count in ((Facts("0.5.23"), 1), (Facts("0.5.25"), 2)):
        rival[:] = [facts]
        shutil.rmtree(store.root / keys.CALIBRATION)
        monkeypatch.setattr(where, overtaken)
        calibrate(Server(demo_model, store))
        assert len(calibrations(store)) == count
    shutil.rmtree(store.root / keys.CALIBRATION)
    monkeypatch.setattr(where, overtaken)
    with pytest.raises(IdentityMismatch, match="other weights or layers than at calibration 0"):
        calibrate(Server(other_model, store))


def test_a_damaged_record_is_named_before_anything_is_asked(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    calibrate(server)
    path = store.root / keys.calibration(0)
    path.write_bytes(path.read_bytes().replace(b'"post"', b'"pre_"'))
    server.asked.clear()
    with pytest.raises(InvalidDocument, match=r"the seal does not match.*hsstore fsck"):
        calibrate(server)
    assert server.asked == []


def test_a_prompt_is_made_of_the_stores_own_tokens(tmp_path: Path, demo_model: Path) -> None:
    short = new_store(tmp_path / "short", demo_model, "float32", tokens=5)
    own = [n for shard in range(short.plan.shards) for n in short.tokens(shard).input_ids.tolist()]
    assert prompt_of(short).tolist()[:20] == (own * 2)[:20]
    assert len(prompt_of(short)) == 48


def test_a_sketch_is_as_far_off_as_the_rows(store: Store, demo_model: Path) -> None:
    server = Server(demo_model, store)
    calibrate(server)
    (found,) = calibrations(store)
    assert len(found.sketch) == 4
    rows = values_of(server.ask(np.array(found.input_ids, np.int32)))
    lengths = np.linalg.norm(rows, axis=-1)
    projected = np.array(found.sketch).reshape(4, len(found.input_ids), -1)
    estimate = np.sqrt((projected**2).mean(axis=-1)).T
    assert np.median(estimate / lengths) == pytest.approx(1, abs=0.1)
