"""Reranker: scores that depend on nothing but the pair, rankings, errors by item, its bundle."""

import asyncio
import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror_rt import (
    BundleError,
    BundleIntegrityError,
    ClosedError,
    ConfigError,
    Encoder,
    InvalidTextError,
    Manifest,
    Reranker,
    Scheduler,
    UnknownOptionError,
)
from mirror_rt.bundle.packed_layers import pack_layers
from mirror_rt.bundle.score_layers import ScoreLayer, ScoreLayers
from mirror_rt.heads.predictor import Predictor
from mirror_rt.io.atomic import sha256
from mirror_rt.reranking.score_head import ScoreHead
from mirror_rt.tokens.pairs import Pair
from rounding import SCORE_ERROR

text = st.one_of(
    st.text(st.characters(), max_size=30),
    st.builds(lambda word, n: word * n, st.sampled_from(["the ", "é人 "]), st.integers(1, 300)),
    st.sampled_from([None, 3, b"bytes"]),
)
pair = st.one_of(st.tuples(text, text), st.sampled_from([None, "text", ("a",), 7, ["a", "b"]]))


@pytest.fixture(scope="module")
def folder(tiny_reranker):
    return tiny_reranker("bert")


@pytest.fixture(scope="module")
def reranker(folder):
    return Reranker.load(folder, threads=1)


@pytest.fixture(scope="module")
def pairs(words):
    return [(words[i], " ".join(words[i : 1 + 2 * i])) for i in range(1, 40)]


def test_scores_do_not_depend_on_the_batch(reranker, pairs):
    whole = reranker.predict(pairs)
    alone = np.concatenate([reranker.predict([one]) for one in pairs])
    np.testing.assert_allclose(whole, alone, atol=SCORE_ERROR)
    for size in (1, 3, 1000):
        np.testing.assert_allclose(
            reranker.predict(pairs, batch_size=size), whole, atol=SCORE_ERROR
        )
    np.testing.assert_allclose(reranker.predict(pairs[::-1])[::-1], whole, atol=SCORE_ERROR)
    assert reranker.predict([]).shape == (0,)
    assert np.ptp(reranker.predict([pairs[5], pairs[5][::-1]])) > 1e-3  # the types are used


@pytest.mark.parametrize("outputs", [1, 7])
def test_the_head_adds_up_a_row_alike_in_every_batch(outputs):
    """Whole sums are 0, so that what is seen is the order in which they were rounded."""
    rng = np.random.default_rng(0)
    half, columns = rng.normal(size=(40, 192)), rng.normal(size=(outputs, 192))
    order = rng.permutation(384)
    vectors = np.concatenate([half, -half], axis=1)[:, order].astype(np.float32)
    matrix = np.concatenate([columns, columns], axis=1)[:, order]
    labels = [str(i) for i in range(outputs)]
    layers = ScoreLayers([ScoreLayer(384, outputs)], labels)
    head = ScoreHead(layers, pack_layers([[matrix, np.zeros(outputs)]]))
    alone = np.concatenate([head(vectors[i : i + 1]) for i in range(40)])
    np.testing.assert_array_equal(head(vectors), alone)
    assert np.ptp(alone) > 0


@settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "100")), deadline=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(
    items=st.lists(pair, max_size=6),
    truncation=st.sampled_from(["longest_first", "only_second"]),
    on_too_long=st.sampled_from(["truncate", "truncate-left", "error"]),
    prompt=st.sampled_from(["", "the river "]),
)
def test_any_pair_among_any_others(reranker, items, truncation, on_too_long, prompt):
    options = {"truncation": truncation, "on_too_long": on_too_long, "errors": "nan"}
    options["prompt"] = prompt
    found = reranker.predict(items, **options)
    alone = [reranker.predict([item], **options)[0] for item in items]
    np.testing.assert_allclose(found, np.array(alone, np.float32).reshape(-1), atol=SCORE_ERROR)
    prepared = reranker.items(items, truncation)
    refused = reranker.pipeline.tokenizer.find_invalid(prepared)
    assert {*np.flatnonzero(np.isnan(found))} >= {*refused}
    cut = on_too_long != "error" and truncation == "longest_first"
    assert not cut or {*np.flatnonzero(np.isnan(found))} == {*refused}
    if np.isnan(found).any():
        with pytest.raises(InvalidTextError) as caught:
            reranker.predict(items, **options | {"errors": "raise"})
        assert {i for i, _ in caught.value.items} <= {*np.flatnonzero(np.isnan(found))}


