"""What an audit covered, and what that says of the samples that it left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hsstore.model.document import Problem, integer, record

CONFIDENCE = 0.95
# Halvings of an interval: enough for every digit of a float.
BISECTIONS = 60


@dataclass(slots=True)
class AuditCounts:
    """How the samples of one audit came out.

    ``asked`` were asked for, drawn by ``seed`` from ``population`` committed samples. ``exact`` are
    equal bit by bit, ``noise`` within numeric noise, ``wrong`` neither; ``failed`` could not be
    computed, ``damaged`` not be compared, as their stored bytes are not those of the manifest.
    """

    asked: int
    population: int
    seed: int
    exact: int = 0
    noise: int = 0
    wrong: int = 0
    failed: int = 0
    damaged: int = 0

    @property
    def drawn(self) -> int:
        """How many samples there were to audit: all, where fewer are committed than asked for."""
        return min(self.asked, self.population)

    @property
    def audited(self) -> int:
        """How many were computed again and compared."""
        return self.exact + self.noise + self.wrong

    @property
    def complete(self) -> bool:
        """Whether every sample drawn was compared, or is known to be damaged; false for none."""
        return 0 < self.drawn == self.audited + self.damaged

    @property
    def wrong_share_at_most(self) -> float:
        """The share of wrong samples in the population that CONFIDENCE keeps below.

        The upper bound of Clopper and Pearson. The samples are drawn one from each of as many equal
        parts of the population, and with the same chance each, which can only make it safer. It is
        1 for an audit that is not complete: what was compared until then is no draw from all.
        """
        if not (self.complete and self.audited):
            return 1.0
        if self.audited == self.population:
            return self.wrong / self.population
        return upper_bound(self.wrong, self.audited)

    def to_json(self) -> dict[str, Any]:
        """The ``audit`` member of a summary."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "audited": self.audited,
            "complete": self.complete,
            "confidence": CONFIDENCE,
            "wrong_share_at_most": self.wrong_share_at_most,
        }

    @classmethod
    def from_json(cls, member: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``, for what passed ``audit_member``."""
        return cls(**{name: member[name] for name in cls.__slots__})


def upper_bound(found: int, of: int) -> float:
    """The largest share of which a draw of ``of`` shows ``found`` or fewer once in 20 times."""
    if found >= of:
        return 1.0
    low, high = found / of, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _at_most(found, of, middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most(found: int, of: int, share: float) -> float:
    """The chance that a draw of ``of`` holds no more than ``found`` of a share below 1."""
    return sum(math.exp(_log_chance(n, of, share)) for n in range(found + 1))


def _log_chance(n: int, of: int, share: float) -> float:
    """The logarithm of the binomial distribution, without its large factors."""
    ways = math.lgamma(of + 1) - math.lgamma(n + 1) - math.lgamma(of - n + 1)
    return ways + n * math.log(share) + (of - n) * math.log1p(-share)


_COUNTED = record({name: integer() for name in AuditCounts.__slots__})


def audit_member(value: object, path: str) -> list[Problem]:
    """Check what ``to_json`` made; what follows from the counts is not looked at."""
    if isinstance(value, dict):
        value = {name: value[name] for name in AuditCounts.__slots__ if name in value}
    return _COUNTED(value, path)
