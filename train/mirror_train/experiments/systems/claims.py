"""Compare the improvements that a system's paper claims with the results of a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mirror_rt.evaluation.bootstrap import Difference, difference
from mirror_rt.evaluation.run import Result


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about a system against another one on the sets of some suites.

    Attributes:
        against: name of the other system.
        suites: suites of the sets that the claim is about.
        wanted: `higher`, or `on par` for no difference.
    """

    against: str
    suites: tuple[str, ...]
    wanted: Literal["higher", "on par"] = "higher"

    def __str__(self) -> str:
        """Return the claim in words, for the table."""
        return f"{self.wanted} {'than' if self.wanted == 'higher' else 'with'} {self.against}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for a claim of a system's paper on one set, and what it shows in words."""

    system: str
    claim: Claim
    set: str
    difference: Difference
    verdict: str


def judge(system: str, claim: Claim, results: Iterable[Result]) -> list[Finding]:
    """Compare a system with the other one of a claim on all sets of it where both have figures."""
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
