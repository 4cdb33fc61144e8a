"""What is in a store, one of its shards or one of its samples, as plain JSON values."""

import dataclasses
from typing import Any

from hsstore.errors import MalformedInput
from hsstore.model import keys
from hsstore.model.calibration import Calibration
from hsstore.model.geometry import Extent
from hsstore.model.manifest import AbsentSample, Chunk, Manifest, StoredSample
from hsstore.model.marker import Marker
from hsstore.model.waiver import Waiver
from hsstore.storage.calibrations import calibrations
from hsstore.storage.status import staged_samples
from hsstore.storage.store import Store
from hsstore.storage.waivers import waived, waivers


def describe_store(store: Store) -> dict[str, Any]:
    """Identity, geometry, plan and calibrations."""
    geometry, plan = store.identity.geometry, store.plan
    members = ("generation", "samples", "shards", "tokens", "dataset", "previous")
    return {
        **store.identity.to_document(),
        "geometry": {
            **dataclasses.asdict(geometry),
            "row_bytes": geometry.row_bytes,
            "chunk_bytes": geometry.chunk_bytes,
        },
        "plan": {name: getattr(plan, name) for name in members},
        "snapshot": store.snapshot_id(),
        "calibrations": [_calibration(found) for found in calibrations(store)],
    }


def _calibration(found: Calibration) -> dict[str, Any]:
    """What a calibration says, without its prompt and sketch."""
    return {
        "number": found.number,
        "when": found.when,
        "method": found.method,
        "engine": f"{found.engine.name} {found.engine.release}",
        "transport": found.engine.transport,
        "engine_layers": list(found.engine.layers),
        "norm": found.norm,
        "relative_error": [layer.relative_error for layer in found.agreement],
        "cosine": [layer.cosine for layer in found.agreement],
        "doubt": found.doubt,
    }


def describe_shard(store: Store, shard: int) -> dict[str, Any]:
    """A shard's samples, marker, manifest and origins; MalformedInput where there is no such."""
    if not 0 <= shard < store.plan.shards:
        raise MalformedInput(
            f"there is no shard {shard}: the store has shards 0 to {store.plan.shards - 1}",
            place=str(store.root),
        )
    samples, file = store.samples.shard_samples(shard), store.plan.token_files[shard]
    described: dict[str, Any] = {
        "shard": shard,
        "first_sample": samples.start,
        "samples": len(samples),
        "token_file": {"path": keys.tokens(file.generation, shard), "xxh3_128": file.xxh3_128},
        "committed": False,
    }
    if shard not in store.committed():
        return {**described, "staged": sorted(staged_samples(store, shard))}
    marker = store.marker(shard)
    manifest = store.manifest(marker)
    return {
        **described,
        "committed": True,
        "path": keys.shard_file(shard),
        "marker": {"path": marker.name, **marker.to_document()},
        "manifest": {"path": marker.manifest_name, "chunks": len(manifest.chunks)},
        "origins": [origin.to_document() for origin in manifest.origins],
        "stored": [{"sample": s.sample, "id": s.key, "rows": s.rows} for s in manifest.samples],
        "absent": _all_absent(store, manifest),
    }


def describe_sample(store: Store, name: str) -> dict[str, Any]:
    """Where a sample lies and what vouches for it.

    ``name`` is its key, or ``#`` and its global index. A key is looked for in one token file after
    the other. MalformedInput where there is no such sample.
    """
    extent = store.samples.extent(find_sample(store, name))
    tokens = store.tokens(extent.shard)
    described: dict[str, Any] = {
        "sample": extent.sample,
        "id": tokens.keys[extent.sample - tokens.first_sample],
        "tokens": extent.rows,
        "shard": extent.shard,
        "first_row": extent.first_row,
        "chunks": list(extent.chunk_range(store.identity.geometry)),
    }
    if extent.shard not in store.committed():
        is_staged = extent.sample in staged_samples(store, extent.shard)
        return {**described, "state": "staged" if is_staged else "missing"}
    marker = store.marker(extent.shard)
    return {**described, **_committed(store, extent, marker, store.manifest(marker))}


def _committed(store: Store, extent: Extent, marker: Marker, manifest: Manifest) -> dict[str, Any]:
    for absent in _all_absent(store, manifest):
        if absent["sample"] == extent.sample:
            return {"state": "waived" if absent.get("waived") else "absent", **absent}
    stored = next((s for s in manifest.samples if s.sample == extent.sample), None)
    if stored is None:
        return {"state": "unrecorded"}
    numbers = extent.chunk_range(store.identity.geometry)
    return {
        "state": "committed",
        "generation": marker.version.generation,
        "path": keys.shard_file(extent.shard),
        "stored_chunks": [_chunk(c) for c in manifest.chunks if c.chunk in numbers],
        **_vouched(store, stored),
        "origin": manifest.origins[stored.origin].to_document(),
    }


def _all_absent(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """The samples that a shard is committed without, each with its waiver where it has one."""
    accepted = waived(waivers(store), manifest.absent) if manifest.absent else {}
    return [_absent(absent, accepted.get(absent.sample)) for absent in manifest.absent]


def _absent(absent: AbsentSample, waiver: Waiver | None) -> dict[str, Any]:
    told = {**absent.to_document(), "attempts": list(absent.tried())}
    return told | ({"waived": f"{waiver.when}: {waiver.reason}"} if waiver else {})


def _vouched(store: Store, stored: StoredSample) -> dict[str, Any]:
    figures = stored.statistics
    layers = zip(store.identity.capture.layers, figures.median_norm, figures.max_abs, strict=False)
    return {
        "content_xxh3_128": stored.content,
        "previous_xxh3_128": stored.previous,
        "statistics": {
            "rows": figures.rows,
            "layers": [
                {"layer": layer, "median_norm": norm, "max_abs": peak}
                for layer, norm, peak in layers
            ],
        },
    }


def _chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "chunk": chunk.chunk,
        "byte_range": [chunk.offset, chunk.offset + chunk.length],
        "xxh3_64": chunk.xxh3_64,
    }


def find_sample(store: Store, name: str) -> int:
    """The global index of a sample by key or ``#index``."""
    digits = name[1:]
    if name.startswith("#") and digits.isascii() and digits.isdecimal():
        if int(digits) < store.plan.samples:
            return int(digits)
    else:
        for shard in range(store.plan.shards):
            tokens = store.tokens(shard)
            if name in tokens.keys:
                return tokens.first_sample + tokens.keys.index(name)
    raise MalformedInput(
        f"there is no sample {name!r} among the store's {store.plan.samples}",
        place=str(store.root),
        remedy="give its id, or # and its number, counted from 0",
    )
