"""Readers of the published formats: one small file of each, and what they refuse."""

import numpy as np
import pytest

from mirror_rt import DataError
from mirror_rt.evaluation.readers.concepts import (
    read_concept_folder,
    read_dictionary,
    read_mentions,
    split_mention,
)
from mirror_rt.evaluation.readers.pairs import read_labelled_pairs, read_scored_pairs
from mirror_rt.evaluation.readers.scored import (
    read_men,
    read_multisimlex,
    read_scws,
    read_senteval,
    read_sick,
    read_sts_benchmark,
    read_sts_year,
    read_stsb_multi,
    read_word_pairs,
)
from mirror_rt.evaluation.readers.tables import read_lexicon, read_words


@pytest.fixture
def file(tmp_path):
    def write(name, *lines):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


def rows(pairs):
    return list(zip(pairs.first, pairs.second, pairs.scores.tolist(), strict=True))


def test_multisimlex_as_published(file):
    file("translation.csv", "ID,ENG 1,ENG 2,FRA 1,FRA 2", "1,arm,muscle,bras,muscle")
    path = file("scores.csv", "ID,ENG,FRA", "1,0.5,2.5")
    ids, pairs = read_multisimlex(path.parent, "FRA")
    assert (ids, rows(pairs)) == (["1"], [("bras", "muscle", 2.5)])
    file("scores.csv", "ID,ENG,FRA", "2,0.5,2.5")
    with pytest.raises(DataError, match="do not have the same pairs"):
        read_multisimlex(path.parent, "FRA")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.tsv", ("word1\tword2\tscore", 'x "y"\tz\t3')),
        ("a.csv", ("id,sentence1,sentence2,similarity", '7,"x ""y""",z,3')),
        ("b.csv", ("\tid\tsentence1\tsentence2\tsimilarity", '0\t7\t"x ""y"""\tz\t3.0')),
    ],
    ids=["tsv", "csv", "csv-with-tabs"],
)
def test_any_scored_table(file, name, lines):
    assert rows(read_scored_pairs(file(name, *lines))) == [('x "y"', "z", 3.0)]


def test_senteval_subsets_and_pairs_without_gold(file):
    file("STS.input.MSRpar.txt", "a\tb", "c\td", "e\tf")
    file("STS.gs.MSRpar.txt", "4.0", "", "1.5")
    file("STS.input.ALL.txt", "g\th\tsource")
    path = file("STS.gs.ALL.txt", "2")
    found = read_senteval(path.parent)
    assert list(found) == ["ALL", "MSRpar"]
    assert rows(found["MSRpar"]) == [("a", "b", 4.0), ("e", "f", 1.5)]
    file("STS.gs.ALL.txt", "2", "3")
    with pytest.raises(DataError, match=r"1 pairs, STS\.gs\.ALL\.txt has 2 scores"):
        read_senteval(path.parent)
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        read_senteval(path.parent)


def test_other_sts_files(file):
    year = file("2012.test.tsv", '5.0\tA "b\tc')
    assert rows(read_sts_year(year)) == [('A "b', "c", 5.0)]
    benchmark = file("sts-test.csv", 'main\tMSRvid\t2012test\t0024\t2.5\tA "girl\tb\tlicence')
    assert rows(read_sts_benchmark(benchmark)) == [('A "girl', "b", 2.5)]
    with pytest.raises(DataError, match="line 1: 3 cells, expected at least 7"):
        read_sts_benchmark(file("sts-test.csv", "a\tb\t3"))
    multi = file("stsb-de-test.csv", '"Ein Mann, der tanzt.",b,3.2')
    assert rows(read_stsb_multi(multi)) == [("Ein Mann, der tanzt.", "b", 3.2)]


