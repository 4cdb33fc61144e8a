"""What the name of a file says: a sample, something beside the samples, or a leftover."""

import re
from collections import Counter
from collections.abc import Collection
from typing import Literal

Role = Literal["sample", "beside", "temporary", "foreign"]

# Longest first: a gzipped checkpoint ends like a gzip.
SAMPLE_SUFFIXES = (".safetensors", ".ckpt.gz", ".pt.gz", ".ckpt", ".pth", ".pt")
# What writers of such trees leave beside the samples: vocabularies, datasets, what they say of
# themselves. Each is known by its whole name or by how it ends.
BESIDE = frozenset({"stats.json", "dataset_info.json", "state.json", "manifest.json",
                    "vocab_mapping.pt", "token_freq.pt", "samples.idx", "config.json",
                    "hsstore-export.json",
                    "d2t.npy", "t2d.npy"})  # fmt: skip
BESIDE_SUFFIXES = (".arrow", ".parquet", ".jsonl", ".md", ".log", ".yaml", ".yml")
# Of savers that were killed, of editors, of NFS and FUSE clients that hold a deleted file.
TEMPORARY = re.compile(
    r"(^(\.nfs|\.fuse_hidden|\.~|~\$|\.?te?mp([._-]|[0-9a-z_]{8}$))|"
    r"\.(tmp|temp|part|partial|incomplete|inprogress|downloading|lock|swp|bak)"
    r"([._-]?[0-9A-Za-z]{1,16})?$|~$|^\..+\.[0-9A-Za-z]{6,8}$)",
    re.IGNORECASE,
)
# No filesystem bears so many files of one tree; whoever says more, a name or a stats.json, errs.
MOST_SAMPLES = 10_000_000
NUMBERED = re.compile(r"(?P<series>.*?)(?P<number>[0-9]{1,15})", re.DOTALL)


def role_of(name: str) -> Role:
    """What a file is by its name alone."""
    if TEMPORARY.search(name):
        return "temporary"
    if name in BESIDE or name.endswith(BESIDE_SUFFIXES):
        return "beside"
    # A hidden file is no sample to any reader of such trees.
    if stem_of(name) is not None and not name.startswith("."):
        return "sample"
    return "foreign"


def stem_of(name: str) -> str | None:
    """A sample file's name without its suffix; None where it has no suffix of samples."""
    for suffix in SAMPLE_SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def suffix_of(name: str) -> str:
    """The suffix that makes a name a sample's; empty where it has none."""
    stem = stem_of(name)
    return "" if stem is None else name[len(stem) :]


def numbers_of(stems: Collection[str]) -> dict[str, int]:
    """The row number that each stem tells, where most of them are one series: ``data_`` and digits.

    Empty where they are not, as with conversation ids: then a name says nothing of an order, and a
    number that is not there is no gap. A number that no tree gets to is none.
    """
    found = {stem: match for stem in stems if (match := NUMBERED.fullmatch(stem))}
    for series, count in Counter(match["series"] for match in found.values()).most_common(1):
        if 2 * count > len(stems):
            ours = {stem: match for stem, match in found.items() if match["series"] == series}
            numbers = {stem: int(match["number"]) for stem, match in ours.items()}
            return {stem: number for stem, number in numbers.items() if number < MOST_SAMPLES}
    return {}
