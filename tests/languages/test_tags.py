import pytest

from mirror_rt import ConfigError
from mirror_rt.languages.tags import (
    did_you_mean,
    find_language,
    language_key,
    lookup_chain,
    normalize_tag,
)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("FR", "fr"),
        ("pt_br", "pt-BR"),
        ("ZH-hant-tw", "zh-Hant-TW"),
        ("sl-rozaj-biske-1994", "sl-rozaj-biske-1994"),
        ("en-x-AB", "en-x-ab"),  # RFC 5646, 2.1.1: lower case after a singleton
        ("iw", "he"),
        ("fil", "fil"),
        (" ru ", "ru"),
    ],
)
def test_tags_are_written_as_rfc_5646_recommends(tag, expected):
    assert normalize_tag(tag) == expected


@pytest.mark.parametrize("tag", ["", "f", "français", "french", "en-", "en--US", "123", None, 5])
def test_what_is_no_tag(tag):
    with pytest.raises(ConfigError, match="is not a language tag: expected 'fr' or 'pt-BR'"):
        normalize_tag(tag)


def test_fallbacks_are_those_of_rfc_4647():
    """Section 3.4: its example, and a single letter goes with what follows it."""
    assert lookup_chain("zh-Hant-CN-x-private1-private2") == [
        "zh-Hant-CN-x-private1-private2",
        "zh-Hant-CN-x-private1",
        "zh-Hant-CN",
        "zh-Hant",
        "zh",
    ]
    assert lookup_chain("pt-br") == ["pt-BR", "pt"]


def test_a_language_is_found_by_any_spelling_of_its_tag_or_a_more_general_one():
    available = {"he": 1, "pt": 2, "zh-Hant": 3}
    asked = ["iw", "IW_il", "he", "pt-BR", "pt_br", "zh-hant-TW", "zh", "fr"]
    found = [1, 1, 1, 2, 2, 3, None, None]
    assert [find_language(tag, available) for tag in asked] == found
    with pytest.raises(ConfigError, match="is not a language tag"):
        find_language("français", available)


def test_a_name_that_is_no_tag_is_found_as_it_is():
    assert find_language("BioMedical", {"biomedical": 1}) == 1
    assert [language_key(one) for one in ("IW_il", "Bio_Medical")] == ["he-IL", "bio-medical"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("french", "fr"), ("fra", "fr"), ("Frnch", "fr"), ("fre", "fr"), ("CHINESE", "zh-Hant"),
     ("sw", None), ("swe", None), ("xq", None), ("", None), (5, None)],
)  # fmt: skip
def test_what_may_have_been_meant(given, meant):
    found = did_you_mean(given, ["en", "fr", "zh-Hant"])
    assert found == ("" if meant is None else f" (did you mean {meant}?)")