def test_sick_takes_the_test_rows(file):
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set"
    whole = file("SICK.txt", header, "1\ta\tb\tNEUTRAL\t3.2\tTEST", "2\tc\td\tNEUTRAL\t4\tTRAIN")
    assert rows(read_sick(whole)) == [("a", "b", 3.2)]
    assert rows(read_sick(whole, "TRAIN")) == [("c", "d", 4.0)]
    train = file("SICK_train.txt", "pair_ID\tsentence_A\tsentence_B\trelatedness_score"
                 "\tentailment_judgment", "1\ta\tb\t4.5\tNEUTRAL")  # fmt: skip
    assert rows(read_scored_pairs(train)) == [("a", "b", 4.5)]
    test = file("SICK_test_annotated.txt", "pair_ID\tsentence_A\tsentence_B\trelatedness_score"
                "\tentailment_judgment", "6\ta\tb\t3.3\tNEUTRAL")  # fmt: skip
    assert rows(read_sick(test)) == [("a", "b", 3.3)]


def test_word_sets_as_published(file):
    simlex = file("SimLex-999.txt", "word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ"
                  "\tAssoc(USF)\tSimAssoc333\tSD(SimLex)",
                  "old\tnew\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41")  # fmt: skip
    assert rows(read_scored_pairs(simlex)) == [("old", "new", 1.58)]
    similarity = file("wordsim_similarity_goldstandard.txt", "tiger\tcat\t7.35")
    assert rows(read_word_pairs(similarity)) == [("tiger", "cat", 7.35)]
    assert rows(read_word_pairs(file("EN-RG-65.txt", "gem\tjewel\t3.94")))[0][2] == 3.94
    natural = file("MEN_dataset_natural_form_full", "sun sunlight 50.000000")
    assert rows(read_men(natural)) == [("sun", "sunlight", 50.0)]
    lemma = file("MEN_dataset_lemma_form_full", "walk-v far-off-j 49.000000")
    assert rows(read_men(lemma)) == [("walk", "far-off", 49.0)]
    with pytest.raises(DataError, match="line 1: 2 cells, expected at least 3"):
        read_men(file("men", "sun sunlight"))
    ratings = "\t".join(map(str, range(10)))
    scws = file("ratings.txt", "1\tBrazil\tn\tnut\tn\tof <b> Brazil </b> and\ta <b> nut </b> is"
                f"\t1.1\t{ratings}")  # fmt: skip
    assert rows(read_scws(scws)) == [("Brazil", "nut", 1.1)]


def test_labelled_pairs(file):
    qnli = file("dev.tsv", "index\tquestion\tsentence\tlabel",
                "0\tWhy?\tSo.\tentailment", "1\tWho?\tSo.\tnot_entailment")  # fmt: skip
    pairs = read_labelled_pairs(qnli)
    assert (pairs.first, pairs.second) == (["Why?", "Who?"], ["So.", "So."])
    assert (pairs.positive.tolist(), pairs.left_out) == ([True, False], 0)
    snli = file("snli.tsv", "premise\thypothesis\tlabel", "a\tb\tentailment", "a\tc\tneutral",
                "a\td\tcontradiction", "a\te\t-")  # fmt: skip
    pairs = read_labelled_pairs(snli)
    assert (pairs.positive.tolist(), pairs.left_out) == ([True, False, False], 1)
    quora = file("quora.csv", "\tid\tsentence1\tsentence2\tis_duplicate", '0\tx\t"a ""b"""\tc\t1.0',
                 "1\ty\td\te\t0.0", "2\tz\t\tf\t0.0", "3\tz\tg\th\t")  # fmt: skip
    pairs = read_labelled_pairs(quora)
    assert (pairs.first, pairs.left_out) == (['a "b"', "d"], 2)
    with pytest.raises(DataError, match="line 2: the label 'maybe', expected 1 and 0"):
        read_labelled_pairs(file("a.tsv", "text1\ttext2\tlabel", "a\tb\tmaybe"))
    with pytest.raises(DataError, match="one label alone"):
        read_labelled_pairs(file("a.tsv", "text1\ttext2\tlabel", "a\tb\t1"))
    with pytest.raises(DataError, match="has no labels"):
        read_labelled_pairs(file("a.tsv", "text1\ttext2\tother", "a\tb\t1"))


