"""Where in the code a sync is made, and of what: enough to leave out just that one."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple


class Site(NamedTuple):
    """A sync by the function that asks for it and the role of the file or folder."""

    function: str
    role: str

    def matches(self, pattern: str) -> bool:
        """Whether it is one of the sites that a pattern of the shell stands for."""
        return fnmatchcase(str(self), pattern)

    def __str__(self) -> str:
        return f"{self.function}: {self.role}"


def role(path: Path) -> str:
    """A path below the folder of a store without what differs from run to run.

    S stands for a number, W for a writer, A for one of the arrays of tokens and samples, and a
    temporary file has no mark. The store itself is ``.`` and the folder that it lies in is ``..``.
    """
    if not path.parts:
        return ".."
    name = "/".join(path.parts[1:]) or "."
    name = re.sub(r"(/\.[^/]+)\.[0-9a-f]{8}$", r"\1", f"/{name}")[1:]
    name = re.sub(r"(?<=\.)[0-9a-f]{16}", "W", name)
    name = re.sub(r"(?<=W)\.[0-9a-f]{8}", ".M", name)
    name = re.sub(r"(?<=states.zarr/)(input_ids|loss_mask|sample_[a-z]+)", "A", name)
    return re.sub(r"[0-9]+", "S", name)
