"""Folders drawn at random, beside sentence-transformers: the same vectors, or a named refusal.

MIRROR_RT_FUZZ sets the number of folders of each kind in the full tier, MIRROR_RT_FUZZ_FIRST the
first seed. The counts of a run are kept in build/fuzz, which two processes can fill at once:

    export MIRROR_RT_FUZZ=1250 OMP_NUM_THREADS=1
    for first in 10000 20000; do
        MIRROR_RT_FUZZ_FIRST=$first pytest tests/export/test_folders_fuzz.py -q -k encoders &
    done; wait
"""

import itertools
import json
import logging
import os
import random
import re
import shutil
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from drawn_folders import draw_cross_encoder, draw_encoder, draw_texts
from mirror_export import ExportConfig, export_bundle
from mirror_export.graph import torch_export
from mirror_rt import Encoder, MirrorError, Reranker, compat
from paths import ROOT
from shared_traces import SharedTraces
from tiers import tiers
from tiny_models import make_model

logger = logging.getLogger(__name__)

FOLDERS = int(os.environ.get("MIRROR_RT_FUZZ", "150"))
FIRST = int(os.environ.get("MIRROR_RT_FUZZ_FIRST", "100"))
FEW, POSITIONS = range(3), 128  # of every tiny model
ENDLESS = ("deberta-v2", "modernbert")
PARITY = ["a river", "the old town by the long river", "word " * 40]
DECLARED = ("*.json", "*/config.json", "*_Dense/model.safetensors")
WHOLE = 50  # one of this many drawn folders is traced as an export does it, and not with others


class Outcome(NamedTuple):
    """What came of a drawn folder in one way of loading it."""

    family: str
    way: str
    how: str = "equal"
    why: str = ""


def theirs_of(family, load):
    """Return a model of sentence-transformers; None for a folder that it does not load.

    Its limit may be above the positions of the model, which then fails on long texts, or does not
    where tokens of no position are among them. Positions that are relative or rotate have no end.
    """
    try:
        theirs = load()
    except Exception:  # noqa: BLE001 - any: what its libraries raise has no common class
        return None
    limit = theirs.max_seq_length or POSITIONS
    theirs.max_seq_length = limit if family in ENDLESS else min(limit, POSITIONS)
    return theirs


def check_same(found, expected, exact):
    """Assert that vectors [n, D], or scores [n], differ by 2e-6 of their length, or by 2e-6.

    Both sides are rounded. Where they differ by more, ours may differ by 2e-6 from what `exact`
    returns, the result of their model in float64.
    """
    assert found.shape == expected.shape
    found = np.reshape(found, (len(found), -1))
    for side in (lambda: expected, exact):
        theirs = np.reshape(side(), (len(found), -1))
        most = 2e-6 * np.maximum(1.0, np.linalg.norm(theirs, axis=1, keepdims=True))
        apart = np.abs(found - theirs)
        if (apart <= most).all():
            return
    raise AssertionError(f"{apart.max()} from float64")


def outcome(run, folder, family, way):
    """Run a comparison; its outcome is `equal`, or `refused` for an error that names a file."""
    refusal = None
    try:
        run()
    except MirrorError as error:
        refusal = str(error)
    if refusal is None:
        return Outcome(family, way)
    assert str(folder.parent) in refusal, refusal
    why = re.sub(r"\.bundle\.\w+\.unfinished", "bundle", refusal.replace(str(folder.parent), ""))
    why = re.sub(r"\d+", "N", why).partition(". Or ")[0]
    return Outcome(family, way, "refused", why)


# The outputs of a graph that publishers name, and those of a bundle that they hold.
GRAPH_OUTPUTS = (
    {"last_hidden_state": "last_hidden_state"},
    {"token_embeddings": "last_hidden_state"},
    {"token_embeddings": "last_hidden_state", "sentence_embedding": "pooled_embedding"},
    {"sentence_embedding": "pooled_embedding", "last_hidden_state": "last_hidden_state"},
)


def as_onnx_files(folder, bundle, out, rng):
    """Write what a folder declares beside the graph of its bundle, with outputs at random.

    The weights are at times in a file of their own.
    """
    for pattern in DECLARED:
        for path in folder.glob(pattern):
            (out / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / path.relative_to(folder))
    model = onnx.load(bundle / "onnx/model.onnx")
    given = {node.name: node for node in model.graph.output}
    for node in model.graph.node:  # whose names are taken by the outputs
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = f"inner.{name}" if name in given else name
    del model.graph.output[:]
    for name, source in rng.choice(GRAPH_OUTPUTS).items():
        model.graph.node.append(onnx.helper.make_node("Identity", [f"inner.{source}"], [name]))
        model.graph.output.add().CopyFrom(given[source])
        model.graph.output[-1].name = name
    (out / "onnx").mkdir()
    onnx.save(
        model,
        out / "onnx/model.onnx",
        save_as_external_data=rng.random() < 0.3,
        location="weights.bin",
        size_threshold=1024,
    )


