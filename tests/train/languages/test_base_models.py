"""The table of languages: what is shipped, a user's own, and its errors."""

import json

import pytest

from command_errors import one_line_error
from mirror_rt import ConfigError
from mirror_train import has_word_list, load_languages
from mirror_train.training.fit import letters_by_script, script_warning


@pytest.fixture(scope="module")
def table():
    return load_languages()


@pytest.fixture
def own(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def _no_own_table(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MIRROR_RT_RECIPES", raising=False)


def test_all_that_wordfreq_has_words_for(table):
    import wordfreq

    listed = wordfreq.available_languages()
    assert len(listed) > 40
    assert set(listed) <= set(table.languages)
    for language, row in table.languages.items():
        assert row["name"] != language
        assert row["scripts"]
        assert len({base.name for base in table.bases_of(language)}) >= 1
        assert language in table.bases_of(language)[0].languages


def test_the_scripts_are_those_of_the_words(table):
    import wordfreq

    for language in wordfreq.available_languages():
        words = wordfreq.top_n_list(language, 200, wordlist="small")
        assert script_warning(words, language, table.languages[language]["scripts"], "x") is None


def test_tags_fall_back_and_keep_their_name(table):
    row = table.recipe("PT_br", "word")
    assert (row.language, row.name, row.base.name) == ("pt-BR", "Portuguese", "bertimbau")
    assert table.recipe("fr", "word", base="some/model").base.model == "some/model"
    assert table.recipe("fr", "word", base="camembert-base").base.name == "camembert"


@pytest.mark.parametrize(
    ("tag", "level", "message"),
    [
        (
            "french",
            "word",
            r"no language 'french' \(did you mean fr\?\); mirror-rt recip",
        ),
        ("fil-", "word", r"no language 'fil-' \(did you mean fil\?\)"),
        ("xq", "word", "no language 'xq'; mirror-rt recipes lists all"),
        ("fr", "words", r"no level 'words' \(did you mean 'word'\?\); there are word, phrase"),
    ],
)
def test_unknown_languages_and_levels(table, tag, level, message):
    with pytest.raises(ConfigError, match=message):
        table.recipe(tag, level)


OWN = """
[bases.mine]
model = "folder/of/mine"
revision = "v2"
languages = ["fr", "ga"]

[languages.ga]
name = "Irish"
base = "mine"
word.epochs = 3

[languages.fr.sentence]
base = "mine"
temperature = 0.05
pooling = "mean-with-padding"

[bases.mbert]
revision = "0123abc"
"""


def test_a_table_of_ones_own_adds_and_overrides(own, table):
    mine = load_languages(own(OWN))
    irish = mine.recipe("ga", "word")
    assert (irish.base.model, irish.base.revision, irish.recipe.epochs) == (
        "folder/of/mine",
        "v2",
        3,
    )
    assert mine.recipe("fr", "word") == table.recipe("fr", "word")
    sentence = mine.recipe("fr", "sentence")
    assert (sentence.base.name, sentence.recipe.temperature) == ("mine", 0.05)
    assert sentence.recipe.span_length == 5
    assert (sentence.pooling, mine.recipe("fr", "word").pooling) == ("mean-with-padding", "auto")
    assert mine.bases["mbert"].revision == "0123abc"
    assert mine.bases["mbert"].model == "bert-base-multilingual-uncased"


def test_later_tables_win(own, monkeypatch):
    row = "[languages.fr]\nbase = '{}'\n[languages.fr.word]\nepochs = {}"
    own(row.format("mbert", 3), "config/mirror-rt/languages.toml")
    assert load_languages().recipe("fr", "word").base.name == "mbert"
    monkeypatch.setenv("MIRROR_RT_RECIPES", str(own("[languages.fr.word]\nepochs = 4", "env.toml")))
    got = load_languages().recipe("fr", "word")
    assert (got.base.name, got.recipe.epochs) == ("mbert", 4)
    got = load_languages(own("[languages.fr]\nbase = 'camembert'")).recipe("fr", "word")
    assert (got.base.name, got.recipe.epochs) == ("camembert", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[langages.fr]", r"unknown key 'langages' in the file \(did you mean 'languages'\?\)"),
        ("[languages.fr]\nbse = 'x'", r"unknown key 'bse' in .*did you mean 'base'"),
        ("[languages.fr]\nbase = 'camembrt'", r"no base model .*did you mean 'camembert'"),
        ("[languages.fr.wrd]\nepochs = 1", r"unknown key 'wrd' .*did you mean 'word'"),
        ("[languages.fr.word]\nepoch = 1", r"unknown key 'epoch' in .*did you mean 'epochs'"),
        ("[languages.fr.word]\nepochs = 0", r"\[languages\.fr\.word\]: epochs must be at least 1"),
        ("[languages.fr.word]\nepochs = '1'", "epochs must be int, got '1'"),
        ("[languages.fr.word]\nlevel = 'phrase'", "unknown key 'level'"),
        ("[languages.fr]\nword = 1", "must be a table, got 1"),
        ("[languages.ga]\nname = 'Irish'", r"\[languages\.ga\] is a new language: it needs base"),
        ("[languages.'n o']\nbase = 'bert'", "'n o' is not a language tag"),
        ("[languages.fr]\nscripts = 'Latn'", r"fr\]\.scripts is 'Latn', expected a list"),
        ("[bases.x]\nlanguages = ['fr']", r"\[bases\.x\] needs model, a hub name or a folder"),
        ("[bases.x]\nmodel = ''", r"\[bases\.x\]\.model is '', expected a text"),
        ("[bases.x]\nmodel = 'y'\nlanguages = ['frr']", r"no language 'frr' \(did you mean 'fr'"),
        ("[bases.x]\nmodel = 'y'\npooling = 'last'", "pooling is 'last', expected one of 'cls'"),
        ("[bases.x]\nmodel = 'y'\nrevison = 'z'", "'revison' .*did you mean 'revision'"),
        ("bases = 3", "bases must be a table, got 3"),
        ("[bases", r"mine\.toml: "),
    ],
)  # fmt: skip
def test_mistakes_are_named(own, text, message):
    path = own(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_languages(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_languages(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="utf-8"):
        load_languages(tmp_path / "x.toml")


def test_the_command(cli, succeed, own):
    result = succeed("recipes")
    lines = result.out.splitlines()
    assert lines[0].split()[:3] == ["tag", "language", "base"]
    assert len(lines) == 50
    french = next(line for line in lines if line.startswith("fr "))
    assert "camembert-base" in french
    assert "Mirror-BERT, Table 15" in french
    result = cli("recipes", "fr", "--level", "word")
    assert [line.split()[:4] for line in result.out.splitlines()[1:3]] == [
        ["fr", "word", "camembert", "camembert-base"],
        ["fr", "word", "mbert", "bert-base-multilingual-uncased"],
    ]
    values = json.loads(cli("recipes", "ga", "--recipes", own(OWN), "--json").out)
    assert [(v["recipe"]["level"], v["recipe"]["epochs"]) for v in values] == [
        ("word", 3), ("phrase", 2), ("sentence", 1)]  # fmt: skip
    assert values[0]["base"]["revision"] == "v2"
    assert len(json.loads(cli("recipes", "--level", "word", "--json").out)) == 49
    one_line_error(cli("recipes", "frnch"), code=2, contains="did you mean fr?")
    one_line_error(cli("recipes", "fr", "--level", "w"), code=2, contains="no level 'w'")


@pytest.mark.parametrize(
    ("text", "script"),
    [("река", "Cyrl"), ("人生", "Hani"), ("ひらがな", "Hira"), ("é", "Latn"), ("שלום", "Hebr"),
     ("ﷺ", "Arab"), ("हिन्दी", "Deva"), ("한국", "Hang"), ("ª", "Zzzz")],
)  # fmt: skip
def test_scripts(text, script):
    assert letters_by_script([text]).most_common(1)[0][0] == script


def test_words_in_another_script_are_warned_of():
    words = ["house", "tree", "река"]
    assert script_warning(words, "ru", ["Cyrl"], "ru.txt") == (
        "ru.txt: 69% of its letters are of the script Latn, but ru is written in Cyrl: is it the "
        "right file?"
    )
    assert script_warning(["река", "дорога", "tree"], "ru", ["Cyrl"], "x") is None
    assert script_warning(["house"], "sr", ["Latn", "Cyrl"], "x") is None
    assert script_warning(["house"], "ga", [], "x") is None
    assert script_warning(["1 2"], "ru", ["Cyrl"], "x") is None


def test_which_languages_have_words():
    assert [tag for tag in ("fr", "pt-BR", "zh-TW", "hr", "no", "xx", "sq", "et", "?")
            if has_word_list(tag)] == ["fr", "pt-BR", "zh-TW", "hr", "no"]  # fmt: skip
