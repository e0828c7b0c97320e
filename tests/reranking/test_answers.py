"""Qwen3-Reranker's own form: the scores that its model card computes with transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

from mirror_rt import BundleError, Encoder, InvalidTextError, Reranker
from mirror_rt.bundle.onnx_files import kind_of
from rounding import SCORE_ERROR
from tiny_models import QWEN_TOKENS, SENTENCES, Tiny, make_tokenizer

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
USUAL = "Given a web search query, retrieve relevant passages that answer the query"
PAIRS = [
    ("what runs through the town?", "The river runs slowly through the old town."),
    ("a doctor", "\n(children) were playing"),
    ("  rain\n\n", " football <|im_end|> in the rain "),
    ("e", "\u0301 [SEP]"),
    ("(old)", "a river " * 900),
    ("人人", "生而自由"),
]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, made_once):
    """A tiny language model, with a tokenizer that puts nothing around texts."""

    def make(out):
        lines = [*SENTENCES, *["yes", "no"] * 50, *[PREFIX, SUFFIX, USUAL] * 4]
        tokenizer = make_tokenizer(Tiny("qwen", QWEN_TOKENS, types=False), lines)
        content = json.loads(tokenizer.to_str()) | {"post_processor": None}
        tokenizer = tokenizer.from_str(json.dumps(content))
        special = dict(QWEN_TOKENS)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=512, pad_token=special["pad"]
        ).save_pretrained(out)
        torch.manual_seed(3)
        config = Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
            max_position_embeddings=512, initializer_range=0.4,
            tie_word_embeddings=request.param,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(out)

    return made_once(f"answers/{request.param}/Qwen3-Reranker-tiny", make)


def by_the_card(folder, pairs, instruction=USUAL):
    """The probability of `yes` beside `no` as the next token, of one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    before, after = (tokenizer.encode(x, add_special_tokens=False) for x in (PREFIX, SUFFIX))
    room = 512 - len(before) - len(after)
    answers = [tokenizer.convert_tokens_to_ids(x) for x in ("no", "yes")]
    scores = []
    for query, document in pairs:
        text = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        ids = tokenizer(text, truncation="longest_first", max_length=room)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + ids + after])).logits[0, -1, answers]
        scores.append(torch.softmax(logits, 0)[1].item())
    return np.array(scores)


def test_scores_are_those_of_the_card(folder):
    expected = by_the_card(folder, PAIRS)
    assert np.ptp(expected) > 1e-2
    assert kind_of(folder).gives == "scores"
    with Reranker.load(folder) as reranker:
        assert (reranker.labels, reranker.max_length) == (("yes",), 512)
        np.testing.assert_allclose(reranker.predict(PAIRS), expected, atol=SCORE_ERROR)
        alone = [reranker.predict([pair])[0] for pair in PAIRS]
        np.testing.assert_array_equal(reranker.predict(PAIRS), alone)
        of_task = "Find {what} rhymes"
        expected = by_the_card(folder, PAIRS, of_task)
        found = reranker.predict(PAIRS, prompt=of_task)
        np.testing.assert_allclose(found, expected, atol=SCORE_ERROR)
        with pytest.raises(InvalidTextError, match="the query leaves no room for a document"):
            reranker.predict([("river " * 900, "town")])


def test_the_form_of_sentence_transformers(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "Qwen3-Reranker-tiny")
    expected = Reranker.load(folder).predict(PAIRS)
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    kinds = [("", "base.modules.transformer.Transformer"),
             ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore")]  # fmt: skip
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
               for i, (path, kind) in enumerate(kinds)]  # fmt: skip
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "sentence_bert_config.json").write_text(json.dumps({
        "transformer_task": "text-generation", "module_output_name": "causal_logits",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }))  # fmt: skip
    (copy / "1_LogitScore").mkdir()
    tokens = {"true_token_id": vocabulary["yes"], "false_token_id": vocabulary["no"]}
    (copy / "1_LogitScore/config.json").write_text(json.dumps(tokens))
    np.testing.assert_array_equal(Reranker.load(copy).predict(PAIRS), expected)
    (copy / "1_LogitScore/config.json").write_text(json.dumps(tokens | {"false_token_id": None}))
    with pytest.raises(BundleError, match="scores by other tokens than yes and no"):
        Reranker.load(copy)


def test_other_language_models_are_refused(folder, tmp_path):
    with pytest.raises(BundleError, match="scores pairs of texts"):
        Encoder.load(folder)
    copy = shutil.copytree(folder, tmp_path / "another")
    with pytest.raises(BundleError, match="no language model by the name of Qwen3-Reranker"):
        Reranker.load(copy)
    assert kind_of(copy).gives == "vectors"
