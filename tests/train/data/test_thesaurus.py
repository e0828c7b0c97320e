"""Thesauri: their formats, which pairs are taken of them, and tuning on these."""

import dataclasses
import json
import logging

import pytest

from mirror_rt import ConfigError, DataError
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.bundle.model_card import model_card
from mirror_train import load_recipe, load_thesaurus, word_list
from mirror_train.data.installed_thesauri import find_thesaurus, has_thesaurus, thesaurus_license
from mirror_train.data.thesaurus import mutual_pairs
from mirror_train.data.thesaurus_files import read_thesaurus

FRENCH = """UTF-8
maison|2
(Nom)|Demeure|logis|hôtel (Hyperonyme)
(Nom)|(grande) famille
demeure|1
(Nom)|maison|logis
"""


@pytest.fixture
def write(tmp_path):
    def write_file(name, text, encoding="utf-8"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding))
        return path

    return write_file


def merged(thesaurus):
    """Return the synonyms of each word in any sense."""
    return {word: set().union(*senses) for word, senses in thesaurus.senses.items()}


def test_mythes_files(write):
    """Remarks in brackets may be other relations, so the words that have them are left out."""
    thesaurus = read_thesaurus(write("th_fr_FR_v2.dat", FRENCH, "utf-8-sig"))
    assert thesaurus.form == "mythes"
    assert merged(thesaurus) == {
        "maison": {"demeure", "logis"},
        "demeure": {"maison", "logis"},
    }
    russian = "microsoft-cp1251\nда|2\n(синоним)|так|ага\n(антоним)|нет\n"
    thesaurus = read_thesaurus(write("th_ru_RU_v2.dat", russian, "cp1251"))
    assert merged(thesaurus) == {"да": {"так", "ага"}}
    polish = "ISO8859-2\r\nźródło|1\r\n-|początek|woda (pojęcie nadrzędne)\r\n"
    thesaurus = read_thesaurus(write("th_pl_PL_v2.dat", polish, "iso8859-2"))
    assert merged(thesaurus) == {"źródło": {"początek"}}
    romanian = "UTF-8\nosana|2\ninterj\n-|slavă\n"
    assert merged(read_thesaurus(write("th_ro_RO_v2.dat", romanian))) == {"osana": {"slavă"}}


def test_vowel_signs_that_texts_leave_out(write):
    """Arabic words are listed with them, but head their own entries without."""
    arabic = "UTF-8\nسرور|1\n(مصدر)|فَرَح\nفرح|1\n(مصدر)|سُرُور\n"
    synonyms = merged(read_thesaurus(write("th_ar_AE_v2.dat", arabic)))
    assert synonyms == {"سرور": {"فرح"}, "فرح": {"سرور"}}
    hebrew = "UTF-8\nשלום|1\n-|שָׁלוֹם|בְּרָכָה\n"
    assert merged(read_thesaurus(write("th_he_IL.dat", hebrew))) == {"שלום": {"ברכה"}}


WORDNET = """  1 This software is provided under the following license.
  2 WordNet 3.0 Copyright 2006 by Princeton University.
00001740 00 a 02 able 0 fit(p) 1 001 ! 00002098 a 0101 | having the means; "able to swim"
00002684 03 n 0a hot_dog 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 000 | ten words, in hexadecimal
"""


def test_wordnet(write):
    folder = write("wordnet/data.adj", WORDNET).parent
    synonyms = merged(read_thesaurus(folder))
    assert synonyms["able"] == {"fit"}
    assert synonyms["j"] == {"hot dog", *"bcdefghi"}
    assert thesaurus_license(folder, "en") == "WordNet 3.0 license"


