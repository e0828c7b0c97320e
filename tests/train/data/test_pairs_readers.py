"""Readers of labelled texts and pairs: the published forms, real files, malformed ones."""

import gzip
import json

import numpy as np
import pytest

from mirror_rt import ConfigError, DataError
from mirror_train.data.labelled_examples import Examples, held_out
from mirror_train.data.labelled_readers import (
    NLI_LABELS,
    read_nli,
    read_paraphrases,
    read_sentiment,
    read_similarity,
)
from mirror_train.data.ppdb import balanced, read_ppdb
from mirror_train.systems import BurtTasks, load_multitask_data


def rows(examples):
    return list(zip(examples.items(), examples.targets.tolist(), strict=True))


# What the distributions look like: SNLI and MultiNLI as JSON lines and as tables of many columns.
SNLI = ("gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tcaptionID\tpairID\tlabel1\tlabel2")  # fmt: skip


def test_snli_as_a_table(file):
    path = file(
        "snli_1.0_dev.txt",
        SNLI,
        'neutral\t( a )\t( b )\t(A)\t(B)\tHe said "no.\tHe spoke.\tc\tp\tneutral\tneutral',
        "-\t( a )\t( b )\t(A)\t(B)\tOne.\tTwo.\tc\tp\tneutral\tentailment",
        "contradiction\t( a )\t( b )\t(A)\t(B)\tOne.\tTwo.\tc\tp\tcontradiction",
    )
    found = read_nli(path)
    assert rows(found) == [(('He said "no.', "He spoke."), 1), (("One.", "Two."), 2)]
    assert found.left_out == 1


def test_multinli_as_json_lines(file):
    record = {"gold_label": "entailment", "genre": "fiction", "sentence1": "A.", "sentence2": "B."}
    path = file(
        "multinli.jsonl",
        json.dumps(record),
        "",
        json.dumps(record | {"gold_label": "-"}),
        json.dumps(record | {"sentence2": "n/a"}),
    )
    assert rows(read_nli(path)) == [(("A.", "B."), 0), (("A.", "n/a"), 0)]


def test_tables_with_tabs_and_quotes(file):
    lines = ['0\tx\t"""Is a"" so?"\tIs a?\t1.0', "1\ty\tWhat?\t\t0.0", "2\tz\tA?\tB?\t"]
    path = file("quora-dev.csv", "\tid\tsentence1\tsentence2\tis_duplicate", *lines)
    found = read_paraphrases(path)
    assert rows(found) == [(('"Is a" so?', "Is a?"), 1)]
    assert found.left_out == 2
    path = file("sst.csv", "\tid\tsentence\tsentiment", "0\tx\t A film . \t4", "1\ty\tNo .\t0")
    assert rows(read_sentiment(path)) == [("A film .", 4), ("No .", 0)]
    path = file("own.tsv", "text\tlabel", "Fine\tvery positive")
    assert rows(read_sentiment(path)) == [("Fine", 4)]
    path = file("sts.tsv", "sentence1\tsentence2\tscore", "A\tB\t5", "C\tD\t0.25")
    assert rows(read_similarity(path)) == [(("A", "B"), 5.0), (("C", "D"), 0.25)]


NLI_HEADER = "premise\thypothesis\tlabel"


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.tsv", (), "no labels"),
        ("a.tsv", (NLI_HEADER,), "no rows"),
        ("a.tsv", ("premise", "One side."), "no labels"),
        ("a.tsv", ("sentence1\tlabel", "One side.\tneutral"), "two text columns"),
        ("a.tsv", ("premise\thypothesis", "A\tB"), "no labels"),
        ("a.tsv", (NLI_HEADER, "A\tB\tmaybe"), r"line 2: the label 'maybe', expected one of"),
        ("a.tsv", (NLI_HEADER, "A\tB\t1"), "the label '1'"),
        ("a.tsv", (NLI_HEADER, "A\tB"), "line 2: 2 cells, the header has 3"),
        ("a.tsv", (NLI_HEADER, "A\tB\tneutral\tC"), "line 2: 4 cells, the header has 3"),
        ("a.tsv", (NLI_HEADER, "A\t \tneutral"), "no rows with a text and a label"),
        ("a.tsv", (NLI_HEADER, "A\tB\t-"), "no rows with a text and a label"),
        ("a.csv", ("premise,hypothesis,label", "A,B"), "line 2: 2 cells"),
        ("a.jsonl", ('{"sentence1": "A", "sentence2": "B"}',), "field 'gold_label'"),
        ("a.jsonl", ('{"sentence1": "A", "sentence2": 3, "gold_label": "neutral"}',), "got 3"),
        ("a.jsonl", ("{",), "line 1: not JSON"),
        ("a.jsonl", ("[1]",), "expected an object"),
        ("a.jsonl", ("",), "no rows"),
    ],
)
def test_malformed_nli(file, name, lines, message):
    with pytest.raises(DataError, match=message):
        read_nli(file(name, *lines))


