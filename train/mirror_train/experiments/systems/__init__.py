"""The papers' systems side by side: tuned from one base model, evaluated on the same sets."""

from mirror_train.experiments.systems.report import (
    claims_table,
    figures_table,
    find_claims,
    write_report,
)
from mirror_train.experiments.systems.rows import Row
from mirror_train.experiments.systems.run import Opened, SystemsConfig, open_with_torch, run_systems
from mirror_train.experiments.systems.table import BASE, SYSTEMS, System

__all__ = [
    "BASE",
    "SYSTEMS",
    "Opened",
    "Row",
    "System",
    "SystemsConfig",
    "claims_table",
    "figures_table",
    "find_claims",
    "open_with_torch",
    "run_systems",
    "write_report",
]
