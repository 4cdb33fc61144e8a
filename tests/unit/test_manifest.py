import math
from dataclasses import replace

import pytest

from hsstore.errors import InvalidDocument
from hsstore.model.document import seal, unseal
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import (
    KIND,
    AbsentSample,
    Chunk,
    Manifest,
    Statistics,
    StoredSample,
    bits_float,
    float_bits,
)
from hsstore.model.source import Origin

MANIFEST = Manifest(
    store="0" * 32,
    version=ShardVersion(4, 2),
    writer="1" * 16,
    data_bytes=100,
    index_xxh3_64="2" * 16,
    chunks=(Chunk(0, 0, 32, "3" * 16), Chunk(3, 32, 32, "4" * 16)),
    samples=(StoredSample(9, "ä", 0, 3, "5" * 32, Statistics(3, (1.5, math.nan), (0.0, 2.0)), 0),),
    absent=(AbsentSample(10, "b", 4, 2, "non-finite", "row 1", ("a", "b")),),
    origins=(Origin({"weights": None}, {"engine": "a"}),),
)


def test_a_manifest_round_trips() -> None:
    raw = seal(MANIFEST.to_document())
    back = Manifest.from_document(unseal(raw, KIND))
    assert seal(back.to_document()) == raw
    assert back.absent == MANIFEST.absent
    assert back.chunks == MANIFEST.chunks
    assert math.isnan(back.samples[0].statistics.median_norm[1])


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324])
def test_floats_travel_as_their_bits(value: float) -> None:
    assert math.copysign(1, bits_float(float_bits(value))) == math.copysign(1, value)
    assert bits_float(float_bits(value)) == value


def test_the_bits_are_big_endian() -> None:
    assert float_bits(1.0) == "3ff0000000000000"


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        ([0, 0, 32], r"chunks\[0\].xxh3_64: missing"),
        ([0, 0, 0, "0" * 16], r"chunks\[0\].length: 0 is below 1"),
        ([-1, 0, 1, "0" * 16], r"chunks\[0\].chunk: -1 is below 0"),
        ([0, 0, 1, "x"], r"chunks\[0\].xxh3_64: not 16"),
        ({}, r"chunks\[0\]: not an array"),
    ],
)
def test_chunks_are_checked(chunk: object, told: str) -> None:
    document = {**MANIFEST.to_document(), "seal": "0" * 32, "chunks": [chunk]}
    with pytest.raises(InvalidDocument, match=told):
        Manifest.from_document(document)


def test_a_chunk_with_too_many_members_is_refused() -> None:
    chunk = [0, 0, 1, "0" * 16, "more"]
    document = {**MANIFEST.to_document(), "seal": "0" * 32, "chunks": [chunk]}
    with pytest.raises(InvalidDocument, match=r"chunks\[0\]"):
        Manifest.from_document(document)


def test_all_problems_are_named() -> None:
    document = replace(MANIFEST, writer="x", data_bytes=0).to_document()
    with pytest.raises(InvalidDocument, match=r"here: .*writer: .*data_bytes: 0 is below 1"):
        Manifest.from_document({**document, "seal": "0" * 32}, place="here")
