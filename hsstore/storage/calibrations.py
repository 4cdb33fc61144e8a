"""The calibrations of a store: what its servers proved, read and added to."""

from hsstore.errors import InvalidDocument
from hsstore.model import commands, keys
from hsstore.model.calibration import KIND, Calibration
from hsstore.model.document import seal, unseal
from hsstore.model.identity import StoreIdentity
from hsstore.storage.store import Store


def calibrations(store: Store) -> list[Calibration]:
    """All of them, in the order of their numbers.

    InvalidDocument for one that is not whole, not of this store or not of its name.
    """
    return [read_calibration(store, number) for number in _numbers(store)]


def read_calibration(store: Store, number: int) -> Calibration:
    """One calibration, proven whole and of this store."""
    path = store.root / keys.calibration(number)
    remedy = f"run: {commands.hsstore('fsck', store.root)}"
    try:
        document = unseal(store.filesystem.read(path), KIND, place=str(path))
        found = Calibration.from_document(document, place=str(path))
    except InvalidDocument as error:
        raise InvalidDocument(error.message, place=error.place, remedy=remedy) from None
    if (problem := misplaced(found, store.identity, number)) is not None:
        raise InvalidDocument(problem, place=str(path), remedy=remedy)
    return found


def misplaced(found: Calibration, identity: StoreIdentity, number: int) -> str | None:
    """Why a calibration cannot be the one of that number in a store, None where it can."""
    if (found.store, found.number) != (identity.uuid, number):
        return "it belongs to another store or number"
    if found.layers != identity.capture.layers:
        return "it is of other layers than the store's"
    if max(found.input_ids) >= identity.model.vocab_size:
        return "its prompt holds a token that the model does not have"
    return None


def publish_calibration(store: Store, calibration: Calibration) -> None:
    """Add one under its number; FileExistsError where another came first, OSError."""
    folder = store.root / keys.CALIBRATION
    store.filesystem.make_folder(folder)
    path = store.root / keys.calibration(calibration.number)
    store.filesystem.publish(path, seal(calibration.to_document()))


def next_number(store: Store) -> int:
    """The first number after all that are taken."""
    return max(_numbers(store), default=-1) + 1


def _numbers(store: Store) -> list[int]:
    try:
        names = store.filesystem.names(store.root / keys.CALIBRATION)
    except FileNotFoundError:
        return []
    return [number for number in map(keys.read_calibration, names) if number is not None]
