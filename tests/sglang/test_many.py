"""Ten thousand short samples and fifty long ones: what the client holds does not grow."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest

from hsstore.demo.corpus import VOCABULARY
from hsstore.testing.sglang_server import SGLangServer

pytestmark = pytest.mark.sglang

SHORT, LONG, LONG_TOKENS = 10_000, 50, 1500
LAYERS = "1,2,3,final"
GROWTH_BYTES = 32 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    lengths = random.integers(1, 9, SHORT).tolist() + [LONG_TOKENS] * LONG
    random.shuffle(lengths)
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        for length in lengths:
            file.write(json.dumps({"input_ids": random.integers(0, VOCABULARY, length).tolist()}))
            file.write("\n")
    return path


def test_memory_files_and_spool_stay_small(
    prompts: Path,
    serve: Callable[..., SGLangServer],
    make_store: Callable[..., Path],
    spool: Path,
    begin: Callable[..., Popen[str]],
    verify: Callable[..., None],
) -> None:
    server = serve("0.5.23", layers=LAYERS)
    store = make_store(LAYERS, prompts=prompts, shard_rows=1 << 15)
    process = begin("extract", store, "--server", server.url, "--spool", spool,
                    "--concurrency", "16")  # fmt: skip
    memory, files, spooled = [], [], []
    while process.poll() is None:
        memory.append(resident(process.pid))
        files.append(descriptors(process.pid))
        spooled.append(sum(1 for _ in spool.iterdir()))
        time.sleep(0.25)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert len(memory) > 40, "too short to show growth"
    quarter = len(memory) // 4
    early, late = slice(quarter, 2 * quarter), slice(-quarter, -4)
    assert max(memory[late]) <= max(memory[early]) + GROWTH_BYTES
    assert max(files[late]) <= max(files[early]) + 8
    assert max(spooled) < 2000
    assert [path for path in spool.iterdir() if not path.name.startswith("hello.")] == []
    verify(store, SHORT + LONG)


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def descriptors(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0
