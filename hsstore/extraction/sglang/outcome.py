"""How one attempt at a sample can end without states."""


class AttemptEnded(Exception):
    """Base: an attempt brought no states; ``kind`` is stable, the text says why.

    Never seen outside this package.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class AttemptFailed(AttemptEnded):
    """It counts against the sample, which may be tried again: an abort, say, or a timeout."""


class Rejected(AttemptEnded):
    """The server refuses this sample (400): another attempt would end alike."""


class Busy(AttemptEnded):
    """The server has no room now (503); says nothing about the sample."""

    def __init__(self, detail: str) -> None:
        super().__init__("busy", detail)


class Lost(AttemptEnded):
    """The server is gone, or no longer the one that was verified.

    ``sent`` says that the request had reached it, so that it may be what killed it.
    """

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__("disconnect", detail)
        self.sent = sent


class Discarded(AttemptEnded):
    """A reply that nobody can vouch for: the server was replaced before it was confirmed.

    ``doubt`` says that the launch that is trusted now is in doubt too.
    """

    def __init__(self, detail: str, *, doubt: bool = True) -> None:
        super().__init__("discarded", detail)
        self.doubt = doubt
