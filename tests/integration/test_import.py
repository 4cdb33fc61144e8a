"""Trees as their own tools leave them: imported bit for bit, or refused by name."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hsstore.errors import MalformedInput, SourceUnavailable, Stopped, StorageFailed, StoreExists
from hsstore.integrity.fsck import fsck
from hsstore.interop import file_bytes
from hsstore.interop.arrow_module import arrow_module
from hsstore.interop.foreign import ForeignFile, Reading
from hsstore.interop.importing import Choices, Import, Layout, Told, import_tree
from hsstore.interop.layout import TensorFormat
from hsstore.interop.survey import survey
from hsstore.interop.tree_capture import LOOKED_AT
from hsstore.model.progress import Silent
from hsstore.storage.digest import content_digest
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.store import Store
from hsstore.testing.foreign_trees import (
    HIDDEN,
    PAD,
    Drawn,
    drawn,
    quantised,
    save,
    specforge_path,
    specforge_record,
    speculators_path,
    write_dataset,
    write_model,
    write_modelopt,
    write_specforge,
    write_speculators,
)
from hsstore.testing.stores import contents

pytest.importorskip("pyarrow", reason="the extra interop")

ROOT = Path(__file__).parents[2]
SAMPLES = [drawn(n, 4 + 3 * n % 11) for n in range(23)]
POST = Told("0,1,2", "specforge", "post")
PRE = Told("1,2,3,final:pre", "vllm")
SMALL = Layout(chunk_rows=8, shard_rows=64)


class Watched(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def tree(tmp_path: Path, model: Path) -> Path:  # noqa: ARG001 - one is never without the other
    return write_specforge(tmp_path / "tree", SAMPLES)


def put(
    tree: Path,
    told: Told = POST,
    form: str = "specforge",
    **more: Any,  # noqa: ANN401 - whatever import_tree takes
) -> Import:
    beside = tree.parent
    return import_tree(form, tree, beside / "store", beside / "model", told, layout=SMALL, **more)


def refusal(
    tree: Path,
    told: Told = POST,
    form: str = "specforge",
    **more: Any,  # noqa: ANN401 - as above
) -> str:
    """What is said where an import is refused; nothing was written then."""
    with pytest.raises(MalformedInput) as caught:
        put(tree, told, form, **more)
    assert not (tree.parent / "store").exists()
    return str(caught.value)


def keyed(name: str) -> dict[str, str]:
    """The digests of all samples, under the names of a tree's files."""
    return {name.format(n): content_digest(one.bits()) for n, one in enumerate(SAMPLES)}


def reasons(store: Store) -> dict[str, tuple[str, str]]:
    """Why samples are absent, by key."""
    return {
        absent.key: (absent.reason, absent.detail)
        for shard in store.committed()
        for absent in store.manifest(store.marker(shard)).absent
    }


def dataset(tree: Path, samples: list[Drawn] = SAMPLES) -> Path:
    return write_dataset(tree.parent / "data.jsonl", samples)


# -- whole trees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_specforge_bit_for_bit(tmp_path: Path, model: Path, *, packed: bool) -> None:
    tree = write_specforge(tmp_path / "tree", SAMPLES, packed=packed)
    done = put(tree)
    assert done.store.identity.capture.layers == (1, 2, 3, "final")
    assert done.store.identity.model.hidden_size == HIDDEN
    name = "rows_0-2000/data_{}.ckpt" + (".gz" if packed else "")
    assert contents(done.store) == keyed(name)
    assert (done.files, done.left_out, done.without_file) == (23, [], 0)
    # Natural order: data_2 before data_10.
    assert [done.store.key(n) for n in range(23)] == [name.format(n) for n in range(23)]
    assert list(fsck(done.store.root)) == []
    mask = done.store.tokens(0).sample(1)[2]
    assert mask.tolist() == SAMPLES[1].mask.tolist()
    assert model.exists()