QUORA = "\tid\tsentence1\tsentence2\tis_duplicate"


@pytest.mark.parametrize(
    ("reader", "lines", "message"),
    [
        (read_paraphrases, (), "is empty"),
        (read_paraphrases, (QUORA, "0\tx\tA\tB\t2"), r"line 2: the label '2', expected one of not"),
        (read_paraphrases, (QUORA, "0\tx\tA\tB\t0.5"), "the label '0.5'"),
        (read_paraphrases, (QUORA, "0\tx\tA\tB"), "4 cells, the header has 5"),
        (read_paraphrases, (QUORA, '0\tx\t"A\tB\t1', "1\ty\tC\tD\t0"), "not CSV: unexpected end"),
        (read_paraphrases, ("is_duplicate", "1"), "two text columns"),
        (read_paraphrases, ("a\ta\tis_duplicate", "x\ty\t1"), "more than once"),
        (read_sentiment, ("sentence\tsentiment", "A\t5"), r"label '5', expected one of very"),
        (read_sentiment, ("sentence\tsentiment", "A\t-1"), "the label '-1'"),
        (read_sentiment, ("sentence\tsentiment", "A\tgood"), "the label 'good'"),
        (read_sentiment, ("sentence\tscore", "A\t1"), "no labels"),
        (read_sentiment, ("review\tsentiment", "A\t1"), "no texts"),
        (read_similarity, ("a\tb\tsimilarity", "A\tB\t5.5"), r"'5.5', expected a number in 0 .. 5"),
        (read_similarity, ("a\tb\tsimilarity", "A\tB\tnan"), "'nan'"),
        (read_similarity, ("a\tb\tsimilarity", "A\tB\tx"), "'x'"),
        (read_similarity, ("a\tsimilarity", "A\t1"), "two text columns"),
    ],
)
def test_malformed_tables(file, reader, lines, message):
    with pytest.raises(DataError, match=message):
        reader(file("a.csv", *lines))


def test_files_that_are_no_text(tmp_path):
    for name, content in [("a.tsv", b"\xff\xfe"), ("b.tsv", b"a\0b\n"), ("c.jsonl", b"\x80")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError):
            read_nli(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        read_nli(tmp_path / "absent.tsv")
    with pytest.raises(DataError, match="is a folder"):
        read_sentiment(tmp_path)
    (tmp_path / "quote.csv").write_text(QUORA + '\n0\tx\t"' + "A" * 200_000, encoding="utf-8")
    with pytest.raises(DataError, match="line 2: not CSV: unexpected end of data"):
        read_paraphrases(tmp_path / "quote.csv")


def ppdb(phrase, paraphrase, relation, *, score="0.25", lhs="[NP]"):
    features = (
        "PPDB2.0Score=5.24981 PPDB1.0Score=3.295900 -logp(LHS|e1)=0.23080 -logp(e1|e2)=2.20070 "
        f"AGigaSim=0.63645 Abstract=0 Equivalence={score} Exclusion=0.000344 "
        "GoogleNgramSim=0.03067 Independent=0.075"
    )
    return f"{lhs} ||| {phrase} ||| {paraphrase} ||| {features} ||| 0-0 1-1 ||| {relation}"


PPDB = [
    ppdb("hundreds", "thousands", "Independent", score="0.000457"),
    ppdb("the results of the work", "the outcome of the work", "ForwardEntailment", score="0.44"),
    ppdb("parts of the world", "regions of the world", "ReverseEntailment"),
    ppdb("different parts of the world", "various parts of the world", "Equivalence", score="0.52"),
    ppdb("drawn the attention", "drew the attention", "Equivalence", score="x"),
]


def test_ppdb_as_published(file, caplog):
    found = read_ppdb(file("ppdb-2.0-s-phrasal", *PPDB))
    assert found.pairs.targets.tolist() == [2, 1, 1, 0, 0]
    assert found.pairs.items()[1] == ("the results of the work", "the outcome of the work")
    np.testing.assert_array_equal(found.equivalence, [0.000457, 0.44, 0.25, 0.52, np.nan])
    assert found.pairs.left_out == 0
    assert not caplog.messages
    phrases = found.phrase_similarity()  # neither two single words nor one without a score
    assert phrases.scores.tolist() == [0.44, 0.25, 0.52]
    assert np.bincount(balanced(found.pairs, seed=1).targets).tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="has 1 pairs of the relation 'independent', 2 of each"):
        balanced(found.pairs, seed=1, per_relation=2)


