"""SpecForge and speculators on this machine's CPU, and the states that they train from."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsstore.model.capture import Layer
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Request
from hsstore.testing.sources import SeededSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "trainers"
RECORDED: tuple[Layer, ...] = (2, 4, 5, "final:pre", "final")  # as their_trees.py stacks them
LIMIT_SECONDS = 600


def run_trainer(program: str, *words: object, fails: bool = False) -> str:
    """Run a program of the trainers' environment; what it prints on stdout.

    The environment is what tests/trainers/install.sh made in the folder HSSTORE_TRAINERS
    (build/trainers by default). With ``fails`` it must, and what it prints on stderr is returned.
    """
    folder = Path(os.environ.get("HSSTORE_TRAINERS", ROOT / "build" / "trainers"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS / "on_cpu", ROOT))),
        "SPECFORGE_DEVICE": "cpu",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(  # noqa: S603 - the tests spell the command out
        [folder / "bin" / program, *map(str, words)],
        env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert bool(done.returncode) == fails, done.stderr
    return done.stderr if fails else done.stdout


class RecordedStates(SeededSource):
    """Answers with the states that tests/trainers/their_trees.py kept in ``states.npz``.

    ``failing`` names the keys that cannot be had, and why.
    """

    def __init__(
        self, identity: StoreIdentity, kept: Path, failing: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(identity, failing)
        self._kept: dict[str, NDArray[np.uint16]] = dict(np.load(kept))
        self._layers = [RECORDED.index(layer) for layer in identity.capture.layers]

    def answer(self, request: Request) -> Extracted | Failed:
        """The states of the store's layers, bit for bit."""
        if request.key in self.failing:
            return super().answer(request)
        states = self._kept[str(request.sample)][:, self._layers]
        return Extracted(request.sample, np.ascontiguousarray(states))
