"""What the exit status of ``hsstore`` means; those of fsck(8), where it has one."""

OK = 0
CORRECTED = 1
USAGE = 2
PROBLEMS = 4
FAILED = 8
STOPPED = 32
STALLED = 75

ANY_COMMAND = {
    USAGE: "wrong usage",
    FAILED: "failed; one line on stderr says why",
    STOPPED: "stopped before the end, with nothing wrong so far",
    STALLED: "the storage did not answer; one line on stderr says what it was asked",
}
"""The codes that every command may end with, and what they say there."""