def test_ppdb_leaves_out_counts_and_says(file, caplog):
    bad = [
        ppdb("a b", "c d", "Exclusion"),
        ppdb("a b", "c d", "OtherRelated"),
        ppdb("a b", "c d", "Unheard"),
        ppdb("a b", "c d", "equivalence"),
        ppdb("[NP,1] of b", "b 's [NP,1]", "Equivalence"),
        ppdb("", "c d", "Equivalence"),
        ppdb("a b", " ", "Equivalence"),
        "[NP] ||| a b ||| c d ||| x=1 ||| 0-0",
        "[NP] ||| a b ||| c d",
        "a line",
        ppdb("a b", "c d", "Equivalence") + " ||| more",
        "a b ||| c d ||| Equivalence ||| ||| |||",
        PPDB[0],
        "",
    ]
    found = read_ppdb(file("ppdb", *PPDB, *bad))
    assert len(found.pairs) == 5
    for said in ("1 Exclusion", "1 OtherRelated", "3 unknown relation", "1 nonterminal",
                 "2 blank or invalid phrase", "3 missing fields", "1 too many fields",
                 "1 repeated"):  # fmt: skip
        assert said in caplog.text
    assert found.pairs.left_out == 13
    assert "5 pairs; left out: 1 Exclusion, 1 OtherRelated, 2 blank or invalid" in caplog.text


def test_ppdb_without_a_pair_is_refused(file, tmp_path):
    for lines in ((), ("a line",), (ppdb("a b", "c d", "Exclusion"),), ("a\tb\tEquivalence",)):
        with pytest.raises(DataError, match=r"has no pairs .* expected lines LHS \|\|\| PHRASE"):
            read_ppdb(file("ppdb", *lines))
    with pytest.raises(DataError, match="no such file"):
        read_ppdb(tmp_path / "absent")
    with pytest.raises(DataError, match="no phrases with a probability"):
        read_ppdb(file("ppdb", ppdb("one", "two", "Equivalence"))).phrase_similarity()
    with pytest.raises(DataError, match="none of its 1 rows has the label 'entailment'"):
        balanced(read_ppdb(file("ppdb", ppdb("one", "two", "Equivalence"))).pairs, seed=0)