def test_dictionaries_and_mentions(file):
    names = read_dictionary(
        file("test_dictionary.txt", "D1|D2||breast cancer", "D3+D4||a|b", "OMIM:1||c")
    )
    assert names.texts == ["breast cancer", "a", "b", "c"]
    assert names.concepts == [{"D1", "D2"}, {"D3", "D4"}, {"D3", "D4"}, {"OMIM:1"}]
    with pytest.raises(DataError, match=r"line 1: expected ID\|\|name, got 'D1 cancer'"):
        read_dictionary(file("d.txt", "D1 cancer"))
    mentions = read_mentions(file("m.tsv", "mention\tconcept_id", "copper toxicosis\tD1|D2"))
    assert (mentions.texts, mentions.concepts) == (["copper toxicosis"], [{"D1", "D2"}])
    processed = read_mentions(file("m.txt", "D1|D2||breast|ovarian cancer", "D3||Na+ channel"))
    assert processed.texts == ["breast|ovarian cancer", "Na+ channel"]
    parts = [split_mention(*one) for one in zip(processed.texts, processed.concepts, strict=True)]
    assert parts == [["breast", "ovarian cancer"], ["Na+ channel"]]
    assert split_mention("colour+night blindness", frozenset(["D1", "D2"]))[0] == "colour"
    with pytest.raises(DataError, match="line 2: no concept id"):
        read_mentions(file("m.tsv", "mention\tconcept_id", "a\t "))
    path = file("processed_test/1.concept", "9288106||7|24||SpecificDisease||colour blindness||D1")
    found = read_concept_folder(path.parent)
    assert (found.texts, found.concepts) == (["colour blindness"], [{"D1"}])
    with pytest.raises(DataError, match="has no names"):
        read_concept_folder(path.parent.parent)


@pytest.mark.parametrize("line", ["D1", "||name", " ||name", "D1|| |", "D1||"])
def test_a_line_of_a_dictionary_has_an_id_and_a_name(file, line):
    with pytest.raises(DataError, match=r"line 2: expected ID\|\|name"):
        read_dictionary(file("d.txt", "D1||name", line))


def test_case_and_lines_without_a_concept_are_those_of_sapbert(file):
    """Of SapBERT's src/data_loader.py; other mentions keep their case, as COMETA's there."""
    names = read_dictionary(file("d.txt", "D1||Breast Cancer", "cui-less||Other", "D2|D3||A"))
    assert (names.texts, names.concepts) == (["breast cancer", "a"], [{"D1"}, {"D2", "D3"}])
    for name, lines in {
        "m.tsv": ["mention\tconcept_id", "Old Pain\tD1", "x\tCUI-less"],
        "m.txt": ["D1||Old Pain", "CUI-less||x"],
    }.items():
        assert read_mentions(file(name, *lines)).texts == ["Old Pain"]
    lines = ["1||7|24||Disease||Old Pain||D1", "1||7|24||Disease||x||CUI-less"]
    assert read_concept_folder(file("some/1.concept", *lines).parent).texts == ["old pain"]


def test_lexicons_and_words(file):
    entries = [("of", "de"), ("of", "des"), ("ice cream", "glace")]
    assert read_lexicon(file("a.tsv", "of\tde", "of des", "", "ice cream\tglace")) == entries
    with pytest.raises(DataError, match="line 1: 3 cells, expected word TAB word"):
        read_lexicon(file("a.tsv", "ice cream glace"))
    assert read_words(file("w.txt", "a", "", "b", "a")) == ["a", "b"]
    with pytest.raises(DataError, match="holds no texts"):
        read_words(file("w.txt", " "))


def test_every_real_file_is_read(data):
    for path in sorted((data / "multisimlex").glob("*.tsv")):
        assert len(read_scored_pairs(path).first) > 1800
    assert np.ptp(read_sick(data / "sts" / "sick-r-all.tsv").scores) == 4
    assert len(read_mentions(data / "bel" / "ncbi-disease-test.tsv").texts) == 960
    assert len(read_lexicon(data / "bli" / "en-ru.train.tsv")) == 5000
    snli = read_labelled_pairs(data / "pairs" / "snli-test.tsv")
    assert (len(snli.first), int(snli.positive.sum())) == (9824, 3368)
    quora = read_labelled_pairs(data / "pairs" / "quora-dev.csv")
    assert (int(quora.positive.sum()), quora.left_out) == (7585, 2)
