"""Static encoders that are distilled from a bundle, and what other parts do with them."""

import importlib
import json
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mirror_rt import ConfigError, Encoder
from mirror_rt.cli import main
from mirror_rt.distillation import DistillConfig, _added, _frequencies, distill
from mirror_rt.errors import DataError, OutputExistsError
from paths import ROOT
from rounding import STATIC_PEER
from tiers import tiers

sys.path.append(str(ROOT / "build" / "model2vec"))
TEXTS = ["the river runs", "the old town", "rivertown", "the people of the world", "zzz the town"]


@pytest.fixture(scope="module")
def static(static_bundle):
    return Encoder.load(static_bundle)


def test_sentence_transformers_reads_what_is_distilled(static, static_bundle):
    from sentence_transformers import SentenceTransformer

    ours = static.encode(TEXTS)
    theirs = SentenceTransformer(str(static_bundle), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs, atol=STATIC_PEER)


@pytest.mark.needs("model2vec")
def test_model2vec_reads_it_too(static, static_bundle):
    model = importlib.import_module("model2vec").StaticModel.from_pretrained(static_bundle)
    np.testing.assert_allclose(static.encode(TEXTS), model.encode(TEXTS), atol=STATIC_PEER)


def test_a_word_of_the_list_is_one_token(static, bundle):
    tokens = static.tokenize(["rivertown", "the rivertown", "townriver."])
    assert [len(ids) for ids in tokens] == [1, 2, len(static.tokenize(".")[0]) + 1]
    assert tokens[1][1:] == tokens[0]
    assert len(Encoder.load(bundle).tokenize("rivertown")[0]) > 3  # with two special tokens
    old = Tokenizer.from_file(str(bundle / "tokenizer.json")).get_vocab()
    new = Tokenizer.from_file(str(static.folder / "tokenizer.json")).get_vocab()
    assert old.items() <= new.items()
    assert {*new} - {*old} == {"rivertown", "townriver"}


def test_vectors_are_weighted_components_of_the_encoder(bundle, tmp_path):
    """The cosines of single tokens are those of the encoder, up to mean and first components."""
    encoder = Encoder.load(bundle)
    made = distill(encoder, tmp_path / "s", DistillConfig(dimension=encoder.dimension))
    static = Encoder.load(tmp_path / "s")
    words = ["river", "town", "people", "world", "time"]
    before = [encoder.tokenize(word)[0] for word in words]
    assert all(len(ids) == 3 for ids in before)
    plan = encoder.pipeline.plan(normalize_embeddings=False)
    size = encoder.pipeline.tokenizer.vocabulary_size
    rows = [[before[0][0], i, before[0][2]] for i in range(size)]
    tokens = encoder.pipeline.tokenize(rows, plan).tokens
    vectors, _ = encoder.pipeline.run(encoder.pipeline.pad(tokens))
    often = 1 / (np.arange(size) + 2)
    weights = 3e-5 / (3e-5 + often / often.sum())
    ids = [one[1] for one in before]
    special = {encoder.pipeline.tokenizer._tokenizer.token_to_id(name)
               for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}  # fmt: skip
    kept = np.array([i for i in range(size) if i not in special])
    spread = (often / often.sum() * weights)[kept]
    centered = vectors - np.average(vectors[kept], axis=0, weights=spread)
    _, _, vt = np.linalg.svd(centered[kept] * np.sqrt(spread * weights[kept])[:, None])
    first = round(encoder.dimension / 100)
    expected = centered @ vt[first:].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = static.encode(words)
    assert made.dimension == static.dimension == encoder.dimension - first
    np.testing.assert_allclose(found @ found.T, expected[ids] @ expected[ids].T, atol=1e-3)


def test_distilling_again_gives_the_same(bundle, static_bundle, tmp_path):
    encoder = Encoder.load(bundle)
    for name in ("a", "b"):
        distill(encoder, tmp_path / name, DistillConfig(dimension=8))
    files = ["model.safetensors", "tokenizer.json", "config.json", "modules.json"]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("family", tiers(["roberta", "xlm-roberta", "albert"], fast=["roberta"]))