def test_ppdb_packed(tmp_path):
    path = tmp_path / "ppdb.gz"
    whole = gzip.compress("\n".join(PPDB * 40).encode())
    path.write_bytes(whole)
    assert len(read_ppdb(path).pairs) == 5
    for content in (whole[:-20], b"garbage", gzip.compress(b"\xff\xfe\n")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be unpacked|not UTF-8"):
            read_ppdb(path)
    with pytest.raises(DataError, match="no such file"):
        read_ppdb(tmp_path / "absent.gz")


def test_real_pairs(data):
    """Rows and classes of the files as counted with cut and sort."""
    folder = data / "pairs"
    nli = read_nli(folder / "snli-dev.tsv")
    counts = dict(zip(NLI_LABELS, np.bincount(nli.targets).tolist(), strict=True))
    assert counts == {"entailment": 3329, "neutral": 3235, "contradiction": 3278}
    sentiment = read_sentiment(folder / "ids-sst-train.csv")
    assert np.bincount(sentiment.targets).tolist() == [1092, 2218, 1624, 2322, 1288]
    quora = read_paraphrases(folder / "quora-dev.csv")
    assert (len(quora) + quora.left_out, quora.left_out) == (20214, 2)
    assert np.bincount(quora.targets).tolist() == [12627, 7585]
    similarity = read_similarity(folder / "sts-train.csv")
    assert len(similarity) == 6040
    assert (similarity.targets.min(), similarity.targets.max()) == (0.0, 5.0)
    assert 'I think "don\'t got" has' in " ".join(similarity.first)
    loaded = load_multitask_data(folder).tasks
    assert {name: part.dev.source for name, part in loaded.items()} == {
        "sentiment": "ids-sst-dev.csv",
        "paraphrase": f"quora-dev.csv, {len(loaded['paraphrase'].dev)} held out",
        "similarity": "sts-dev.csv",
    }
    quora = loaded["paraphrase"]
    assert len(quora.train) + len(quora.dev) == 20212
    assert 1900 < len(quora.dev) <= 2021
    shared = {*quora.train.first, *(quora.train.second or [])} & {
        *quora.dev.first, *(quora.dev.second or []),
    }  # fmt: skip
    assert not shared


def test_what_is_held_out_follows_from_the_seed():
    first = [str(i // 3) for i in range(90)]
    pairs = Examples(first, [f"x{i}" for i in range(90)], np.arange(90) % 2, ("0", "1"), "pairs")
    rest, held = held_out(pairs, 0.1, seed=1)
    assert (len(rest), len(held)) == (81, 9)
    assert not set(rest.first) & set(held.first)
    assert held_out(pairs, 0.1, seed=1)[1].items() == held.items()
    assert held_out(pairs, 0.1, seed=2)[1].items() != held.items()
    one = Examples(["a"] * 5, ["b"] * 5, np.zeros(5, np.int64), ("0", "1"), "pairs")
    with pytest.raises(DataError, match="its 5 rows cannot be split"):
        held_out(one, 0.1, seed=1)


def test_a_class_that_never_occurs():
    rows = Examples(["a", "b"], None, np.array([0, 2]), ("x", "y", "z"), "f.csv")
    with pytest.raises(DataError, match=r"f\.csv: none of its 2 rows has the label 'y'"):
        rows.check_classes()


def test_tasks_without_files(tmp_path):
    with pytest.raises(DataError, match=r"has neither ids-sst-train\.csv nor ids-sst-dev"):
        load_multitask_data(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        load_multitask_data(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no task 'x'"):
        load_multitask_data(tmp_path, tasks=["x"])
    with pytest.raises(ConfigError, match="mirror-rt train finetune trains one"):
        load_multitask_data(tmp_path, tasks=["sentiment"])
    with pytest.raises(ConfigError, match="top must be at least 2"):
        load_multitask_data(tmp_path, top=1)


def test_pairs_for_burt(file):
    nli = file("nli.tsv", NLI_HEADER, "A\tB\tneutral", "C\tD\tentailment")
    tasks = BurtTasks.load(nli=[nli, nli], ppdb=[file("ppdb", *PPDB)])
    assert tasks.objectives == ("nli", "pi", "ptc")
    assert (len(tasks.of("nli")), len(tasks.of("pi")), len(tasks.of("ptc"))) == (4, 3, 3)
    quora = file("q.csv", QUORA, "0\tx\tA\tB\t1.0", "1\ty\tC\tD\t0.0")
    tasks = BurtTasks.load(paraphrases=[quora, file("p.txt", "a||b", "c||d")])
    assert tasks.of("pi").items() == [("A", "B"), ("a", "b"), ("c", "d")]
    with pytest.raises(ConfigError, match=r"'ptc' has no data: pass --ppdb FILE"):
        tasks.of("ptc")
    with pytest.raises(DataError, match="has one text a line: expected two"):
        BurtTasks.load(paraphrases=[file("words.txt", "a", "b")])
