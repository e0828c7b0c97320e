"""`mirror-rt rerank`: documents ranked by a query, pairs with their scores, errors in one line."""

import json

import pytest

from mirror_rt import Reranker
from rounding import LOGIT_ERROR, SCORE_ERROR

DOCUMENTS = ["the old town", "a river", "children in the rain", "a doctor and a physician"]


@pytest.fixture
def bundle(tiny_reranker):
    return tiny_reranker("bert")


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_documents_and_pairs(bundle, tmp_path, cli):
    reranker = Reranker.load(bundle)
    documents = tmp_path / "documents.txt"
    documents.write_text("\n".join(DOCUMENTS) + "\n")
    ranked = cli("rerank", bundle, "--query", "river", "--input", documents, "--top-k", 3)
    assert ranked.code == 0, ranked.err
    expected = reranker.rank("river", DOCUMENTS, top_k=3, return_documents=True)
    assert [(line["id"], line["text"]) for line in lines(ranked.out)] == [
        (entry["corpus_id"], entry["text"]) for entry in expected
    ]
    assert [line["score"] for line in lines(ranked.out)] == pytest.approx(
        [entry["score"] for entry in expected], abs=SCORE_ERROR
    )
    assert "-: 3 rows" in ranked.err

    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("q\ta\n" + "".join(f"river\t{text}\n" for text in [*DOCUMENTS, " "]))
    options = ["--fields", "q,a", "--errors", "nan", "--activation", "identity", "--quiet"]
    scored = cli("rerank", bundle, "--input", pairs, "--output", tmp_path / "o.jsonl", *options)
    assert (scored.code, scored.out, scored.err) == (0, "", "")
    found = lines((tmp_path / "o.jsonl").read_text())
    logits = reranker.predict([("river", text) for text in DOCUMENTS], activation="identity")
    assert [line["id"] for line in found] == [0, 1, 2, 3, 4]
    assert [line["score"] for line in found[:4]] == pytest.approx(logits.tolist(), abs=LOGIT_ERROR)
    assert found[4]["score"] is None


def test_errors_are_one_line(bundle, tmp_path, cli):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("a\tb\nalone\n")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for options, said in [
        (["--input", pairs], "line 2: 1 cells, expected two texts"),
        (["--input", pairs, "--top-k", 3], "--top-k goes with --query"),
        (["--input", empty, "--query", "a"], "holds no rows"),
        (["--input", pairs, "--query", " "], "query: the string is only white space"),
        (["--input", pairs, "--query", "a", "--top-k", 0], "at least 1"),
        (["--input", pairs, "--fields", "a,b"], "which have no fields"),
    ]:
        failed = cli("rerank", bundle, "--output", tmp_path / "o.jsonl", *options)
        assert failed.code != 0
        assert said in failed.err, failed.err
        assert failed.err.count("\n") == 1
        assert not (tmp_path / "o.jsonl").exists()
