"""The command `mirror-rt demo`: tune, export, encode and compare, on real words."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import numpy as np

import mirror_export
import mirror_train
from mirror_rt.cli.info import describe_parity
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.encoding.batch_encoder import BatchEncoder, Vectors
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.evaluation import Geometry, cosine_pairs, evaluate_geometry
from mirror_rt.evaluation.plots import Cosines, cosines_figure, plot_grades, save_png
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import spearman
from mirror_rt.io.atomic import check_free

Grades = dict[str, Cosines]  # of pairs of words, from the least alike to the most

_MEASURES = {
    "isotropy_score_normalized": "isotropy of unit vectors (higher is better)",
    "alignment": "alignment of a word's two views (lower is better)",
    "uniformity": "uniformity (lower is better)",
    "mean_cosine": "mean cosine of random words (nearer to 0)",
}
_NEXT = """
The bundle is {bundle}. Give it words of your own:

    printf 'glad\\nriver\\n' | {command} encode --model {bundle} --input - --output -

or use it in Python, without torch:

    from mirror_rt import Encoder
    vectors = Encoder.load("{bundle}").encode(["happy", "glad"])
"""
_PROBES = ("least", "holy", "quality", "none", "cool")


@dataclass(frozen=True, kw_only=True)
class Demo(Invocation):
    """Tune all-MiniLM-L6-v2 on frequent words of English, export it, and show what changed.

    Leaves a bundle to use.

    Examples:
        mirror-rt demo --out demo
    """

    out: Annotated[Path, Help("folder for the results (default: demo)", "DIR")] = Path("demo")
    top: Annotated[int, Help("words", "TOP")] = 10_000
    overwrite: Annotated[bool, Help("replace an earlier demo")] = False
    offline: Annotated[bool, Help("never ask the network")] = False
    quiet: Annotated[bool, Help("no progress bars")] = False

    def run(self) -> None:
        out = self.out
        check_free(out, overwrite=self.overwrite)
        check_free(out / "tuned", overwrite=True)  # --out may be a file
        data = mirror_train.word_list("en", top=self.top)
        before = mirror_train.TorchEncoder.load(offline=self.offline)
        print(
            f"1/4  tune {mirror_train.DEFAULT_MODEL} on {len(data)} English words, without labels"
        )
        config = mirror_train.TrainConfig(
            recipe=mirror_train.load_recipe("word"),
            out=out / "tuned",
            overwrite=True,
            offline=self.offline,
            show_progress_bar=not self.quiet,
        )
        try:
            report = mirror_train.tune(data, config)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("interrupted; start again with --overwrite") from error
        stats = report.stats
        print(
            f"     {len(stats.losses)} steps in {stats.seconds:.0f} s, "
            f"loss {stats.losses[0]:.3f} -> {stats.losses[-1]:.3f}"
        )
        print("2/4  export it to ONNX and compare with PyTorch")
        exported = mirror_export.export_bundle(
            mirror_export.ExportConfig(str(out / "tuned"), out / "bundle", overwrite=True)
        )
        print(f"     {describe_parity(exported.variant())}")
        print("3/4  encode the words with the bundle (no torch), and look")
        after = Encoder.load(out / "bundle")
        tests = {"before": _word_test(before), "after": _word_test(after)}
        _print_score(tests)
        vectors = {"before": before.encode(data.first), "after": after.encode(data.first)}
        _print_neighbours(data.first, vectors)
        _print_geometry(evaluate_geometry(before, data.first), evaluate_geometry(after, data.first))
        print("4/4  two pictures")
        _plot(out, tests, vectors)
        print(_NEXT.format(bundle=out / "bundle", command=os.path.relpath(sys.argv[0])))


def _word_test(model: BatchEncoder) -> Grades:
    """Return the cosines of words with unrelated and with related words, and with synonyms."""
    table = (resources.files("mirror_export") / "cli" / "demo_words.tsv").read_text("utf-8")
    words, synonyms, related = zip(*map(str.split, table.splitlines()), strict=True)
    others = {"unrelated": related[53:] + related[:53], "related": related, "synonyms": synonyms}
    return {grade: cosines(model, list(words), list(column)) for grade, column in others.items()}


def _print_score(tests: dict[str, Grades]) -> None:
    n = sum(map(len, tests["before"].values()))
    print(f"\n     A test of {n} pairs of words: doctor goes with physician before hospital, and "
          "with\n     hospital before an unrelated word. The correlation of the cosines with this "
          "order\n     (Spearman's rho, higher is better, 1 is perfect):\n")  # fmt: skip
    for when, grades in tests.items():
        values = np.concatenate(list(grades.values()))
        order = np.repeat(np.arange(len(grades)), [len(g) for g in grades.values()])
        print(f"     {when:<8}{spearman(values, order):>6.3f}")
    print()


def _print_neighbours(words: list[str], vectors: dict[str, Vectors]) -> None:
    print("     The nearest of all words, for some that changed:")
    for probe in (word for word in _PROBES if word in words):
        for when, matrix in vectors.items():
            nearest = np.argsort(-(matrix @ matrix[words.index(probe)]))[1:6]
            name = probe if when == "before" else ""
            print(f"     {name:<8} {when + ':':<8}{', '.join(words[i] for i in nearest)}")


def _print_geometry(before: Geometry, after: Geometry) -> None:
    width = max(map(len, _MEASURES.values())) + 2
    print(f"\n     {'The space of the vectors':<{width}}{'before':>8}{'after':>8}")
    for field, meaning in _MEASURES.items():
        values = f"{getattr(before, field):>8.3f}{getattr(after, field):>8.3f}"
        print(f"     {meaning:<{width}}{values}")


def _plot(out: Path, tests: dict[str, Grades], vectors: dict[str, Vectors]) -> None:
    plot_grades(
        out / "grades.png", tests,
        title="The better the vectors, the less the three groups of pairs overlap",
    )  # fmt: skip
    print(f"     {out / 'grades.png'}: the pairs of the test by their grade")
    random = {
        when: cosine_pairs(matrix.astype(np.float64), pairs=20_000, seed=0)
        for when, matrix in vectors.items()
    }
    panels = {when: (tests[when]["synonyms"], random[when]) for when in tests}
    title = "The further apart the two hills, the better synonyms are told from random pairs"
    save_png(cosines_figure(panels, ("synonyms", "random")), out / "cosines.png", title)
    print(f"     {out / 'cosines.png'}: synonyms, and random pairs of all words")
