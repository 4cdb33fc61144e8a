"""Whether the shard is committed, by exactly one true marker."""

from collections.abc import Iterator

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.checks import manifests, shard_file, unmarked
from hsstore.integrity.plain_file import State, Trouble, read_plain
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import COMMIT_KIND, INTENT_KIND, Marker


def check(case: ShardCase) -> Iterator[Finding]:
    """Find the marker that counts (``case.marker``) and what is wrong with the others."""
    if not case.markers:
        yield unmarked.finding(case)
        return
    newest = max(version for version, _ in case.markers)
    named = [keys.marker(v, absent=absent) for v, absent in case.markers if v == newest]
    if len(named) > 1:
        detail = f"{' and '.join(named)} both claim generation {newest.generation}"
        yield case.finding("marker-duplicate", detail, path=named[0])
    trusted, distrusted = [], []
    for name in named:
        try:
            trusted.append(read_marker(case, name, COMMIT_KIND))
        except Trouble as trouble:
            distrusted.append((name, trouble))
    if trusted:
        case.marker = _most_telling(case, trusted)
        case.discredited += [marker.name for marker in trusted if marker is not case.marker]
    yield from (_distrusted(case, name, trouble) for name, trouble in distrusted)
    if not case.intents:
        yield from _superseded(case, newest)


def read_marker(case: ShardCase, name: str, kind: str) -> Marker:
    """A marker or intent that is whole and says what its name says, or Trouble."""
    subject = case.subject
    try:
        document = unseal(read_plain(subject.filesystem, subject.root, name, subject.folders), kind)
        marker = Marker.from_document(document)
    except (InvalidDocument, UnsupportedFormat) as error:
        raise Trouble("damaged", error.message) from None
    if marker.store != subject.store.identity.uuid:
        raise Trouble("damaged", f"it belongs to store {marker.store}")
    expected = marker.name if kind == COMMIT_KIND else keys.intent(marker.version)
    if expected != name:
        raise Trouble("damaged", f"its content belongs to {expected}")
    return marker


def _most_telling(case: ShardCase, candidates: list[Marker]) -> Marker:
    """Of sealed markers of one generation, the one whose manifest and shard file are there."""

    def tells(marker: Marker) -> tuple[bool, bool]:
        return manifests.is_whole(case, marker), shard_file.is_in_place(case, marker)

    return candidates[0] if len(candidates) == 1 else max(candidates, key=tells)


def check_intents(case: ShardCase) -> Iterator[Finding]:
    """Report decided replacements that were not finished, and intents that decide nothing."""
    for version in case.intents:
        name = keys.intent(version)
        try:
            _read_intent(case, name)
        except Trouble as trouble:
            case.discredited.append(name)
            unreadable = trouble.state == "unreadable"
            kind = "intent-unreadable" if unreadable else "intent-invalid"
            yield case.finding(kind, trouble.detail, path=name)
        else:
            detail = f"generation {version.generation} is decided, but not all in place"
            yield case.finding("intent-pending", detail, path=name)


def _read_intent(case: ShardCase, name: str) -> None:
    """Trouble unless an intent decides something, or did: what it names must be there."""
    intent = read_marker(case, name, INTENT_KIND)
    if any(version > intent.version for version, _ in case.markers):
        return
    try:
        manifests.read(case, intent)
    except Trouble as trouble:
        # Of the intent, so that a disk's error stays one, and what is gone makes it decide nothing.
        state: State = "unreadable" if trouble.state == "unreadable" else "damaged"
        raise Trouble(state, f"of the manifest that it names: {trouble.detail}") from None
    if not (shard_file.is_in_place(case, intent) or shard_file.is_staged(case, intent)):
        raise Trouble("damaged", "the file that it puts in place is gone")


def _distrusted(case: ShardCase, name: str, trouble: Trouble) -> Finding:
    case.discredited.append(name)
    kind = "marker-unreadable" if trouble.state == "unreadable" else "marker-invalid"
    samples = case.subject.samples(case.shard)
    detail, source = trouble.detail, False
    if case.marker is None:
        prospect = unmarked.judge(case)
        detail, source = f"{detail}; {prospect}", bool(case.lost)
    return case.finding(kind, detail, samples=samples, path=name, source=source)


def _superseded(case: ShardCase, newest: ShardVersion) -> Iterator[Finding]:
    for version, absent in case.markers:
        if version < newest:
            detail = f"generation {newest.generation} replaced it"
            path = keys.marker(version, absent=absent)
            yield case.finding("marker-superseded", detail, path=path)
