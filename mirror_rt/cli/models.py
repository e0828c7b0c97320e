"""Run `mirror-rt models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mirror_rt.bundle.known_models import KnownModel, known_models
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.io.tables import shown

_HEADER = ["model", "loads", "dimension", "tokens", "languages", "license", "GB", "note"]


@dataclass(frozen=True, kw_only=True)
class Models(Invocation):
    """List well-known models that load by their name, and how.

    Every command that takes a model takes these names. A "ready" one comes from the index of Python
    packages, without a model hub. Of a "hub", the weights are run as they are (with the extra hub).
    The others, "export", become bundles first, with mirror-rt export. Any other model of the same
    families loads by its name on a hub, too.

    Examples:
        mirror-rt models
        mirror-rt models --loads ready
        mirror-rt models --json
    """

    loads: Annotated[Literal["ready", "hub", "export"] | None, Help("only those")] = None
    json: Annotated[bool, Help("the table as JSON")] = False

    def run(self) -> None:
        found = [one for one in known_models() if self.loads in (None, one.road)]
        facts = [_facts(model) for model in found]
        print(shown(facts, _HEADER, lambda row: [*map(str, row.values())], self.json))


def _facts(model: KnownModel) -> dict[str, str | int | float]:
    note = "; ".join(filter(None, (model.note, model.export)))
    values: list[str | int | float] = [
        model.name, model.road, model.dimension, model.max_length, model.languages,
              model.license, model.gigabytes, note]  # fmt: skip
    return dict(zip(_HEADER, values, strict=True))