def test_words_in_other_kinds_of_tokenizers(tiny_bundle, family, tmp_path):
    """BPE of bytes, and Unigram."""
    listed = tmp_path / "words.txt"
    listed.write_text("the\nriver\nrivertown\nthe river\n")
    encoder = Encoder.load(tiny_bundle(family))
    made = distill(encoder, tmp_path / "s", DistillConfig(words=str(listed)))
    assert made.training["words"] == "words.txt"
    static = Encoder.load(tmp_path / "s")
    the, town = static.tokenize(["the", "the rivertown"])
    assert town[: len(the)] == the
    assert len(town) == len(the) + 1
    old = Tokenizer.from_file(str(encoder.folder / "tokenizer.json")).get_vocab()
    new = Tokenizer.from_file(str(static.folder / "tokenizer.json")).get_vocab()
    assert old.items() <= new.items()
    assert np.isfinite(static.encode(["the rivertown", "the old people"])).all()


def test_a_word_that_unigram_has_and_cuts_gets_no_second_entry():
    """It would disable all words: the tokens of the encoder must keep their ids."""
    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("▁", -1.0), ("b", -1.0), ("c", -1.0), ("▁bc", -50.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert _added(tokenizer, {"bc": 0.1, "cb": 0.1}, set()) == {"▁cb": [2, 4, 3]}


def test_words_that_are_not_added_are_counted(bundle, tmp_path, caplog):
    listed = ["rivertown", "river-town", "new york", "水水", "\U0001f600"]
    (tmp_path / "words.txt").write_text("\n".join(listed))
    distill(
        Encoder.load(bundle), tmp_path / "out", DistillConfig(words=str(tmp_path / "words.txt"))
    )
    (said,) = (one.getMessage() for one in caplog.records if "are not added" in one.getMessage())
    assert said.startswith("4 of 5 words are not added")
    assert all(repr(word) in said for word in listed[1:])


def test_words_that_begin_sentences_are_not_rare():
    """A list of words in lower case says how frequent the token with a capital letter is, too."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "The": 1, "the": 2, "élan": 3, "Élan": 4}))
    often = _frequencies(tokenizer, 5000, {}, {"the": 0.9, "élan": 0.1})
    np.testing.assert_allclose(often[1:5], [0.45, 0.45, 0.05, 0.05])


# Words of the last two wordfreq cannot tokenise by itself.
@pytest.mark.parametrize("language", tiers(["en", "zh", "ko"], fast=["en"]))
def test_words_of_a_language(bundle, tmp_path, language):
    config = DistillConfig(words=language, top=100)
    made = distill(Encoder.load(bundle), tmp_path / "made", config)
    assert made.training["words"] == language
    with pytest.raises(ConfigError, match="no word list for language 'xx'"):
        distill(Encoder.load(bundle), tmp_path / "t", DistillConfig(words="xx"))
    assert not (tmp_path / "t").exists()


def test_bad_input_leaves_nothing_behind(bundle, static, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    encoder = Encoder.load(bundle)
    with pytest.raises(DataError, match="holds no texts"):
        distill(encoder, tmp_path / "s", DistillConfig(words=str(tmp_path / "empty.txt")))
    with pytest.raises(ConfigError, match="is a static encoder already"):
        distill(static, tmp_path / "s", DistillConfig())
    for name in ("top", "dimension"):
        with pytest.raises(ConfigError, match=name):
            DistillConfig(**{name: 0})
    with pytest.raises(OutputExistsError):
        distill(encoder, static.folder, DistillConfig())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt"]


def test_the_commands_take_it_like_any_bundle(bundle, tmp_path, capsys):
    out = tmp_path / "s"
    assert main(["distill", str(bundle), "--out", str(out), "--quiet"]) == 0
    assert main(["info", str(out)]) == 0
    assert "every SHA-256 verified" in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    vectors = tmp_path / "v.npy"
    assert main(["encode", str(out), "--input", str(tmp_path / "texts.txt"),
                 "--output", str(vectors)]) == 0  # fmt: skip
    assert "padding 0.0%" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(vectors), Encoder.load(out).encode(TEXTS))
    assert main(["triton", str(out), "--out", str(tmp_path / "t")]) == 2
    assert "static encoder" in capsys.readouterr().err
    card = (out / "README.md").read_text()
    assert "static" in card
    assert "onnxruntime alone" not in card
    assert json.loads((out / "config.json").read_text())["model_type"] == "model2vec"


def test_compat_takes_it(static, static_bundle):
    from mirror_rt.compat import SentenceTransformer

    np.testing.assert_array_equal(
        SentenceTransformer(str(static_bundle)).encode(TEXTS), static.encode(TEXTS)
    )
