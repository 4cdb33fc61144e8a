from collections.abc import Callable

import pytest

from hsstore.model import keys
from hsstore.model.keys import ShardVersion

VERSION = ShardVersion(12, 3)
WRITER = "0123456789abcdef"


@pytest.mark.parametrize(
    ("path", "read", "value"),
    [
        (keys.plan(7), keys.read_plan, 7),
        (keys.marker(VERSION, absent=False), keys.read_marker, (VERSION, False)),
        (keys.marker(VERSION, absent=True), keys.read_marker, (VERSION, True)),
        (keys.manifest(VERSION, WRITER), keys.read_manifest, (VERSION, WRITER)),
        (keys.intent(VERSION), keys.read_intent, VERSION),
        (keys.claim(12, 3), keys.read_claim, (12, 3)),
        (keys.stage(12, WRITER), keys.read_stage, (12, WRITER)),
    ],
)
def test_names_can_be_read_back(path: str, read: Callable[[str], object], value: object) -> None:
    name = path.rpartition("/")[2]
    assert read(name) == value
    # Digits of another script are digits to Python, but nobody's canonical name.
    thai = name.replace("0", "\N{THAI DIGIT ZERO}", 1)
    for other in ("", f".{name}.1a2b3c4d", f"{name}~", f"{name}\n", name[1:], f"0{name}", thai):
        assert read(other) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (keys.tokens(1, 2), "plan/00000001/00000002.npz"),
        (keys.shard_file(12), "states.zarr/hidden_states/c/12/0/0"),
        (keys.array_chunk(keys.INPUT_IDS, 3), "states.zarr/input_ids/c/3"),
        (keys.array_chunk(keys.SAMPLE_DIGEST, 3), "states.zarr/sample_digest/c/3/0"),
        (keys.zarr_metadata(), "states.zarr/zarr.json"),
        (keys.zarr_metadata("loss_mask"), "states.zarr/loss_mask/zarr.json"),
        (keys.quarantined_file(1, 99), "quarantine/00000001.unmarked.99"),
    ],
)
def test_paths_are_those_of_the_format(path: str, expected: str) -> None:
    assert path == expected


def test_every_folder_of_a_path_is_listed() -> None:
    assert {"plan", "manifest", "commit", "intent", "claim", "stage"} < set(keys.FOLDERS)
    assert len(set(keys.FOLDERS)) == len(keys.FOLDERS)


def test_versions_are_ordered_by_shard_then_generation() -> None:
    assert ShardVersion(1, 9) < ShardVersion(2, 1) < ShardVersion(2, 2)