def test_tables(write):
    synonyms = merged(read_thesaurus(write("own.tsv", "Car\tauto\tcar\nbig\tlarge\n")))
    assert synonyms == {"car": {"auto"}, "auto": {"car"}, "big": {"large"}, "large": {"big"}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.dat", "maison|1\n(Nom)|logis\n", "line of a MyThes file names its encoding, got 'mai"),
        ("a.dat", "UTF-8\nmaison\n", r"a\.dat, line 2: expected WORD\|NUMBER, got 'maison'"),
        ("a.dat", "UTF-8\nx|2\n-|y\n", r"a\.dat, line 4: .* one of 2 such lines of 'x', got ''"),
        ("a.dat", "ascii\nx|1\n-|é\n", r"a\.dat, line 3: not ascii"),
        ("a/data.noun", "0001 03 n zz x\n", r"data\.noun, line 1: not a synset"),
        ("a/x", "", "none of the files of WordNet"),
        ("a.csv", "", r"a\.csv is no thesaurus: expected a MyThes file"),
    ],
)
def test_files_that_are_no_thesaurus(write, name, text, message):
    path = write(name, text)
    with pytest.raises(DataError, match=message):
        read_thesaurus(path.parent if "/" in name else path)


def test_pairs_that_list_each_other():
    synonyms = {
        "big": {"large", "great", "huge", "vast"},
        "large": {"big", "great", "huge"},
        "great": {"big", "large", "rare"},
        "huge": {"big", "large"},
        "vast": {"great"},  # does not list "big"
        "rare": {"great"},  # not frequent
    }
    senses = {word: [listed] for word, listed in synonyms.items()}
    frequent = ["great", "big", "large", "huge", "vast"]
    pairs = mutual_pairs(senses, frequent=frequent)
    # big-large shares 4 of 5 words, large-huge 3 of 4, great-large and big-huge 3 of 5.
    assert pairs == [("big", "large"), ("large", "huge"), ("big", "huge")]
    assert ("great", "big") in mutual_pairs(senses, frequent=frequent, most=9)
    assert ("great", "rare") in mutual_pairs(senses)


def test_pairs_whose_senses_have_the_same_list(monkeypatch):
    senses = {
        "bank": [{"shore"}, {"lender", "fund"}],
        "shore": [{"bank"}, {"prop", "stay"}],
        "fund": [{"lender", "purse"}, {"bank", "lender", "house", "till"}],
        "lender": [],
    }
    both = [("bank", "shore"), ("bank", "fund")]
    assert sorted(mutual_pairs(senses)) == sorted(both)  # few: the other pair is kept, too
    monkeypatch.setattr("mirror_train.data.thesaurus.FEWEST", 1)
    assert mutual_pairs(senses) == both[:1]


def test_installed_thesauri(write, monkeypatch, tmp_path):
    for name in ("pt_BR_v2", "pt_PT_v2", "fr_FR_v2", "de_CH_v2", "frr", "nb_NO_v2"):
        write(f"mythes/th_{name}.dat", FRENCH)
    copyright_ = """Files: *
License: MPL-2.0

Files: dictionaries/fr_FR/hyph_fr.dic
License: LGPL-3

Files: dictionaries/fr_FR/README
       dictionaries/fr_FR/thes_fr.dat
Copyright: somebody
License: LGPL-2.1+
"""
    write("doc/mythes-fr/copyright", copyright_)
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path / "mythes"))
    for tag, name in [("pt", "pt_PT"), ("pt-BR", "pt_BR"), ("pt-AO", "pt_PT"), ("de", "de_CH"),
                      ("no", "nb_NO")]:  # fmt: skip
        assert find_thesaurus(tag).name == f"th_{name}_v2.dat"
    path = find_thesaurus("fr")
    assert (path.name, thesaurus_license(path, "fr")) == ("th_fr_FR_v2.dat", "LGPL-2.1+")
    assert thesaurus_license(path, "de") is None
    with pytest.raises(ConfigError, match="no thesaurus of 'xx' is installed: install Debian's"):
        find_thesaurus("xx")
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path / "mytehs"))
    for find in (find_thesaurus, has_thesaurus):
        with pytest.raises(ConfigError, match=r"\$MIRROR_RT_THESAURI is '.*mytehs', which is no"):
            find("fr")


def test_rare_words_where_frequent_ones_are_not_known(write, caplog):
    path = write("th_xx.dat", "UTF-8\nqxy|1\n-|qxz\nqxz|1\n-|qxy\n")
    with caplog.at_level(logging.WARNING):
        assert load_thesaurus(path).first == ["qxy"]
    assert "rare words are taken, too, because no word list for language 'xx'" in caplog.text
    with pytest.raises(DataError, match="no two frequent words list each other"):
        load_thesaurus(path, language="fr")


