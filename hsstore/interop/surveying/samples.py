"""Which files are one sample, which samples have a sound file, and which row each one is."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hsstore.interop.matching import Held
from hsstore.interop.surveying.finding import SurveyFinding
from hsstore.interop.surveying.look import Look
from hsstore.interop.surveying.names import numbers_of, stem_of, suffix_of
from hsstore.interop.surveying.tree import Entry

# Where more than one number in ten comes again in another folder, the numbers count something
# within a folder, and not the rows.
REPEATED = 10
# Where less than one number in four is there, and nobody knows the format, they are no row numbers.
DENSE = 4
# SpecForge and AngelSlim; vLLM and speculators.
ROW_SERIES = ("data_", "hs_")


@dataclass(slots=True)
class Seen:
    """A sample file: its entry, the row number of its name (None: it tells none), and the look."""

    entry: Entry
    number: int | None = None
    look: Look = field(default_factory=Look)

    @property
    def sound(self) -> bool:
        """Whether a look found nothing wrong with it."""
        return not self.look.faults

    @property
    def name(self) -> str:
        """Its name without the suffix."""
        return stem_of(self.entry.name) or ""

    @property
    def stem(self) -> str:
        """Its path without the suffix: what tells samples apart where no name has a number."""
        return f"{self.entry.folder}/{self.name}"

    @property
    def claim(self) -> str | int:
        """The sample that it is by its name."""
        return self.stem if self.number is None else self.number

    @property
    def held(self) -> Held | None:
        """The tokens in it, None where it tells none."""
        return self.look.held

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that its sample may have."""
        return self.entry.path, self.name


@dataclass(slots=True)
class Sample:
    """The files of one sample: several where one lies beside its compressed self."""

    files: list[Seen]

    @property
    def sound(self) -> bool:
        """Whether one of its files is sound."""
        return any(file.sound for file in self.files)

    @property
    def number(self) -> int | None:
        """The row number of its name."""
        return self.files[0].number

    @property
    def reason(self) -> str:
        """What is wrong with its first broken file."""
        return next((file.look.faults[0].kind for file in self.files if not file.sound), "")


def number_names(files: Sequence[Seen]) -> None:
    """Give each file the row number that its name tells, where names tell any."""
    numbers = numbers_of({file.name for file in files})
    if not numbers or not _are_rows(files, numbers):
        return
    for file in files:
        file.number = numbers.get(file.name)


def counts_from_zero(files: Sequence[Seen]) -> bool:
    """Whether the names are those of writers that number rows from 0."""
    return counts_by_row(file.name for file in files if file.number is not None)


def _are_rows(files: Sequence[Seen], numbers: dict[str, int]) -> bool:
    paths = {file.stem: numbers[file.name] for file in files if file.name in numbers}
    counts = Counter(paths.values())
    repeated = sum(count > 1 for count in counts.values())
    span = max(counts) - min(counts) + 1
    dense = span <= max(DENSE * len(counts), REPEATED) or counts_by_row(numbers)
    return dense and repeated * REPEATED <= len(counts)


def counts_by_row(stems: Iterable[str]) -> bool:
    """Whether names are those of writers that number files by the rows of the dataset."""
    return any(stem.startswith(ROW_SERIES) for stem in stems)


def samples_of(files: Sequence[Seen]) -> list[Sample]:
    """The samples of a tree: files of one row number, or of one path but for the suffix."""
    grouped: dict[str | int, list[Seen]] = defaultdict(list)
    for file in files:
        grouped[file.claim].append(file)
    return [Sample(group) for group in grouped.values()]


def duplicates_by_name(samples: Sequence[Sample]) -> Iterator[SurveyFinding]:
    """Files that claim to be a sample which another file is by its name."""
    for sample in samples:
        first, *others = sample.files
        for other in others:
            detail = f"the same sample by its name as {first.entry.path}"
            yield SurveyFinding("duplicate", detail, other.entry.path, other.number)


def duplicates_by_tokens(samples: Sequence[Sample]) -> Iterator[SurveyFinding]:
    """Sound files that hold the tokens of another sample's file: maybe the same one twice."""
    first: dict[bytes, Seen] = {}
    for file in sound_files(samples):
        if file.held is None:
            continue
        other = first.setdefault(file.held.digest, file)
        if other is not file:
            detail = f"it holds the tokens of {other.entry.path}"
            yield SurveyFinding("duplicate", detail, file.entry.path, file.number)


def duplicates_by_states(samples: Sequence[Sample]) -> Iterator[SurveyFinding]:
    """Files that hold the states of another sample's file, and other tokens."""
    first: dict[bytes, Seen] = {}
    for file in sound_files(samples):
        if file.look.content is None or file.held is None:
            continue
        other = first.setdefault(file.look.content, file)
        if other.held != file.held:
            detail = f"it holds the states of {other.entry.path}, and other tokens"
            yield SurveyFinding("same-states", detail, file.entry.path, file.number)


def sound_files(samples: Sequence[Sample]) -> Iterator[Seen]:
    """The first sound file of each sample that has one."""
    for sample in samples:
        for file in sample.files:
            if file.sound:
                yield file
                break


def suffixes(files: Sequence[Seen]) -> str:
    """How many files have which suffix, for people."""
    counts = Counter(suffix_of(file.entry.name) for file in files)
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())
