"""Which of several models a request for a language gets."""

import pytest

from mirror_rt.errors import ConfigError
from mirror_rt.server import Models, NamedEncoder
from mirror_rt.server.admission.problems import Problem


@pytest.fixture(scope="module")
def models():
    languages = {"he": "he", "pt": "pt", "zh": "zh-hant", "biomedical": "biomedical"}
    encoders = [NamedEncoder(f"m-{name}", None, tag, 0) for name, tag in languages.items()]
    return Models([*encoders, NamedEncoder("m-none", None, None, 0)], "m-pt", "m")


@pytest.mark.parametrize(
    ("lang", "name"),
    [
        ("he", "m-he"),
        ("iw", "m-he"),  # the deprecated tag of Hebrew
        ("IW-il", "m-he"),
        ("pt-BR", "m-pt"),
        (" PT_br ", "m-pt"),
        ("zh-Hant-TW", "m-zh"),
        ("Biomedical", "m-biomedical"),
    ],
)
def test_a_language_finds_its_model(models, lang, name):
    assert models.find(None, lang).name == name
    assert models.find(name, lang).name == name


@pytest.mark.parametrize("lang", ["fr", "zh", "", "-", "français", "a-" * 200])
def test_no_model_for_a_language_is_refused(models, lang):
    with pytest.raises(Problem) as refused:
        models.find(None, lang)
    assert refused.value.status == 422


def test_a_model_that_is_of_another_language_is_refused(models):
    with pytest.raises(Problem, match="m-pt is not of that language"):
        models.find("m-pt", "iw")


def test_a_language_that_no_model_has():
    encoders = [NamedEncoder(name, None, name, 0) for name in ("fr", "de")]
    with pytest.raises(Problem, match=r"lang: this server has no 'fra' \(did you mean fr\?\)"):
        Models(encoders, "de").find(None, "fra")
    assert Models(encoders, "de", fallback="fr").find(None, "sw").name == "fr"
    with pytest.raises(Problem, match="'klingon!' is not a language tag"):
        Models(encoders, "de", fallback="fr").find(None, "klingon!")


def test_aliases_are_names_of_the_default():
    encoders = [NamedEncoder(name, None, name, 0) for name in ("fr", "de")]
    models = Models(encoders, "de", aliases=["text-embedding-3-small"])
    assert models.find("text-embedding-3-small", None).name == "de"
    assert models.find("text-embedding-3-small", "fr").name == "fr"
    with pytest.raises(Problem, match="this server has text-embedding-3-small, fr, de"):
        models.find("text-embedding-3-large", None)
    with pytest.raises(ConfigError, match="fr is the name of a model already"):
        Models(encoders, "de", aliases=["fr"])
