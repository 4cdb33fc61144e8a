"""Every path of the format, relative to the root of the store, and how to read one back."""

import re
from collections.abc import Iterable
from typing import NamedTuple

IDENTITY = "hsstore.json"
BALLAST = "ballast"
ZARR = "states.zarr"
PLAN, MANIFEST, COMMIT, INTENT = "plan", "manifest", "commit", "intent"
CLAIM, STAGE, QUARANTINE, WAIVER = "claim", "stage", "quarantine", "waiver"
CALIBRATION = "calibration"
FOLDERS = (PLAN, ZARR, MANIFEST, COMMIT, INTENT, CLAIM, STAGE, QUARANTINE, WAIVER, CALIBRATION)
# Stores of the first days have none of these; they are made with the first thing in them.
LATER_FOLDERS = frozenset({CALIBRATION})

HIDDEN_STATES, INPUT_IDS, LOSS_MASK = "hidden_states", "input_ids", "loss_mask"
SAMPLE_START, SAMPLE_LENGTH, SAMPLE_DIGEST = "sample_start", "sample_length", "sample_digest"

GROWTH = 99_999_999
"""What claims name in place of a shard to say who grows the store; no shard has this number."""

STAGED_DATA, STAGED_JOURNAL, STAGED_HOLDER = "data", "journal", "holder"
STAGED_SPARE = ".data"
"""The second name of a staged file that replaces another."""


class ShardVersion(NamedTuple):
    """A name in commit/, manifest/ or intent/: which shard, which generation of it."""

    shard: int
    generation: int


def plan(generation: int) -> str:
    """The plan document of a generation."""
    return f"{PLAN}/{generation:08d}.json"


def tokens(generation: int, shard: int) -> str:
    """The token file (npz) of a shard that the plan of ``generation`` added."""
    return f"{token_folder(generation)}/{shard:08d}.npz"


def token_folder(generation: int) -> str:
    """The folder of the token files that the plan of ``generation`` added."""
    return f"{PLAN}/{generation:08d}"


def growth(generation: int, writer: str) -> str:
    """Where one writer prepares the plan of ``generation``; a temporary name to all others."""
    return f"{PLAN}/.{generation:08d}.{writer}"


def zarr_metadata(array: str | None = None) -> str:
    """The zarr.json of an array, or of the root group."""
    return f"{ZARR}/{array}/zarr.json" if array else f"{ZARR}/zarr.json"


def shard_file(shard: int) -> str:
    """The payload of a shard: one Zarr shard file."""
    return f"{ZARR}/{HIDDEN_STATES}/c/{shard}/0/0"


def array_chunk(array: str, chunk: int) -> str:
    """A chunk of one of the other arrays (all have a single chunked dimension)."""
    second = "/0" if array == SAMPLE_DIGEST else ""
    return f"{ZARR}/{array}/c/{chunk}{second}"


def manifest(version: ShardVersion, writer: str) -> str:
    """A manifest; its name is unique to the attempt that wrote it."""
    return f"{MANIFEST}/{_stem(version)}.{writer}.json"


def marker(version: ShardVersion, *, absent: bool) -> str:
    """A commit marker; its name says whether samples of the shard are absent."""
    return f"{COMMIT}/{_stem(version)}{'.absent' if absent else ''}.json"


def intent(version: ShardVersion) -> str:
    """The intent to replace a committed shard by this generation."""
    return f"{INTENT}/{_stem(version)}.json"


def claim(shard: int, turn: int) -> str:
    """The claim of a shard; a takeover publishes the next turn."""
    return f"{CLAIM}/{shard:08d}-{turn:06d}.json"


def stage(shard: int, writer: str) -> str:
    """The staging folder of one writer for one shard."""
    return f"{STAGE}/{shard:08d}.{writer}"


def fenced(shard: int, writer: str, mark: str) -> str:
    """What a takeover renames the staging folder of an earlier writer to; ``mark`` is random."""
    return f"{stage(shard, writer)}.{mark}"


def calibration(number: int) -> str:
    """A calibration document; numbers begin at 0."""
    return f"{CALIBRATION}/{number:08d}.json"


