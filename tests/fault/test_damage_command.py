"""Damage found by ``hsstore fsck`` and mended by the very command that it prints, with a model."""

import json
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hsstore.demo.corpus import write_dataset
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model import keys
from hsstore.model.source import Request
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.stores import contents
from hsstore_cli.main import main

SAMPLES, PAGE = 16, 4096
TO_MEND = "To mend it: "


@pytest.fixture(scope="module")
def filled(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    write_dataset(folder / "dataset.jsonl", SAMPLES)
    capture = ["--model", str(demo_model), "--layers", "1,2,final", "--dtype", "bfloat16"]
    geometry = ["--chunk-rows", "64", "--shard-rows", "1024"]
    root = folder / "store"
    options = ["--dataset", str(folder / "dataset.jsonl"), *capture, *geometry]
    assert main(["create", str(root), *options]) == 0
    shutil.copytree(root, folder / "unfinished")
    for target, shards in ((root, []), (folder / "unfinished", ["--shards", "0-1"])):
        source = ["--source", f"transformers:{demo_model}"]
        assert main(["extract", str(target), *source, *shards]) == 0
    assert Store.open(root).plan.shards >= 4
    return root


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the samples that went through the model."""
    asked: list[str] = []
    forward = TransformersSource._forward

    def counting(self: TransformersSource, group: list[Request]) -> list[Tensor]:
        asked.extend(request.key for request in group)
        return forward(self, group)

    monkeypatch.setattr(TransformersSource, "_forward", counting)
    return asked


def hurts(store: Store, shard: int, numbers: random.Random) -> list[Callable[[], object]]:
    path = store.root / keys.shard_file(shard)
    size = path.stat().st_size
    return [
        lambda: damage.flip_bit(path, numbers.randrange(size), numbers.randrange(8)),
        lambda: damage.resize(path, -numbers.randrange(1, size)),
        path.unlink,
        (store.root / store.marker(shard).name).unlink,
        lambda: damage.zero(path, numbers.randrange(size) // PAGE * PAGE, PAGE),
    ]


def lost_samples(sound: Store, hurt: Path, shard: int) -> set[str]:
    """The samples whose stored bytes changed, by comparing the files."""
    before = (sound.root / keys.shard_file(shard)).read_bytes()
    left = hurt / keys.shard_file(shard)
    after = left.read_bytes() if left.exists() else b""
    manifest = sound.manifest(sound.marker(shard))
    changed = {
        chunk.chunk
        for chunk in manifest.chunks
        if before[chunk.offset :][: chunk.length] != after[chunk.offset :][: chunk.length]
    }
    geometry, table = sound.identity.geometry, sound.samples
    return {
        sample.key
        for sample in manifest.samples
        if changed & set(table.extent(sample.sample).chunk_range(geometry))
    }


def keys_of(store: Store, shards: range) -> set[str]:
    return {key for shard in shards for key in store.tokens(shard).keys}


def mend(command: str, model: Path) -> int:
    """Type the command that fsck printed."""
    words = shlex.split(command.replace("PATH", shlex.quote(str(model))))
    assert words.pop(0) == "hsstore"
    return main(words)


@pytest.mark.parametrize(
    ("seed", "unfinished"), [*((n, False) for n in range(20)), *((n, True) for n in range(20, 25))]
)
def test_the_printed_command_mends_it_with_the_least_work(
    filled: Path, demo_model: Path, tmp_path: Path, computed: list[str],
    capsys: pytest.CaptureFixture[str], seed: int, *, unfinished: bool,
) -> None:  # fmt: skip
    sound, numbers = Store.open(filled), random.Random(seed)  # noqa: S311 - a seeded choice
    template = filled.parent / "unfinished" if unfinished else filled
    root = shutil.copytree(template, tmp_path / "store")
    store = Store.open(root)
    committed = sorted(store.committed())
    shard = numbers.choice(committed)
    hurts(store, shard, numbers)[seed % 5]()
    missing = range(len(committed), store.plan.shards)
    lost = lost_samples(sound, root, shard)
    wanted = lost | keys_of(store, missing)

    assert main(["fsck", str(root), "--json"]) == 4
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    findings = [line for line in lines if line["type"] == "finding"]
    named = {key for finding in findings for key in finding["samples"] or ()}
    assert named >= lost
    assert named <= keys_of(store, range(shard, shard + 1)) | keys_of(store, missing)
    assert named
    assert {f["shard"] for f in findings} == {shard, *missing}
    assert main(["fsck", str(root)]) == 4
    *_, last = said = capsys.readouterr().out.splitlines()
    assert any("not extracted yet" in line for line in said) == unfinished
    assert last.startswith(f"{TO_MEND}hsstore repair {root} ")
    assert ("--source" in last) == bool(wanted)

    assert mend(last.removeprefix(TO_MEND), demo_model) == 1
    assert sorted(computed) == sorted(wanted)
    assert main(["fsck", str(root)]) == 0
    assert contents(Store.open(root)) == contents(sound)