def test_gzip_is_expanded_once_to_look_and_once_to_import(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expanded = file_bytes.expanded
    count = []

    def counted(raw: file_bytes.FileBytes) -> BinaryIO:
        count.append(raw)
        return expanded(raw)

    monkeypatch.setattr(file_bytes, "expanded", counted)
    tree = write_specforge(tmp_path / "tree", SAMPLES, packed=True)
    put(tree)
    assert len(count) == 2 * len(SAMPLES) + LOOKED_AT
    assert model.exists()


def test_modelopt_bit_for_bit(tmp_path: Path, model: Path) -> None:
    done = put(write_modelopt(tmp_path / "tree", SAMPLES), form="modelopt")
    assert contents(done.store) == keyed("talk-{}.pt")
    assert model.exists()


def test_speculators_bit_for_bit(tmp_path: Path, model: Path) -> None:
    done = put(write_speculators(tmp_path / "tree", SAMPLES), PRE, "speculators")
    assert contents(done.store) == keyed("hidden_states/hs_{}.safetensors")
    assert done.store.identity.capture.layers == (1, 2, 3, "final:pre")
    assert done.store.tokens(0).sample(1)[2].tolist() == SAMPLES[1].mask.tolist()
    assert model.exists()


def test_float8_is_recorded_as_what_it_was(tmp_path: Path, model: Path) -> None:
    tree = write_speculators(tmp_path / "tree", SAMPLES, float8=True)
    store = put(tree, PRE, "speculators").store
    expected = {}
    for row, one in enumerate(SAMPLES):
        told = quantised(one.states)
        wide = told["hidden_states"].bfloat16() * told["hidden_states_scales"].bfloat16()
        bits = wide.view(torch.int16).numpy().view(np.uint16)
        expected[f"hidden_states/hs_{row}.safetensors"] = content_digest(bits)
    assert contents(store) == expected
    recorded = [o.recorded for o in store.manifest(store.marker(0)).origins]
    assert any("float8" in told.get("dequantised", "") for told in recorded)
    assert model.exists()


def test_dflash_has_no_last_state(tmp_path: Path, model: Path) -> None:
    for n, one in enumerate(SAMPLES):
        record = {
            "input_ids": one.ids,
            "loss_mask": one.mask,
            "hidden_states": one.states.flatten(1)[None],
        }
        save(record, specforge_path(tmp_path / "tree", n))
    done = put(tmp_path / "tree", Told("0,1,2,3", "vllm"))
    assert done.store.identity.capture.layers == (0, 1, 2, 3)
    assert contents(done.store) == keyed("rows_0-2000/data_{}.ckpt")
    assert model.exists()


def test_a_second_import_does_nothing(tree: Path) -> None:
    put(tree)
    root = tree.parent / "store"
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    done = put(tree)
    assert done.extraction.samples_extracted == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


# -- what SpecForge's own writer leaves -----------------------------------------------------------


def test_rows_are_matched_by_tokens_and_not_by_number(tree: Path) -> None:
    """With two ranks, data_1 is row 2, and some numbers do not exist."""
    shutil.rmtree(tree)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for number, row in zip((0, 1, 2, 3, 6, 7, 8, 9), order, strict=True):
        save(specforge_record(SAMPLES[row]), specforge_path(tree, number))
    done = put(tree, dataset=dataset(tree, SAMPLES[:11]))
    assert contents(done.store) == {
        f"s{row}": content_digest(SAMPLES[row].bits()) for row in range(8)
    }
    # drop_last lost the rest.
    assert {key: kind for key, (kind, _) in reasons(done.store).items()} == dict.fromkeys(
        ("s8", "s9", "s10"), "missing"
    )
    assert done.without_file == 3
    assert any("2 numbers have no file, the first of them 4" in note for note in done.notes)


def test_samples_with_equal_tokens_each_get_their_own_file(tree: Path) -> None:
    shutil.rmtree(tree)
    twin = Drawn(SAMPLES[4].ids, SAMPLES[4].mask, SAMPLES[4].states + 1)
    rows = [SAMPLES[3], SAMPLES[4], twin]
    write_specforge(tree, rows)
    done = put(tree, dataset=dataset(tree, rows))
    assert contents(done.store) == {f"s{n}": content_digest(r.bits()) for n, r in enumerate(rows)}


def padded(tree: Path) -> None:
    save(specforge_record(SAMPLES[3], padding=45), specforge_path(tree, 3))


def test_padding_is_refused_until_it_is_to_be_trimmed(tree: Path) -> None:
    padded(tree)
    told = refusal(tree, dataset=dataset(tree))
    assert "1 files hold padding behind their sample: rows_0-2000/data_3.ckpt" in told
    assert "--trim-padding" in told
    done = put(tree, dataset=dataset(tree), choices=Choices(trim_padding=True))
    assert contents(done.store) == keyed("s{}")
    assert done.trimmed == 1


def test_padding_is_not_guessed_without_a_dataset(tree: Path) -> None:
    padded(tree)
    assert "--dataset" in refusal(tree, choices=Choices(trim_padding=True))
    done = put(tree)
    assert any("may be padding (rows_0-2000/data_3.ckpt)" in note for note in done.notes)
    assert done.store.samples.extent(3).rows == len(SAMPLES[3].ids) + 45


def test_padding_that_could_end_in_two_places_is_no_match(tree: Path) -> None:
    longer = Drawn(
        torch.cat([SAMPLES[3].ids, torch.tensor([PAD])]),
        torch.cat([SAMPLES[3].mask, torch.tensor([0])]),
        torch.cat([SAMPLES[3].states, SAMPLES[3].states[:1]]),
    )
    padded(tree)
    data = dataset(tree, [*SAMPLES, longer])
    done = put(tree, dataset=data, choices=Choices(trim_padding=True))
    assert set(reasons(done.store)) == {"s3", "s23"}
    assert [one.fault.kind for one in done.left_out] == ["unmatched"]


def test_a_truncated_leftover_is_named_and_never_imported(tree: Path) -> None:
    path = specforge_path(tree, 5)
    path.write_bytes(path.read_bytes()[:100])
    told = refusal(tree)
    assert "1 files hold no sample: rows_0-2000/data_5.ckpt (truncated: " in told
    assert "--leave-out-broken" in told
    done = put(tree, choices=Choices(leave_out_broken=True))
    assert [one.name for one in done.left_out] == ["rows_0-2000/data_5.ckpt"]
    expected = keyed("rows_0-2000/data_{}.ckpt")
    del expected["rows_0-2000/data_5.ckpt"]
    assert contents(done.store) == expected


def test_with_a_dataset_the_sample_of_a_broken_file_is_absent(tree: Path) -> None:
    specforge_path(tree, 5).write_bytes(b"")
    record = specforge_record(SAMPLES[6])
    save(record | {"hidden_state": record["hidden_state"].float()}, specforge_path(tree, 6))
    done = put(tree, dataset=dataset(tree))
    assert {n: kind for n, (kind, _) in reasons(done.store).items()} == {
        "s5": "empty",  # all others have the number of their row
        "s6": "dtype",
    }
    assert sorted(one.fault.kind for one in done.left_out) == ["dtype", "empty"]


def test_a_file_that_was_brought_back_gives_its_absent_sample_back(tree: Path) -> None:
    healthy = {n: specforge_path(tree, n).read_bytes() for n in (5, 6, 22)}
    specforge_path(tree, 5).write_bytes(b"")
    flipped(specforge_path(tree, 6), SAMPLES[6].bits()[:, -1].tobytes())
    specforge_path(tree, 22).unlink()
    data = dataset(tree)
    first = put(tree, dataset=data)
    assert set(reasons(first.store)) == {"s5", "s6", "s22"}
    before = {shard: first.store.marker(shard) for shard in first.store.committed()}
    again = put(tree, dataset=data)
    assert again.given_back == 0
    assert before == {shard: again.store.marker(shard) for shard in again.store.committed()}
    for n in (5, 6):
        specforge_path(tree, n).write_bytes(healthy[n])
    back = put(tree, dataset=data)
    assert back.given_back == 2
    assert set(reasons(back.store)) == {"s22"}
    specforge_path(tree, 22).write_bytes(healthy[22])
    assert put(tree, dataset=data).given_back == 1
    assert contents(first.store) == keyed("s{}")
    assert [f.kind for f in fsck(first.store) if f.severity == "error"] == []


def flipped(path: Path, needle: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[whole.index(needle)] ^= 1
    path.write_bytes(whole)


def test_damage_within_states_makes_the_sample_absent(tree: Path) -> None:
    """torch.load would import the flipped bit."""
    path = specforge_path(tree, 7)
    flipped(path, specforge_record(SAMPLES[7])["hidden_state"].view(torch.uint8).numpy().tobytes())
    assert not torch.load(path, weights_only=True)["hidden_state"].equal(
        specforge_record(SAMPLES[7])["hidden_state"]
    )
    done = put(tree)
    (key,) = reasons(done.store)
    assert (key, reasons(done.store)[key][0]) == ("rows_0-2000/data_7.ckpt", "crc")
    assert len(contents(done.store)) == 22


@pytest.mark.parametrize("value", ["inf", "nan", "0"])
def test_values_that_are_none_make_the_sample_absent(tree: Path, value: str) -> None:
    record = specforge_record(SAMPLES[2])
    record["hidden_state"][...] = float(value)
    save(record, specforge_path(tree, 2))
    done = put(tree)
    kind = "all-zero" if value == "0" else "non-finite"
    assert [told[0] for told in reasons(done.store).values()] == [kind]


def test_rows_of_zeros_make_the_sample_absent(tree: Path) -> None:
    record = specforge_record(SAMPLES[2])
    record["aux_hidden_state"][0, 1] = 0
    save(record, specforge_path(tree, 2))
    ((kind, detail),) = reasons(put(tree).store).values()
    assert kind == "all-zero"
    assert detail.endswith("1 rows of aux_hidden_state, the first is 1")


def test_scales_that_are_none_make_the_sample_absent(tmp_path: Path, model: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="the extra interop").save_file
    tree = write_speculators(tmp_path / "tree", SAMPLES, float8=True)
    for row, scale in ((2, 0.0), (3, float("nan"))):
        tensors = quantised(SAMPLES[row].states) | {"token_ids": SAMPLES[row].ids}
        tensors["hidden_states_scales"][1] = scale
        save_file(tensors, speculators_path(tree, row))
    kinds = [kind for kind, _ in reasons(put(tree, PRE, "speculators").store).values()]
    assert kinds == ["all-zero", "non-finite"]
    assert [(f.kind, f.row) for f in survey(tree, depth="content")] == [
        ("all-zero", 2), ("non-finite", 3),
    ]  # fmt: skip
    assert model.exists()


def test_a_broken_file_is_known_by_the_conversation_that_names_it(
    tmp_path: Path, model: Path
) -> None:
    tree = write_modelopt(tmp_path / "tree", SAMPLES)
    (tree / "talk-5.pt").write_bytes(b"")
    data = dataset(tree)
    data.write_text(data.read_text().replace('"s', '"talk-'))
    done = put(tree, form="modelopt", dataset=data)
    assert reasons(done.store) == {"talk-5": ("empty", "talk-5.pt: 0 bytes")}
    assert model.exists()


def test_the_same_sample_twice_is_one_sample(tree: Path) -> None:
    save(specforge_record(SAMPLES[9]), specforge_path(tree, 9, packed=True))
    done = put(tree)
    assert contents(done.store) == keyed("rows_0-2000/data_{}.ckpt")
    assert [(one.name, one.fault.kind) for one in done.redundant] == [
        ("rows_0-2000/data_9.ckpt.gz", "duplicate")
    ]


def test_two_differing_files_of_one_number_are_refused_both(tree: Path) -> None:
    record = specforge_record(SAMPLES[9])
    record["hidden_state"] += 1
    save(record, specforge_path(tree, 9, packed=True))
    told = refusal(tree)
    assert "data_9.ckpt (duplicate: these differ" in told
    assert "data_9.ckpt.gz (duplicate" in told
    done = put(tree, dataset=dataset(tree))
    assert {n: kind for n, (kind, _) in reasons(done.store).items()} == {"s9": "duplicate"}


def test_more_files_than_samples_of_the_same_tokens(tree: Path) -> None:
    save(specforge_record(SAMPLES[9]), specforge_path(tree, 40))
    done = put(tree, dataset=dataset(tree))
    assert contents(done.store) == keyed("s{}")
    assert [one.name for one in done.redundant] == ["rows_0-2000/data_40.ckpt"]
    shutil.rmtree(done.store.root)
    other = specforge_record(SAMPLES[9])
    other["aux_hidden_state"] *= 2
    save(other, specforge_path(tree, 40))
    done = put(tree, dataset=dataset(tree))
    assert {n: kind for n, (kind, _) in reasons(done.store).items()} == {"s9": "duplicate"}


def test_a_pickle_that_would_run_is_refused(tree: Path) -> None:
    record = specforge_record(SAMPLES[1])
    save({**record, "extra": torch.nn.Linear(1, 1)}, specforge_path(tree, 1))
    assert "data_1.ckpt (pickle: " in refusal(tree)


def test_a_file_that_cannot_be_read_stops_the_import_before_it_begins(tree: Path) -> None:
    path = specforge_path(tree, 1)
    path.rename(tree / "elsewhere")
    path.symlink_to(tree / "elsewhere")
    assert "data_1.ckpt (unreadable: " in refusal(tree, dataset=dataset(tree))
    done = put(tree, dataset=dataset(tree), choices=Choices(leave_out_broken=True))
    assert reasons(done.store)["s1"][0] == "unreadable"


def test_a_place_that_no_store_can_have_is_refused_before_a_file_is_read(tree: Path) -> None:
    seen = Watched()
    with pytest.raises(MalformedInput, match="inside the tree"):
        import_tree("specforge", tree, tree / "store", tree.parent / "model", POST, progress=seen)
    with pytest.raises(StorageFailed, match="no such folder"):
        import_tree(
            "specforge", tree, tree.parent / "no" / "store", tree.parent / "model", POST,
            progress=seen,
        )  # fmt: skip
    with pytest.raises(StoreExists):
        import_tree("specforge", tree, tree.parent, tree.parent / "model", POST, progress=seen)
    assert not seen.notes
    assert sorted(path.name for path in tree.iterdir()) == ["rows_0-2000"]


def test_of_two_imports_at_once_one_is_told_to_come_again(tree: Path) -> None:
    class Late(Watched):
        def note(self, text: str) -> None:
            if not self.notes:
                put(tree)
            super().note(text)

    with pytest.raises(StoreExists, match="run the same command again"):
        put(tree, progress=Late())
    assert put(tree).extraction.samples_extracted == 0


def test_a_link_to_a_folder_is_not_passed_over(tree: Path) -> None:
    (tree / "rows_0-2000").rename(tree.parent / "another_disk")
    write_specforge(tree, SAMPLES[:3])
    (tree / "rows_2000-4000").symlink_to(tree.parent / "another_disk")
    assert "rows_2000-4000 (unreadable: " in refusal(tree)
    done = put(tree, choices=Choices(leave_out_broken=True))
    assert [one.name for one in done.left_out] == ["rows_2000-4000"]


def test_where_nothing_can_be_read_it_says_why(tree: Path) -> None:
    for n, one in enumerate(SAMPLES):
        record, path = specforge_record(one), specforge_path(tree, n)
        torch.save(record, path, _use_new_zipfile_serialization=False)
    assert "not one of 23 files can be read whole: rows_0-2000/data_0.ckpt (" in refusal(tree)


def test_what_is_named_otherwise_is_told(tree: Path) -> None:
    (tree / "vocab_mapping").mkdir()
    (tree / "vocab_mapping" / "vocab_mapping.pt").touch()
    (tree / "rows_0-2000" / "data_7.ckpt.tmp").touch()
    path = specforge_path(tree, len(SAMPLES) - 1)
    path.rename(path.with_name("data_22 (copy).ckpt"))
    done = put(tree)
    (note,) = (note for note in done.notes if "not looked at" in note)
    assert note.startswith("1 files ")
    assert note.endswith("rows_0-2000/data_22 (copy).ckpt")


def test_another_mask_than_the_datasets_is_told(tree: Path) -> None:
    record = specforge_record(SAMPLES[4])
    record["loss_mask"][-1] = 0
    save(record, specforge_path(tree, 4))
    done = put(tree, dataset=dataset(tree))
    assert any("1 files hold another loss mask" in note for note in done.notes)
    assert done.store.tokens(0).sample(4)[2].tolist() == SAMPLES[4].mask.tolist()


def test_a_dataset_of_other_samples_is_refused(tree: Path) -> None:
    others = [drawn(n, 9) for n in range(100, 103)]
    assert "not one file holds a sample that is wanted" in refusal(
        tree, dataset=dataset(tree, others)
    )


# -- speculators -----------------------------------------------------------------------------------


def test_rows_without_a_file_and_damaged_files_are_absent(tmp_path: Path, model: Path) -> None:
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    speculators_path(tree, 2).unlink()
    cut = speculators_path(tree, 4)
    cut.write_bytes(cut.read_bytes()[:-1])
    shutil.copy(speculators_path(tree, 9), speculators_path(tree, 8))
    done = put(tree, PRE, "speculators")
    name = "hidden_states/hs_{}.safetensors"
    assert {key: kind for key, (kind, _) in reasons(done.store).items()} == {
        name.format(2): "missing",
        name.format(4): "truncated",
        name.format(8): "missing",
    }
    assert [one.name for one in done.redundant] == [name.format(8)]
    assert model.exists()


def test_without_its_dataset_a_tree_has_no_masks(tmp_path: Path, model: Path) -> None:
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    (tree / "state.json").unlink()
    assert "no loss mask" in refusal(tree, PRE, "speculators")
    done = put(tree, PRE, "speculators", dataset=dataset(tree))
    assert contents(done.store) == keyed("s{}")
    assert model.exists()


def test_a_damaged_dataset_is_refused(tmp_path: Path, model: Path) -> None:
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    (arrow,) = tree.glob("*.arrow")
    whole = arrow.read_bytes()
    arrow.write_bytes(whole[: len(whole) // 2])
    assert "not a readable Arrow file" in refusal(tree, PRE, "speculators")
    # Cut between two batches, Arrow sees nothing wrong.
    arrow.write_bytes(whole[:-8])
    assert "its end is missing" in refusal(tree, PRE, "speculators")
    for name in ("../x.arrow", "x\0"):
        (tree / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        assert "no file beside it" in refusal(tree, PRE, "speculators")
    for name in ("", "..", "link"):
        (tree / "link").unlink(missing_ok=True)
        (tree / "link").symlink_to(arrow)
        (tree / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        assert "no plain file" in refusal(tree, PRE, "speculators")
    assert model.exists()


@pytest.mark.parametrize("names", [("input_ids", "input_ids", "loss_mask"), ("input_ids", "mask")])
def test_a_dataset_without_one_column_of_each_is_refused(
    tmp_path: Path, model: Path, names: tuple[str, ...]
) -> None:
    pa = arrow_module()
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    (arrow,) = tree.glob("*.arrow")
    column = pa.array([[0, 1]], pa.list_(pa.int32()))
    batch = pa.record_batch([column] * len(names), names=list(names))
    with pa.ipc.new_stream(str(arrow), batch.schema) as stream:
        stream.write_batch(batch)
    assert "the dataset has" in refusal(tree, PRE, "speculators")
    assert model.exists()


def test_a_dataset_with_a_name_that_is_no_text_is_refused(tmp_path: Path, model: Path) -> None:
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    (arrow,) = tree.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes().replace(b"input_ids", b"input_\xff\xffs"))
    assert "not a readable Arrow file" in refusal(tree, PRE, "speculators")
    assert model.exists()


def test_states_of_another_width_than_the_model_s_are_refused(tmp_path: Path) -> None:
    weight = torch.linspace(2, 3, HIDDEN).bfloat16()
    write_model(tmp_path / "model", norm=weight)
    tree = write_speculators(tmp_path / "tree", SAMPLES)
    for path in tree.rglob("*.safetensors"):
        held = load_file(path)
        save_file(held | {"hidden_states": held["hidden_states"][..., ::2].contiguous()}, path)
    assert f"states of {HIDDEN // 2} values, not of {HIDDEN}" in refusal(tree, PRE, "speculators")


def test_a_tensor_s_name_with_half_a_character_makes_a_file_broken(tree: Path) -> None:
    path = specforge_path(tree, 1)
    held = torch.load(path)
    del held["loss_mask"]
    torch.save(held | {"\ud800": torch.ones(1)}, path)
    done = put(tree, dataset=dataset(tree))
    assert [(one.name, one.fault.kind) for one in done.left_out] == [
        ("rows_0-2000/data_1.ckpt", "pickle")
    ]


def test_no_sample_is_absent_for_want_of_descriptors(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, opened = dataset(tree), Filesystem.opened

    def opening(filesystem: Filesystem, path: Path, flags: int = os.O_RDONLY) -> Any:  # noqa: ANN401 - a context
        if path == specforge_path(tree, 20) and (tree.parent / "store").exists():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(filesystem, path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(Filesystem, "opened", opening)
        with pytest.raises(OSError, match="open files"):
            put(tree, dataset=given)
    done = put(tree, dataset=given)
    assert contents(done.store) == keyed("s{}")


# -- what a tree cannot say ------------------------------------------------------------------------


def test_layers_and_norm_are_never_guessed(tree: Path) -> None:
    assert "--layer-convention" in refusal(tree, Told("0,1,2", None, "post"))
    assert "--norm" in refusal(tree, Told("0,1,2", "specforge"))
    assert "4 layers are in a file" in refusal(tree, Told("0,1", "specforge", "post"))
    assert "contradict" in refusal(tree, Told("0,1,2,final", "specforge", "pre"))
    assert "last of a 4-block model" in refusal(tree, Told("1,2,3", "specforge", "post"))


def with_norm(tree: Path, weight: torch.Tensor, model: Path, *, more: float = 0) -> None:
    """A tree of which the last states are what an RMSNorm with this weight, and more, gives."""
    shutil.rmtree(tree)
    shutil.rmtree(model)
    write_model(model, norm=weight)
    weight = weight.bfloat16().float() + more
    for n, one in enumerate(SAMPLES):
        last = one.states[:, -1].float()
        last = last * (last.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
        states = torch.cat([one.states[:, :-1], last.bfloat16()[:, None]], 1)
        save(specforge_record(Drawn(one.ids, one.mask, states)), specforge_path(tree, n))


def test_the_weight_of_the_final_norm_proves_the_norm(tree: Path, model: Path) -> None:
    with_norm(tree, torch.rand(HIDDEN, generator=torch.Generator().manual_seed(1)) + 0.5, model)
    assert "weight of the model's final norm shows that they are after it" in refusal(
        tree, Told("0,1,2", "specforge", "pre")
    )
    done = put(tree, Told("0,1,2", "specforge"))
    assert done.store.identity.capture.layers[-1] == "final"
    assert done.norm_by == "the final norm's weight"


def test_a_norm_that_multiplies_by_one_more_is_one_too(tree: Path, model: Path) -> None:
    weight = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1)) / 10
    for zeros in (0, 2):
        weight[:zeros] = 0
        with_norm(tree, weight, model, more=1)
        assert put(tree, Told("0,1,2", "specforge")).norm_by == "the final norm's weight"
        shutil.rmtree(tree.parent / "store")


def test_a_weight_of_zeros_proves_nothing(tree: Path, model: Path) -> None:
    shutil.rmtree(model)
    write_model(model, norm=torch.zeros(HIDDEN))
    assert put(tree).norm_by == "told"


def test_the_weight_of_the_final_norm_refutes_a_norm(tree: Path, model: Path) -> None:
    shutil.rmtree(model)
    write_model(model, norm=torch.ones(HIDDEN))
    assert "not after it" in refusal(tree)
    assert "--norm" in refusal(tree, Told("0,1,2", "specforge"))
    assert put(tree, Told("0,1,2,final:pre", "specforge")).store.plan.samples == 23


def test_a_store_of_something_else_is_not_filled(tree: Path) -> None:
    store = put(tree, dataset=dataset(tree)).store
    other = dataset(tree, SAMPLES[::-1])
    for told, given in (
        (Told("0,1,2", "vllm", "post"), None),
        (Told("0,1,2", "specforge", "pre"), None),
        (POST, other),
    ):
        with pytest.raises(MalformedInput, match="the store"):
            put(tree, told, dataset=given)
    assert len(contents(store)) == 23


# -- interruptions ---------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading
from hsstore.interop.layout import TensorFormat
from hsstore_cli.main import main

read, calls, lock = TensorFormat.read, [0], threading.Lock()
def counted(self, file, hidden=None):
    with lock:
        calls[0] += 1
        if calls[0] == 14:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return read(self, file, hidden)
TensorFormat.read = counted
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 32), ("SIGKILL", -9)])
def test_an_interrupted_import_goes_on(tree: Path, name: str, code: int) -> None:
    beside = tree.parent
    command = ["import", "specforge", str(tree), str(beside / "store"), "--model"]
    command += [str(beside / "model"), "--layers", "0,1,2", "--layer-convention", "specforge"]
    command += ["--norm", "post", "--chunk-rows", "8", "--shard-rows", "64"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"},
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    held = contents(Store.open(beside / "store"))
    assert 0 < len(held) < 23
    finished = put(tree)
    assert contents(finished.store) == keyed("rows_0-2000/data_{}.ckpt")
    assert finished.extraction.samples_extracted < 23 - len(held) + 1
    assert list(fsck(finished.store.root)) == []


def test_stopping_while_the_tree_is_looked_at_writes_nothing(tree: Path) -> None:
    with pytest.raises(Stopped):
        put(tree, stop=lambda: True)
    assert not (tree.parent / "store").exists()


def test_a_tree_that_goes_away_is_no_damage(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmounted disk must not make every sample that is left absent for good."""
    read, calls = TensorFormat.read, [0]

    def going(self: TensorFormat, file: ForeignFile, hidden: int | None = None) -> Reading:
        calls[0] += 1
        if calls[0] == 14:
            tree.rename(tree.parent / "away")
        return read(self, file, hidden)

    monkeypatch.setattr(TensorFormat, "read", going)
    with pytest.raises(SourceUnavailable, match="can no longer be read"):
        put(tree)
    assert reasons(Store.open(tree.parent / "store")) == {}
    monkeypatch.undo()
    (tree.parent / "away").rename(tree)
    assert contents(put(tree).store) == keyed("rows_0-2000/data_{}.ckpt")


def test_a_file_that_changed_since_is_not_taken_for_the_sample(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TensorFormat.read

    def swapped(self: TensorFormat, file: ForeignFile, hidden: int | None = None) -> Reading:
        if file.row == 20:
            save(specforge_record(SAMPLES[3]), specforge_path(tree, 20))
        return read(self, file, hidden)

    monkeypatch.setattr(TensorFormat, "read", swapped)
    done = put(tree)
    assert reasons(done.store)["rows_0-2000/data_20.ckpt"][0] == "unmatched"
