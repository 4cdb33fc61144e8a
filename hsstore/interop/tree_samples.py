"""The samples of a tree that has no dataset: its own token ids and masks, named after its files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import MalformedInput
from hsstore.interop.scanning import KeptTokens, ScannedFile
from hsstore.model.progress import Progress
from hsstore.storage.tokenised import TokenisedSample, changed


@dataclass(frozen=True, slots=True)
class TreeSamples:
    """``Samples`` of scanned files whose tokens were kept; the key of each is its file's name."""

    scanned: Sequence[ScannedFile]
    root: Path

    def lengths(self, progress: Progress) -> list[int]:
        """The tokens of every sample; MalformedInput for none, and where a mask is missing."""
        if not self.scanned:
            raise MalformedInput("not one file holds a sample", place=str(self.root))
        progress.start(len(self.scanned), len(self.scanned), "files")
        return [len(_tokens(one).ids) for one in self.scanned]

    def samples(self, vocab_size: int) -> Iterator[TokenisedSample]:  # noqa: ARG002 - the scan looked
        """Every sample."""
        for line, one in enumerate(self.scanned, 1):
            tokens = _tokens(one)
            if tokens.mask is None:
                raise MalformedInput(
                    "the tree has no loss mask for its tokens",
                    place=str(one.file.path),
                    remedy="give the dataset that the states are of with --dataset",
                )
            yield TokenisedSample(one.file.name, tokens.ids, tokens.mask, line)

    def refuse_change(self) -> None:
        """Nothing: the tokens are in memory."""

    def changed(self) -> MalformedInput:
        """That the files are other ones."""
        return changed(self.root)


def _tokens(one: ScannedFile) -> KeptTokens:
    if one.tokens is None:
        raise ValueError(f"the tokens of {one.file.name} were not kept")
    return one.tokens
