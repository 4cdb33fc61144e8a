"""Power cuts after every operation of every kind of work, by a model of what a disk may hold then.

In each state all that is committed is right, all that was promised is there, and the same command
ends as if nothing had happened.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.testing.aftermath import Promises, Stage, recorded
from hsstore.testing.scenarios import (
    ADOPT,
    EXTRACT,
    REPLACE,
    REPLAY,
    ROLL_FORWARD,
    SALVAGE,
    SCENARIOS,
    Scenario,
)
from hsstore.testing.thinning import visited

CODECS = ("none", "blosc-zstd")
# The codec makes no difference to work that writes no samples.
BOTH_CODECS = (EXTRACT, ADOPT, SALVAGE, ROLL_FORWARD, REPLACE, REPLAY)
SMALL = [(EXTRACT, "none"), (REPLACE, "blosc-zstd")]
ALL = [
    *(pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in SMALL),
    *(
        pytest.param(scenario, codec, id=f"{scenario}-{codec}", marks=pytest.mark.sweep)
        for scenario in SCENARIOS
        for codec in CODECS
        if (scenario, codec) not in SMALL and (codec == "none" or scenario in BOTH_CODECS)
    ),
]


@pytest.mark.parametrize(("scenario", "codec"), ALL)
def test_after_any_power_cut_nothing_is_lost_and_the_same_command_goes_on(
    tmp_path: Path,
    scenario: Scenario,
    codec: str,
    record_property: Callable[[str, object], None],
) -> None:
    stage = Stage.of(scenario, tmp_path, codec)
    filesystem, witness = recorded(stage)
    states = list(filesystem.states.items())
    for at in (moments := visited(len(states))):
        state, cut = states[at]
        stage.put(state)
        stage.check(Promises.by(witness, cut), other_boot=at % 2 == 1)
    counts = {"operations": filesystem.operations, "crash states": len(moments)}
    print(f"{scenario}, {codec}: {counts}, 0 violations")  # noqa: T201 - for CI's log
    for name, count in counts.items():
        record_property(name, count)
    assert len(states) > filesystem.operations / 2
