import errno
import pickle

import pytest

from hsstore import errors
from hsstore.errors import HsstoreError, OutOfSpace, SampleDamaged, StorageFailed


def classes(base: type[HsstoreError]) -> list[type[HsstoreError]]:
    return [base, *(found for child in base.__subclasses__() for found in classes(child))]


ALL = sorted(set(classes(HsstoreError)), key=lambda c: c.__name__)


@pytest.mark.parametrize("error", ALL)
def test_every_error_survives_pickling(error: type[HsstoreError]) -> None:
    back = pickle.loads(pickle.dumps(error("what", place="where", remedy="next")))  # noqa: S301
    assert type(back) is error
    assert (back.message, back.place, back.remedy) == ("what", "where", "next")
    assert str(back) == "where: what; next"


def test_kinds_are_unique_and_in_the_overview() -> None:
    assert len({error.kind for error in ALL}) == len(ALL)
    assert errors.__doc__ is not None
    assert all(error.__name__ in errors.__doc__ for error in ALL)


def test_place_and_remedy_may_be_missing() -> None:
    assert str(SampleDamaged("what")) == "what"
    assert str(SampleDamaged("what", remedy="next")) == "what; next"


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.ENOSPC, OutOfSpace, "free space"),
        (errno.EDQUOT, OutOfSpace, "free space"),
        (errno.EFBIG, OutOfSpace, "ulimit -f"),
        (errno.EROFS, StorageFailed, "read-only"),
        (errno.EACCES, StorageFailed, "permissions"),
        (errno.EIO, StorageFailed, "dmesg"),
        (errno.ENOENT, StorageFailed, "moved away or mounted over"),
        (errno.EMFILE, StorageFailed, "ulimit -n"),
        (errno.ENXIO, StorageFailed, None),
    ],
)
def test_what_the_system_said_becomes_one_line(
    code: int, kind: type[StorageFailed], remedy: str | None
) -> None:
    error = StorageFailed.from_os(OSError(code, "it said", "/some/file"))
    assert type(error) is kind
    assert str(error).startswith("/some/file: it said")
    assert (remedy in error.remedy) if remedy and error.remedy else error.remedy is remedy


def test_an_error_without_number_or_path_is_told_too() -> None:
    assert str(StorageFailed.from_os(OSError("odd"))) == "odd"
    assert type(OutOfSpace.from_os(OSError(errno.ENOSPC, "full"))) is OutOfSpace