def compare_encoder(seed, tiny_model, tmp_path):
    """Compare one encoder: exported, as ONNX files, and by its weights; return the outcomes."""
    rng, folder = random.Random(seed), tmp_path / "model"
    family, drawn = draw_encoder(tiny_model, folder, rng)
    logger.warning("seed %d: %s %s", seed, family, json.dumps(drawn))
    theirs = theirs_of(family, lambda: SentenceTransformer(str(folder), device="cpu"))
    if theirs is None:
        return [Outcome(family, "", "not loaded by its authors")]
    texts = draw_texts(rng, theirs.max_seq_length)
    renormalised = theirs.truncate_dim and drawn["entries"][-1]["type"].endswith("Normalize")

    def vectors():
        found = np.stack([theirs.encode([text])[0] for text in texts])
        # As docs/reference/bundle.md says.
        return found / np.linalg.norm(found, axis=1, keepdims=True) if renormalised else found

    expected = vectors()

    def check(found):
        check_same(found, expected, lambda: (theirs.double(), vectors())[1])

    bundle, files = tmp_path / "bundle", tmp_path / "files"

    def exported():
        export_bundle(ExportConfig(str(folder), bundle, parity_texts=PARITY))
        ours = compat.SentenceTransformer(bundle)
        assert ours.similarity_fn_name == theirs.similarity_fn_name
        for engine in ("cpu", "auto"):
            with Encoder.load(bundle, providers=engine) as encoder:
                check(encoder.encode(texts))

    def plain():
        as_onnx_files(folder, bundle, files, rng)
        with Encoder.load(files) as encoder:
            check(encoder.encode(texts))

    def direct():
        with Encoder.load(folder) as encoder:
            check(encoder.encode(texts))

    found = [outcome(exported, folder, family, "exported")]
    if found[0].how == "equal":
        found.append(outcome(plain, files, family, "ONNX files"))
    return [*found, outcome(direct, folder, family, "safetensors")]


def compare_cross_encoder(seed, source, tiny_model, tmp_path):
    """Compare one cross-encoder, exported and by its weights; return the outcomes."""
    rng, folder = random.Random(seed), tmp_path / "model"
    family, drawn = draw_cross_encoder(source, tiny_model, folder, rng)
    logger.warning("seed %d: %s %s", seed, family, json.dumps(drawn))
    theirs = theirs_of(family, lambda: CrossEncoder(str(folder), device="cpu"))
    if theirs is None:
        return [Outcome(family, "", "not loaded by its authors")]
    pairs = list(itertools.pairwise(draw_texts(rng, min(theirs.max_seq_length, 64))))

    def scores():
        return np.array([theirs.predict([pair])[0] for pair in pairs])

    expected = scores()

    def scored(path):
        with Reranker.load(path) as reranker:
            found = reranker.predict(pairs)
        check_same(found, expected, lambda: (theirs.double(), scores())[1])

    def exported():
        export_bundle(ExportConfig(str(folder), tmp_path / "bundle", parity_texts=PARITY))
        scored(tmp_path / "bundle")

    return [
        outcome(exported, folder, family, "exported"),
        outcome(lambda: scored(folder), folder, family, "safetensors"),
    ]


@pytest.fixture(scope="session")
def ranker(made_once, words):
    """The folder of a family's cross-encoder of one label, which tells two types apart."""
    return lambda family: made_once(
        f"typed-{family}",
        lambda out: make_model(family, out, words, labels=1, config={"type_vocab_size": 2}),
    )


def fresh(tmp_path, seed):
    folder = tmp_path / str(seed)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("seed", tiers(FEW, fast=[0]))
def test_an_encoder(seed, tiny_model, tmp_path):
    compare_encoder(seed, tiny_model, tmp_path)


@pytest.mark.parametrize("seed", tiers(FEW, fast=[0]))
def test_a_cross_encoder(seed, ranker, tiny_model, tmp_path):
    compare_cross_encoder(seed, ranker, tiny_model, tmp_path)


def counted(outcomes):
    """Return how often there is each outcome: of all, by family, and by the reason of refusals."""
    refused = [one for one in outcomes if one.why]
    counts = {
        "outcomes": Counter(f"{one.way}: {one.how}" for one in outcomes),
        "by family": Counter(f"{one.family}, {one.way}: {one.how}" for one in outcomes),
        "refused": Counter(f"{one.way}: {one.why}" for one in refused),
    }
    return {name: dict(sorted(found.items())) for name, found in counts.items()}


def run_many(kind, compare, tmp_path, capsys):
    """Compare the folders of many seeds; fail at the end, with the seeds that differ.

    The counts are kept in a file, anew after each folder.
    """
    found, failed, trace = [], {}, torch_export._trace
    shared = SharedTraces(trace)
    reports = ROOT / "build/fuzz" if os.access(ROOT, os.W_OK) else tmp_path
    reports.mkdir(parents=True, exist_ok=True)
    report = reports / f"{kind}-{FIRST}.json"
    for seed in range(FIRST, FIRST + FOLDERS):
        folder = fresh(tmp_path, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_export, "_trace", shared if seed % WHOLE else trace)
            try:
                found += compare(seed, folder)
            except Exception as error:  # noqa: BLE001 - any: a crash is a difference as well
                failed[seed] = f"{type(error).__name__}: {error}"
        shutil.rmtree(folder)
        values = {"folders": seed + 1 - FIRST, "first": FIRST, **counted(found), "failed": failed}
        report.write_text(json.dumps(values, indent=1, ensure_ascii=False))
    with capsys.disabled():
        sys.stdout.write(f"\n{kind}: {report.read_text()}\n")
    assert not failed
    assert sum(one.how == "equal" and one.way == "exported" for one in found) > FOLDERS // 2


@pytest.mark.full
def test_encoders(tiny_model, tmp_path, capsys):
    run_many(
        "encoders",
        lambda seed, folder: compare_encoder(seed, tiny_model, folder),
        tmp_path,
        capsys,
    )


@pytest.mark.full
def test_cross_encoders(ranker, tiny_model, tmp_path, capsys):
    run_many(
        "cross-encoders",
        lambda seed, folder: compare_cross_encoder(seed, ranker, tiny_model, folder),
        tmp_path,
        capsys,
    )
