"""Reports of fsck as files: read back as the untrusted input that they are."""

import os
from pathlib import Path

from hsstore.errors import MalformedInput, StorageFailed
from hsstore.model.report import NO_REPORT, Report, parse

LARGEST_BYTES = 1 << 30


def read_report(path: str | os.PathLike[str]) -> Report:
    """The report in a file, proven to be whole as far as it goes.

    ``report.summary`` is None where its run did not end: it says nothing of the shards that are
    not in ``report.checked``. Raises MalformedInput for what is no report of fsck, torn or edited;
    StorageFailed where it cannot be read.
    """
    place = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise StorageFailed.from_os(error) from None
    if len(raw) > LARGEST_BYTES:
        raise MalformedInput("too large for a report", place=place, remedy=NO_REPORT)
    return parse(raw, place)
