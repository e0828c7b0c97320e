"""What a system's paper says it improves, and what a study shows of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mirror_rt.evaluation.bootstrap import Difference, difference
from mirror_rt.evaluation.run import Result

__all__ = ["Claim", "Finding", "judge"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A system against another on the sets of some suites.

    Attributes:
        against: name of the other system.
        suites: of the sets that the claim is about.
        wanted: `higher`, or `on par`: no difference.
    """

    against: str
    suites: tuple[str, ...]
    wanted: Literal["higher", "on par"] = "higher"

    def __str__(self) -> str:
        """In words, for the table."""
        return f"{self.wanted} {'than' if self.wanted == 'higher' else 'with'} {self.against}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim on one set.

    Attributes:
        system: name.
        claim: of its paper.
        set: name of the set, with the metric.
        difference: of the system and the other, on the same items.
        verdict: in words.
    """

    system: str
    claim: Claim
    set: str
    difference: Difference
    verdict: str


def judge(system: str, claim: Claim, results: Iterable[Result]) -> list[Finding]:
    """Compare a system with another wherever both have figures.

    Args:
        system: its name, the label of its results.
        claim: what is to be shown.
        results: of all systems.
    """
    by_model: dict[str, dict[tuple[str, str], Result]] = {}
    for result in results:
        if result.measure.suite in claim.suites and result.outcome.ranked:
            key = (result.measure.set, result.measure.metric)
            by_model.setdefault(result.model, {})[key] = result
    own, other = by_model.get(system, {}), by_model.get(claim.against, {})
    findings = []
    for key in own.keys() & other.keys():
        a, b = own[key], other[key]
        found = difference(a.outcome.value, b.outcome.value, a.replicates, b.replicates)
        findings.append(Finding(system, claim, " ".join(key), found, _verdict(claim, found)))
    return sorted(findings, key=lambda finding: finding.set)


def _verdict(claim: Claim, found: Difference) -> str:
    if found.interval is None:
        return "no interval, no verdict"
    if claim.wanted == "on par":
        if not found.shown:
            return "no difference shown"
        return "does not hold: it is " + ("higher" if found.value > 0 else "lower")
    if not found.shown:
        return "not shown: the interval holds 0"
    return "holds" if found.value > 0 else "does not hold: it is lower"
