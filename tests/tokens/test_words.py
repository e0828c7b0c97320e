"""Texts are tokenised by words where that gives the same tokens; words are kept within bounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from mirror_rt import _core
from mirror_rt.tokens.words import tokenizes_by_words


def of_words(added: str = "[MASK]") -> Tokenizer:
    made = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_tokens([AddedToken(added)])
    return made


def rows(words: _core.WordIds, texts: list[str], most_tokens: int = 100) -> list[list[int]]:
    ids, offsets, _, _ = words.find(texts, most_tokens=most_tokens)
    return [ids[a:b].tolist() for a, b in pairwise(offsets.tolist())]


@pytest.mark.parametrize("added", ["new york", "a\tb", "東京"])
def test_tokens_that_may_reach_over_a_space_go_with_whole_texts(added):
    assert tokenizes_by_words(of_words())
    assert not tokenizes_by_words(of_words(added))


def test_other_tokenizers_go_with_whole_texts():
    other = of_words()
    other.normalizer = normalizers.Strip()
    assert not tokenizes_by_words(other)
    other = of_words()
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not tokenizes_by_words(other)
    other = of_words()
    other.model = BPE()
    assert not tokenizes_by_words(other)


def test_texts_of_known_words_have_their_ids():
    words = _core.WordIds(most=10)
    words.add("a", [1])
    words.add("été", [2, 3])
    words.add("\x00", [])
    texts = ["a été", "", "  a  ", "a b c b", "été été", "\x00 a", "a" * 65]
    ids, offsets, rest, unknown = words.find(texts, most_tokens=3)
    assert (rest.tolist(), unknown) == ([3, 4, 6], ["b", "c"])  # a long word is never kept
    assert (ids.tolist(), offsets.tolist()) == ([1, 2, 3, 1, 1], [0, 3, 3, 4, 4, 4, 5, 5])


def test_as_many_words_are_kept_as_are_allowed():
    words = _core.WordIds(most=2)
    for number, word in enumerate("abc"):
        words.add(word, [number])
    assert rows(words, ["a", "b", "c"]) == [[], [], [2]]
    words.add("c", [9])
    words.add("x" * 65, [9])
    assert rows(words, ["c", "x" * 65]) == [[2], []]


def test_threads_may_add_and_find_at_once():
    words = _core.WordIds(most=50)

    def work(_: int) -> bool:
        for number in range(200):
            words.add(f"w{number}", [number])
        found = rows(words, [f"w{number}" for number in range(200)] * 5)
        return all(ids in ([], [i % 200]) for i, ids in enumerate(found))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(20)))


@pytest.mark.parametrize("bad", [1, "\ud800"])
def test_what_is_no_text_is_refused(bad):
    with pytest.raises(RuntimeError, match="cast"):
        _core.WordIds(most=2).find(["a", bad], most_tokens=1)
