"""Prompts: what is put before a text, and which one."""

import numpy as np
import pytest

from json_files import change
from mirror_rt import ConfigError, Encoder
from mirror_rt.pipeline.prompts import Prompts

PROMPTS = {"query": "the question ", "passage": "the old town ", "code": "word "}


@pytest.fixture
def load(bundle_copy):
    def load(prompts=PROMPTS, default=None):
        path = bundle_copy / "mirror.json"
        change(path, prompts=prompts, default_prompt_name=default)
        return Encoder.load(bundle_copy, providers="native")  # equal bits in any batch

    return load


def test_each_way_to_ask_for_a_prompt(load):
    encoder = load()
    texts = ["river", "road"]

    def by_hand(prompt):
        return encoder.encode([prompt + text for text in texts])

    for found, prompt in [
        (encoder.encode(texts), ""),
        (encoder.encode(texts, prompt="it is "), "it is "),
        (encoder.encode(texts, prompt_name="code"), "word "),
        (encoder.encode_query(texts), "the question "),
        (encoder.encode_document(texts), "the old town "),
        (encoder.encode_query(texts, prompt_name="code"), "word "),
        (encoder.encode_query(texts, prompt=""), ""),
        (np.stack(list(encoder.encode_iter(texts, prompt_name="query"))), "the question "),
    ]:
        np.testing.assert_array_equal(found, by_hand(prompt))
    assert encoder.encode_query("river").shape == (32,)
    assert encoder.prompts.by_name == PROMPTS


def test_the_default_is_used_unless_told(load):
    encoder = load(default="code")
    expected = encoder.encode("word river", prompt="")
    np.testing.assert_array_equal(encoder.encode("river"), expected)
    expected = encoder.encode("river", prompt="the question ")
    np.testing.assert_array_equal(encoder.encode_query("river"), expected)


def test_without_the_names_the_default_serves(load):
    encoder = load({"code": "word "}, default="code")
    for method in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(method("river"), encoder.encode("river"))


def test_document_goes_before_passage():
    prompts = Prompts({"passage": "p", "document": "d"})
    assert prompts.first_of(("document", "passage")) == "document"


def test_a_prompt_makes_no_text_of_a_blank(load):
    vectors = load().encode(["river", " "], prompt="word ", errors="nan")
    assert np.isnan(vectors[1]).all()


def test_tokenize_has_no_prompt(load):
    assert load(default="code").tokenize("river") == load({}).tokenize("river")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_name": "web"}, "no prompt is called 'web'; this model has 'query', 'passage'"),
        ({"prompt": "a", "prompt_name": "code"}, "prompt or prompt_name, not both"),
        ({"prompt": b"a"}, "prompt must be str, got bytes"),
        ({"prompt": "\ud800"}, "prompt is not valid Unicode"),
        ({"prompt": "word " * 126}, "the prompt has 128 tokens and leaves no room for text: the"),
    ],
)
def test_bad_prompts(load, options, message):
    with pytest.raises(ConfigError, match=message):
        load().encode(["river"], **options)
