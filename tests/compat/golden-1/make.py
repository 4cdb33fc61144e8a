"""How the golden stores of format 1 were made: ``PYTHONPATH=. python make.py`` in a checkout.

They are what a released hsstore wrote, so they are never made again for the same format: a change
that needs them made again is a change of the format. An archive, because git keeps neither empty
folders nor holes in files. In each store a sample is absent and a shard was replaced once.
"""

import json
import tarfile
import tempfile
from pathlib import Path

import xxhash

from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing.stores import empty_store, fill, key_of, replace

HERE = Path(__file__).parent
LENGTHS = [5, 3, 9, 16, 1, 2, 11]
ABSENT, REPLACED = 3, 0
STORES = (("bfloat16", "none"), ("float16", "blosc-zstd"), ("float32", "none"))


def make(folder: Path, dtype: str, codec: str) -> Store:
    """A filled store: sample ABSENT is absent, shard REPLACED is in its second generation."""
    store = empty_store(folder / "store", LENGTHS, hidden_size=24, dtype=dtype, codec=codec)
    fill(store, failing={key_of(ABSENT): "cannot be had"})
    replace(store, REPLACED)
    return store


def contents(store: Store) -> dict[str, str | None]:
    """The xxh3_128 of every sample's rows in dataset order by key, None where it is absent."""
    reader = Reader(store)
    found: dict[str, str | None] = {}
    for sample in range(len(LENGTHS)):
        if sample != ABSENT:
            rows = reader.read(sample, verify=True)
            found[key_of(sample)] = xxhash.xxh3_128_hexdigest(rows.tobytes())
        else:
            found[key_of(sample)] = None
    return found


def main() -> None:
    """Write an archive of each store, and what they hold."""
    expected = {}
    for dtype, codec in STORES:
        name = f"{dtype}-{codec}"
        with tempfile.TemporaryDirectory() as folder:
            store = make(Path(folder), dtype, codec)
            with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(store.root, "store")
            identity = store.identity
            expected[name] = {"uuid": identity.uuid, "samples": contents(store)}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
