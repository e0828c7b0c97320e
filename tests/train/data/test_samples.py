"""Samples of corpora: lines as published, and what is drawn of them."""

import gzip

import pytest

from mirror_rt import ConfigError, DataError
from mirror_train.data.samples import read_corpus, sample

NLI = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tcaptionID\tpairID\tlabel1"
)
UMLS = (
    "C0001175|ENG|P|L0001175|VO|S0010340|Y|A0019182||M0000245|D000163|MSH|PM|D000163|"
    "Acquired Immunodeficiency Syndromes|0|N|1792|"
)
PUBLISHED = {
    "nli": (
        "snli_1.0_train.txt",
        [NLI, "neutral\t( A )\t( B )\t(A)\t(B)\tA person on a horse.\tA person trains.\t37#4\t3r1n"
         "\tneutral"],
        ["A person on a horse.", "A person trains."],
    ),
    "qnli": (
        "train.tsv",
        ["index\tquestion\tsentence\tlabel",
         '0\tWhen did the series begin?\tUnlike the two "seasons" before.\tentailment'],
        ["When did the series begin?", 'Unlike the two "seasons" before.'],
    ),
    "sts": (
        "sts-train.csv",
        ["main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane is taking off.\tAn air plane is."],
        ["A plane is taking off.", "An air plane is."],
    ),
    "umls": (
        "MRCONSO.RRF",
        [UMLS, UMLS.replace("|ENG|", "|SPA|").replace("Acquired", "Sindromes")],
        ["Acquired Immunodeficiency Syndromes"],
    ),
    "wikimatrix": (
        "WikiMatrix.en-ru.tsv",
        ["1.2503\tThe army moved.\tАрмия двинулась."],
        ["The army moved."],
    ),
    "lines": ("wiki1m_for_simcse.txt", ["Aspirin", "", "Aspirin", " It is  hot "],
              ["Aspirin", "It is hot"]),
}  # fmt: skip


@pytest.mark.parametrize("form", PUBLISHED)
def test_corpora_as_published(form, tmp_path):
    name, lines, expected = PUBLISHED[form]
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert read_corpus(form, [path], language="en").first == expected


def test_other_languages(tmp_path):
    path = tmp_path / "WikiMatrix.en-ru.tsv.gz"
    path.write_bytes(gzip.compress("1.1\tOne.\tРаз.\n".encode()))
    assert read_corpus("wikimatrix", [path], language="ru").first == ["Раз."]
    with pytest.raises(ConfigError, match="with fr as A or B"):
        read_corpus("wikimatrix", [path], language="fr")
    names = tmp_path / "MRCONSO.RRF"
    names.write_text(PUBLISHED["umls"][1][1])
    assert read_corpus("umls", [names], language="es").first[0].startswith("Sindromes")
    with pytest.raises(DataError, match=r"MRCONSO\.RRF: no string in en"):
        read_corpus("umls", [names], language="en")
    names.write_text("C0001175|ENG|P")
    with pytest.raises(DataError, match=r"line 1: 3 fields, expected MRCONSO\.RRF"):
        read_corpus("umls", [names], language="en")


def test_samples_follow_from_the_seed():
    strings = [str(i) for i in range(1000)]
    drawn = sample(strings, 100, seed=1)
    assert drawn == sample(strings, 100, seed=1) != sample(strings, 100, seed=2)
    assert drawn == sorted({*drawn}, key=int)
    assert sample(strings, 1000, seed=3) == strings
    with pytest.raises(DataError, match="11 strings to draw, of 10: pass --size 10"):
        sample(strings[:10], 11, seed=1)


def test_the_command_line(tmp_path, cli, succeed):
    lines, out = tmp_path / "wiki.txt", tmp_path / "out.txt"
    lines.write_text("".join(f"sentence {i} of the many that there are\nheading {i}\n"
                             for i in range(20)))  # fmt: skip
    line = ["sample", "lines", "--data", lines, "--out", out, "--longer-than", 5]
    done = succeed(*line, "--size", 7)
    assert "7 of 20 different strings" in done.out
    drawn = out.read_text().splitlines()
    assert len(drawn) == len({*drawn}) == 7
    assert all(text.startswith("sentence") for text in drawn)
    assert "already exists" in cli(*line).err
    assert cli(*line, "--size", 0, "--overwrite").code == 0
    assert len(out.read_text().splitlines()) == 20
    assert "must be at least 0" in cli(*line, "--size", -1, "--overwrite").err
    assert "of 20: pass --size 20" in cli(*line, "--overwrite").err
