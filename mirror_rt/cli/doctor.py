"""Run `mirror-rt doctor`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

from mirror_rt.cli.common import ModelOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.io.tables import text_fields


@dataclass(frozen=True, kw_only=True)
class Doctor(Invocation):
    """Examine this installation, and a bundle.

    Looks at versions, execution providers, the libraries of CUDA, the processors that this process
    may use, the native extension and the cache folder; loads a bundle, says
    which engine runs it and why, and compares its vectors. Ends with 1 where there is a fault.

    Examples:
        mirror-rt doctor
        mirror-rt doctor bundle
        mirror-rt doctor bundle --providers cuda --devices all
        mirror-rt doctor --json
    """

    model: Annotated[
        str | None, Help("folder or hub name of a bundle to test", "BUNDLE", word=True)
    ] = None
    json: Annotated[bool, Help("the findings as JSON")] = False
    load: ModelOptions

    def run(self) -> int:
        """Run the command; return 1 if there is a fault."""
        from mirror_rt.diagnostics.doctor import examine

        findings = examine(self.model, self.load.make())
        faults = sum(finding.status == "fault" for finding in findings)
        if self.json:
            values = {"faults": faults, "findings": [dataclasses.asdict(f) for f in findings]}
            print(json.dumps(values, indent=2, ensure_ascii=False))
            return int(faults > 0)
        marks = {"ok": "", "warning": "WARNING: ", "fault": "FAULT: "}
        print(text_fields([(f.name, marks[f.status] + f.detail) for f in findings]))
        for finding in findings:
            if finding.remedy is not None:
                print(f"\nto mend {finding.name}: {finding.remedy}")
        return int(faults > 0)
