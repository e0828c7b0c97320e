import logging

import pytest

from mirror_rt import ConfigError, DataError
from mirror_train import load_training_data, word_list
from mirror_train.data.strings import longer_than


def write(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_blank_lines_and_duplicates_are_dropped_and_counted(tmp_path):
    data = load_training_data(write(tmp_path, "b\na\n\n  \n b \nc\na\n"))
    assert data.first == ["b", "a", "c"]
    assert data.second is data.first
    assert (data.blank, data.duplicates, data.group_ids) == (2, 2, None)
    assert data.summary()["strings"] == 3


def test_pairs_are_recognised(tmp_path):
    data = load_training_data(write(tmp_path, "heart attack||infarction\na || b\n"))
    assert list(zip(data.first, data.second, strict=True)) == [
        ("heart attack", "infarction"),
        ("a", "b"),
    ]
    data = load_training_data(write(tmp_path, "a\tb\nc\td\n", "pairs.tsv"))
    assert data.second == ["b", "d"]
    assert data.summary()["supervised_pairs"]


def test_pairs_that_share_a_string_are_one_group(tmp_path):
    data = load_training_data(write(tmp_path, "a||b\nc||d\nb||e\nf||g\ng||c\n"))
    assert data.group_ids == [0, 1, 0, 1, 1]


def test_some_bars_are_text_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        data = load_training_data(write(tmp_path, "a||b\nplain\n"))
    assert data.first == ["a||b", "plain"]
    assert "1 of 2 lines hold '||'" in caplog.text


@pytest.mark.parametrize(
    ("text", "data_format", "message"),
    [
        ("a||b\nc\n", "pairs", r"line 2: expected two texts separated by '\|\|', got 1: 'c'"),
        ("a||b||c\n", "pairs", "line 1: expected two texts"),
        ("a||\n", "pairs", "line 1: expected two texts"),
        ("a b\n", "tsv", "line 1: expected two texts"),
        ("", "auto", "is empty"),
        ("\n \n", "auto", "is empty"),
    ],
)
def test_unusable_files(tmp_path, text, data_format, message):
    with pytest.raises(DataError, match=message):
        load_training_data(write(tmp_path, text), data_format=data_format)


def test_only_longer_strings(tmp_path):
    """BERT-CF, section 5.1: "we remove all sentences length 5 or less"."""
    path = tmp_path / "lines.txt"
    path.write_text("a b c d e\na b c d e f\nheading\na  b c d e f  g\n")
    data = longer_than(load_training_data(path), 5)
    assert data.first == data.second == ["a b c d e f", "a  b c d e f  g"]
    assert data.source == "lines.txt, strings of more than 5 words"
    path.write_text("a||b\nc||d\n")
    with pytest.raises(ConfigError, match="is for plain strings, and lines"):
        longer_than(load_training_data(path), 5)


def test_hash_depends_on_the_strings_alone(tmp_path):
    one = load_training_data(write(tmp_path, "a\nb\n", "one.txt"))
    two = load_training_data(write(tmp_path, "\ufeffa\r\n\r\nb", "two.txt"))
    other = load_training_data(write(tmp_path, "b\na\n", "three.txt"))
    assert one.sha256() == two.sha256() != other.sha256()


def test_word_lists():
    words = word_list("ru", top=50)
    assert len(words) == 50
    assert words.first[:3] == ["в", "и", "на"]
    assert words.language == "ru"
    with pytest.raises(ConfigError, match=r"no word list for language 'xx'; there are ar, "):
        word_list("xx")
    with pytest.raises(ConfigError, match="top must be at least 1, got 0"):
        word_list("en", top=0)
