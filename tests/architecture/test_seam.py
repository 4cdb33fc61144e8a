"""Nothing but the seam touches what is inside a store, as seen by Python's own audit events."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Runs every kind of work with the plain filesystem, and prints who touched the store past the seam.
PROGRAM = """
import json, os, sys, tempfile
from pathlib import Path
from hsstore.integrity.fsck import fsck
from hsstore.storage.filesystem import Filesystem
from hsstore.testing.aftermath import Stage, small_syncs
from hsstore.testing.scenarios import SCENARIOS, Witness, store_in

package = str(Path(sys.argv[1]) / "hsstore")
inside, seen, past = [], set(), set()

def watch(event, arguments):
    if not inside or not (event == "open" or event.startswith(("os.", "shutil."))):
        return
    paths = [os.fsdecode(a) for a in arguments if isinstance(a, (str, bytes, os.PathLike))]
    if not any(path.startswith(inside[0]) for path in paths):
        return
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    module = Path(frame.f_code.co_filename).stem if frame is not None else "?"
    seen.add(event)
    if module != "filesystem":
        past.add(f"{module}: {event}")

sys.addaudithook(watch)
for scenario in SCENARIOS:
    with tempfile.TemporaryDirectory() as place, small_syncs():
        stage = Stage.of(scenario, Path(place), "none")
        stage.put(stage.start)
        filesystem = Filesystem()
        witness = Witness(filesystem)
        # Until it has its name, the store is beside it.
        there = store_in(stage.folder).exists()
        inside.append(str(stage.folder / ("store" if there else ".store")))
        scenario.work(stage.folder, filesystem, witness)
        [*fsck(store_in(stage.folder), threads=1)]
        inside.clear()
print(json.dumps([sorted(seen), sorted(past)]))
"""

# A store under construction is not one yet: its folder is made, and removed, beside the seam.
EXPECTED = {"building: os.mkdir", "building: os.listdir"}
OPERATIONS = {"open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def test_all_that_is_done_inside_a_store_goes_through_the_seam() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ROOT],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen, past = json.loads(done.stdout)
    assert set(seen) >= OPERATIONS
    assert set(past) == EXPECTED
