import struct
from pathlib import Path

from hsstore.extraction.sglang.launch import launch
from hsstore.model.capture import Capture
from hsstore.model.identity import StoreIdentity
from hsstore.storage.model_files import read_model


def test_a_folder_with_a_gguf_file_alone_is_launched_by_its_model_type(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(gguf())
    model = read_model(tmp_path)
    identity = StoreIdentity("0" * 32, "now", model, Capture((1, "final"), "float32"), 1, 2, "none")
    made = launch(identity, "0.5.23", spool=tmp_path, model_path=str(tmp_path))
    assert made.arguments[2:4] == ("--model-path", str(tmp_path))


def gguf() -> bytes:
    """A header alone, with a float that is no UTF-8."""
    fields = [
        (b"general.architecture", 8, struct.pack("<Q", 5) + b"llama"),
        (b"llama.block_count", 4, struct.pack("<I", 3)),
        (b"llama.embedding_length", 4, struct.pack("<I", 32)),
        (b"llama.vocab_size", 4, struct.pack("<I", 9)),
        (b"llama.rope.freq_base", 6, b"\xff\xff\x7f\x41"),
    ]
    body = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value
        for name, kind, value in fields
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + body