def waiver(sample: int) -> str:
    """The waiver of a sample, by its number in the store."""
    return f"{WAIVER}/{sample:012d}.json"


def quarantined_file(shard: int, inode: int) -> str:
    """Where a whole shard file that nothing vouches for is set aside."""
    return f"{QUARANTINE}/{shard:08d}.unmarked.{inode}"


def quarantined_stage(shard: int, inode: int) -> str:
    """Where a staging folder is set aside that holds other things than plain files."""
    return f"{QUARANTINE}/{shard:08d}.staged.{inode}"


def read_plan(name: str) -> int | None:
    """The generation of a name in plan/, None for another name."""
    found = re.fullmatch(r"([0-9]{8})\.json", name)
    return int(found[1]) if found else None


def read_calibration(name: str) -> int | None:
    """The number of a name in calibration/, None for another name."""
    return read_plan(name)


def read_waiver(name: str) -> int | None:
    """The sample of a name in waiver/, None for another name."""
    found = re.fullmatch(r"([0-9]{12})\.json", name)
    return int(found[1]) if found else None


def read_token_folder(name: str) -> int | None:
    """The generation of a folder of token files in plan/, None for another name."""
    return int(name) if re.fullmatch(r"[0-9]{8}", name) else None


def is_growth(name: str) -> bool:
    """Whether a name in plan/ is of a growth that somebody prepares or prepared, fenced or not."""
    return _GROWTH.fullmatch(name) is not None


def read_marker(name: str) -> tuple[ShardVersion, bool] | None:
    """Version and absent flag of a name in commit/, None for another name."""
    found = _MARKER.fullmatch(name)
    return (ShardVersion(int(found[1]), int(found[2])), bool(found[3])) if found else None


def read_manifest(name: str) -> tuple[ShardVersion, str] | None:
    """Version and writer of a name in manifest/, None for another name."""
    found = _MANIFEST.fullmatch(name)
    return (ShardVersion(int(found[1]), int(found[2])), found[3]) if found else None


def read_intent(name: str) -> ShardVersion | None:
    """The version of a name in intent/, None for another name."""
    found = _INTENT.fullmatch(name)
    return ShardVersion(int(found[1]), int(found[2])) if found else None


def read_claim(name: str) -> tuple[int, int] | None:
    """Shard and turn of a name in claim/, None for another name."""
    found = _CLAIM.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def read_stage(name: str) -> tuple[int, str] | None:
    """Shard and writer of a name in stage/, fenced or not; None for another name."""
    found = _STAGE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def is_fenced(name: str) -> bool:
    """Whether a takeover has renamed the staging folder, or that of a growth, of that name."""
    found = _STAGE.fullmatch(name) or _GROWTH.fullmatch(name)
    return bool(found and found[found.re.groups])


def of_shard(names: Iterable[str], shard: int) -> list[str]:
    """Those of the names in a folder of shards' documents that can be of a shard, for little.

    Reading all of them for each of many shards takes longest of all.
    """
    digits = f"{shard:08d}"
    hidden = f".{digits}"
    return [name for name in names if name.startswith((digits, hidden))]


def read_temporary(name: str) -> int | None:
    """The shard of a temporary name in a folder of shards' documents, None for another name."""
    found = _TEMPORARY.fullmatch(name)
    return int(found[1]) if found else None


def _stem(version: ShardVersion) -> str:
    return f"{version.shard:08d}-{version.generation:06d}"


_GROWTH = re.compile(r"\.[0-9]{8}\.[0-9a-f]{16}(\.[0-9a-f]{8})?")
_MARKER = re.compile(r"([0-9]{8})-([0-9]{6})(\.absent)?\.json")
_MANIFEST = re.compile(r"([0-9]{8})-([0-9]{6})\.([0-9a-f]{16})\.json")
_INTENT = re.compile(r"([0-9]{8})-([0-9]{6})\.json")
_CLAIM = re.compile(r"([0-9]{8})-([0-9]{6})\.json")
_STAGE = re.compile(r"([0-9]{8})\.([0-9a-f]{16})(\.[0-9a-f]{8})?")
_TEMPORARY = re.compile(r"\.([0-9]{8})-.*")