def mythes(words):
    """Pair each word with the next one."""
    entries = [
        f"{a}|1\n-|{b}\n{b}|1\n-|{a}\n" for a, b in zip(words[::2], words[1::2], strict=True)
    ]
    return "UTF-8\n" + "".join(entries)


def test_pairs_of_frequent_words_come_first(write, monkeypatch):
    """In tiers; a thesaurus that gives FEWEST pairs, and no more, ends with their tier."""
    ranked = word_list("en", top=120).first
    path = write("th_en_US_v2.dat", mythes(ranked[::-1]))
    monkeypatch.setattr("mirror_train.data.thesaurus.TOPS", (40, 80, 50_000))
    data = load_thesaurus(path)
    assert data.tiers == [40] * 20 + [80] * 20 + [50_000] * 20
    for start in (0, 20, 40):
        words = {*data.first[start:][:20], *data.second[start:][:20]}
        assert words == {*ranked[2 * start :][:40]}
    assert load_thesaurus(path, top=80).tiers == [80] * 40
    monkeypatch.setattr("mirror_train.data.thesaurus.FEWEST", 20)
    assert load_thesaurus(path).tiers == [40] * 20


def test_tuning_on_a_thesaurus(
    write, words, cli, succeed, tiny_bert, bundle, tmp_path, monkeypatch
):
    write("th_en_US_v2.dat", mythes(words))
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path))
    out = tmp_path / "out"
    done = succeed("tune", tiny_bert, "--thesaurus", "en", "--batch-size", 20, "--out", out)
    assert "recipe synonyms, for the synonyms of a thesaurus" in done.out
    manifest = Manifest.read(out, "mirror_rt encoder")
    assert (manifest.language, manifest.data["strings"]) == ("en", 200)
    assert manifest.data["origin"]["license"] == "unknown"
    assert len(manifest.data["origin"]["sha256"]) == 64
    shown = model_card(dataclasses.replace(Manifest.read(bundle), data=manifest.data))
    assert "| origin, license | unknown |" in shown
    for wrong, message in [
        (("--thesaurus", "en", "--words", "en"), "pass one of --data FILE, --words LANG and"),
        (("--thesaurus", "en", "--data-format", "tsv"), "--data-format goes with --data"),
        (("--thesaurus", tmp_path / "none.dat"), "none.dat: No such file"),
    ]:
        done = cli("tune", tiny_bert, *wrong, "--out", tmp_path / "other")
        assert (done.code != 0, message in done.err) == (True, True), done.err


@pytest.mark.full
def test_thesauri_of_several_languages(write, cli, tiny_bert, tmp_path, monkeypatch):
    for tag, name in [("en", "th_en_US_v2.dat"), ("fr", "th_fr_FR_v2.dat")]:
        write(name, mythes(word_list(tag, top=80).first))
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path))

    def tune(*options):
        return cli("tune", tiny_bert, "--thesaurus", *options, "--out", tmp_path / "out")

    done = tune("--lang", "en,fr", "--batch-size", 20, "--json")
    assert done.code == 0, done.err
    assert [row["language"] for row in json.loads(done.out)] == ["en", "fr"]
    for tag, name in [("en", "th_en_US_v2.dat"), ("fr", "th_fr_FR_v2.dat")]:
        manifest = Manifest.read(tmp_path / "out" / tag, "mirror_rt encoder")
        assert (manifest.language, manifest.data["source"]) == (tag, name)
        assert manifest.data["strings"] == 38  # two words and their synonyms are held out
        assert manifest.recipe["learning_rate"] == load_recipe("synonyms").learning_rate
    for options, message in [
        ((), "--thesaurus names no language"),
        (("--lang", "en,zh"), "no thesaurus of 'zh' is installed"),
        (("--lang", "en,fr", "--words", tmp_path), "--thesaurus takes the place of --words"),
    ]:
        done = tune(*options)
        assert (done.code != 0, message in done.err) == (True, True), done.err