def test_rank(reranker, words):
    documents = [" ".join(words[i : i + 9]) for i in range(0, 90, 9)]
    scores = reranker.predict([("the river", document) for document in documents])
    order = np.argsort(-scores)
    ranking = reranker.rank("the river", documents)
    assert [entry["corpus_id"] for entry in ranking] == order.tolist()
    assert [entry["score"] for entry in ranking] == pytest.approx(scores[order], abs=SCORE_ERROR)
    assert all(entry.keys() == {"corpus_id", "score"} for entry in ranking)
    best = reranker.rank("the river", documents, top_k=3, return_documents=True)
    assert [entry["text"] for entry in best] == [documents[i] for i in order[:3]]
    some = reranker.rank("the river", [*documents, " "], errors="nan")
    assert some[-1]["corpus_id"] == 10
    assert np.isnan(some[-1]["score"])
    assert reranker.rank("the river", []) == []
    with pytest.raises(InvalidTextError, match="item 1: the document: the string is empty"):
        reranker.rank("the river", ["a", ""])
    for query, given_documents, options, said in [
        ("", ["a"], {}, "query: the string is empty"),
        (None, ["a"], {}, "query: expected str, got NoneType"),
        ("a", "a", {}, "documents must be a list of str"),
        ("a", ["a"], {"top_k": 0}, "top_k must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=said):
            reranker.rank(query, given_documents, **options)


def test_options_are_checked(reranker):
    for options in (
        {"activation": "relu"}, {"truncation": "only_first"}, {"errors": "zero"},
        {"on_too_long": "chunk"}, {"batch_size": 0},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{next(iter(options))} must be"):
            reranker.predict([("a", "b")], **options)
    with pytest.raises(UnknownOptionError, match="takes no argument 'normalize_embeddings'"):
        reranker.predict([("a", "b")], normalize_embeddings=True)
    with pytest.raises(ConfigError, match="no prompt is called 'query'"):
        reranker.rank("a", ["b"], prompt_name="query")
    with pytest.raises(ConfigError, match=r"on_too_long must be one of 'truncate', .* got 'chunk'"):
        reranker.pipeline.plan(on_too_long="chunk")
    with pytest.raises(ConfigError, match="expected pairs of texts, got one string"):
        reranker.predict("a text")
    long = "river " * 300
    with pytest.raises(InvalidTextError, match="leaves no room for a document"):
        reranker.predict([(long, "b")], truncation="only_second")
    with pytest.raises(InvalidTextError, match="longer than 128 tokens"):
        reranker.predict([("a", long)], on_too_long="error")
    assert reranker.predict([(long, "b")]).shape == (1,)


def test_the_scheduler_and_tasks_share_batches(reranker, pairs):
    expected = reranker.predict(pairs)
    batches = []
    with Scheduler(reranker, on_batch=batches.append) as scheduler:
        futures = [scheduler.submit(reranker.items([one])) for one in pairs]
        logits = np.concatenate([future.result().embeddings for future in futures])
        np.testing.assert_allclose(reranker.scores(logits), expected, atol=SCORE_ERROR)
        plain = scheduler.encode([list(pairs[0]), pairs[1]])
        np.testing.assert_allclose(reranker.scores(plain), expected[:2], atol=SCORE_ERROR)
        mixed = [Pair("a", "b"), "text", Pair("a " * 300, "b", "only_second")]
        with pytest.raises(InvalidTextError) as caught:
            scheduler.encode(mixed)
        assert [i for i, _ in caught.value.items] == [1, 2]
        assert np.isnan(scheduler.encode(mixed, errors="nan")).all(1).tolist() == [0, 1, 1]
        with pytest.raises(UnknownOptionError):
            scheduler.encode(pairs, truncate_dim=1)
    assert sum(len(batch.tokens) for batch in batches) == len(pairs) + 3

    async def all_at_once():
        return await asyncio.gather(
            *(reranker.apredict([one]) for one in pairs),
            reranker.apredict(pairs, batch_size=4),
            reranker.arank("a", ["b", "the river"], top_k=1, return_documents=True),
        )

    *alone, together, ranking = asyncio.run(all_at_once())
    np.testing.assert_allclose(np.concatenate(alone), expected, atol=SCORE_ERROR)
    np.testing.assert_allclose(together, expected, atol=SCORE_ERROR)
    best = reranker.rank("a", ["b", "the river"], top_k=1)[0]
    assert (ranking[0]["corpus_id"], len(ranking)) == (best["corpus_id"], 1)


def test_threads_pickling_and_the_end(folder, reranker, pairs):
    expected = reranker.predict(pairs)

    def work(truncation):
        return reranker.predict(pairs, truncation=truncation)

    with ThreadPoolExecutor(4) as threads:
        for scores in threads.map(work, ["longest_first", "only_second"] * 2):
            np.testing.assert_allclose(scores, expected, atol=SCORE_ERROR)
    copy = pickle.loads(pickle.dumps(reranker))
    np.testing.assert_allclose(copy.predict(pairs), expected, atol=SCORE_ERROR)
    copy.warmup(lengths=(8,), batch_size=1)
    assert (copy.num_labels, copy.max_length, repr(copy)) == (
        1, 128, f"Reranker({str(folder)!r}, num_labels=1)",
    )  # fmt: skip
    with copy:
        pass
    with pytest.raises(ClosedError):
        copy.predict(pairs)


def test_each_kind_of_bundle_is_loaded_by_its_class(folder, bundle, cli):
    for load in (Encoder.load, Predictor.load):
        with pytest.raises(
            BundleError, match=r"'mirror_rt cross-encoder'.*mirror_rt.Reranker.load"
        ):
            load(folder)
    with pytest.raises(BundleError, match=r"'mirror_rt bundle'.*mirror_rt.Encoder.load takes it"):
        Reranker.load(bundle)
    shown = cli("info", folder)
    assert shown.code == 0
    assert "of pairs: 1 (LABEL_0), sigmoid" in shown.out
    assert "correlation" in shown.out
    assert "mirror_rt cross-encoder" in shown.out
    for command in (["encode", folder, "--input", "-", "--output", "v.npy"],
                    ["predict", folder, "--input", "-"]):  # fmt: skip
        refused = cli(*command)
        assert refused.code == 1
        assert "mirror_rt.Reranker.load takes it" in refused.err


def damaged(folder, tmp_path, *, manifest=None, head=None):
    """A copy whose manifest or head is another, with hashes that are right."""
    copy = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
    path = copy / ScoreLayers.file
    if head is not None:
        np.save(path, head, allow_pickle=head.dtype == object)
    values = json.loads((copy / "mirror.json").read_text())
    values["files"][ScoreLayers.file] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    if manifest:
        manifest(values)
    (copy / "mirror.json").write_text(json.dumps(values))
    return copy


def test_a_damaged_head_is_refused(folder, tmp_path):
    weights = np.load(folder / ScoreLayers.file)
    for head, said in [
        (weights[:-1], r"holds float32 \(\d+,\), expected float32"),
        (weights.astype(np.float64), "holds float64"),
        (np.array([None]), "cannot be read"),
        (np.where(np.arange(len(weights)) == 7, np.nan, weights), "not finite"),
    ]:
        with pytest.raises(BundleError, match=said):
            Reranker.load(damaged(folder, tmp_path, head=head))
    copy = damaged(folder, tmp_path, head=weights)
    content = bytearray((copy / ScoreLayers.file).read_bytes())
    content[-1] ^= 1
    (copy / ScoreLayers.file).write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"heads/scores.npy has SHA-256"):
        Reranker.load(copy)
    for size in (0, 9, 100, len(content) - 4):
        (copy / ScoreLayers.file).write_bytes(content[:size])
        with pytest.raises(BundleError, match=r"scores.npy cannot be read"):
            Reranker.load(copy, verify=False)
    # A header that says more than the file has takes no memory.
    huge = bytes(content).replace(b"'shape': (", b"'shape': (9999999999999, ")[: len(content)]
    (copy / ScoreLayers.file).write_bytes(huge)
    with pytest.raises(BundleError, match=r"scores.npy cannot be read"):
        Reranker.load(copy, verify=False)


def test_a_damaged_description_is_refused(folder, tmp_path):
    def changed(*path, value):
        def change(values):
            *way, last = path
            for name in way:
                values = values[name]
            values[last] = value

        return change

    layer = ("scores", "layers", 0)
    for change, said in [
        (changed("scores", value=None), "only 'mirror_rt cross-encoder' has scores"),
        (changed("format", value="mirror_rt bundle"), "expected 'mirror_rt cross-encoder'"),
        (changed("scores", "labels", value=["a", "b"]), "scores.labels are 2"),
        (changed("scores", "layers", value=[]), "scores.labels are 1"),
        (changed("scores", "activation", value="relu"), "scores.activation is 'relu'"),
        (changed(*layer, "inputs", value=31), r"scores.layers\[0\].inputs is 31, expected 32"),
        (changed(*layer, "outputs", value=0), r"scores.layers\[0\].outputs is 0"),
        (changed(*layer, "outputs", value=10**12), r"scores.layers\[0\].outputs is 1000000000000"),
        (changed(*layer, "activation", value="os.system"), "activation is 'os.system'"),
        (changed(*layer, "norm", value=float("nan")), "norm is nan"),
        (changed("files", value={}), "files has no record of"),
    ]:
        with pytest.raises(BundleError, match=said):
            Reranker.load(damaged(folder, tmp_path, manifest=change))
    values = Manifest.read(folder, "mirror_rt cross-encoder").to_dict() | {
        "format": "mirror_rt bundle"
    }
    with pytest.raises(ValueError, match="only 'mirror_rt cross-encoder' has scores"):
        Manifest.of_values(values)
