"""The tables of encoder families in docs/reference say what their scripts find."""

import functools
import importlib.util
from types import ModuleType

import pytest

from mirror_rt import Manifest
from mirror_rt.bundle.families import FAMILIES
from paths import ROOT
from rounding import RUN_ERROR
from tiers import tiers
from tiny_models import TINY

FIGURES = ("tune", "fp32", "bundle", "pairs", "sparse", "late", "ONNX of others")


@functools.cache
def script(name: str) -> ModuleType:
    path = ROOT / "benchmarks" / "encode" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def documented(name: str, page: str) -> list[list[str]]:
    begin, end = script(name).MARKERS
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    lines = text.split(begin)[1].split(end)[0].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("family", tiers(TINY, fast=("bert", "modernbert")))
def test_fused_operators(family, all_variants):
    made = script("fused").row(family, Manifest.read(all_variants(family)))
    (told,) = [row for row in documented("fused", "bundle.md") if row[0] == made[0]]
    assert told[:6] == made[:6]
    assert float(told[6]) < RUN_ERROR
    assert float(told[7]) == pytest.approx(float(made[7]), abs=1e-5)
    for said, found in zip(told[8].split(", "), made[8].split(", "), strict=True):
        assert float(said) == pytest.approx(float(found), abs=2e-3)


def families() -> dict[str, dict[str, str]]:
    header, _, *rows = documented("families", "families.md")
    assert tuple(header) == script("families").HEADER
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_every_family_has_a_row():
    rows = families()
    assert {*rows} == {*script("families").ALL}
    assert {*FAMILIES} <= {*rows}
    for family, row in rows.items():
        native = family in FAMILIES and FAMILIES[family].tensors is not None
        assert row["engine"] == ("native" if native else "onnxruntime")
        for figure in FIGURES:
            assert row[figure] == "no" or float(row[figure]) < RUN_ERROR


@pytest.mark.full
@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_what_runs_of_a_family(family, tmp_path):
    made = dict(
        zip(script("families").HEADER, script("families").row(family, tmp_path, 0), strict=True)
    )
    for figure in FIGURES:
        assert (families()[family][figure] == "no") == (made[figure] == "no")
        assert made[figure] == "no" or float(made[figure]) < RUN_ERROR
