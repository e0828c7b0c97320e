"""SimCSE: without labels a case of Mirror-BERT, with inference labels hard negatives."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mirror_rt import ConfigError, DataError
from mirror_rt.bundle.manifest import Manifest
from mirror_train import TrainConfig, TrainingData, load_recipe, load_training_data, tune
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.views import dropout_seed, step_rng
from mirror_train.model.cpu import quicken_on_cpu
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.checkpoint import CheckpointStore
from mirror_train.training.mirror import ViewTokenizer, mirror_trainer
from rounding import HALF_UNIT, RUN_ERROR, of_losses

ALONE = Processes(torch.device("cpu"))
# Of a cosine of hidden states that two ways through the model give, divided by the temperature .05;
# gradients have such weights, and go back through as many operations.
LOSS_ERROR = 2 * RUN_ERROR / 0.05 + of_losses(32, 0.05, HALF_UNIT)
GRADIENT_ERROR = 2 * LOSS_ERROR + 2 * RUN_ERROR


@pytest.fixture
def equal_lengths(tiny_bert, words):
    """48 strings of one number of tokens, so that a batch goes through the model at once."""
    tokenizer = load_pretrained(tiny_bert).text_tokenizer(32)
    strings = [f"{a} {b}" for a, b in zip(words[:390], words[3:393], strict=True)]
    strings = [text for text in strings if tokenizer([text]).tokens.lengths[0] == 4][:48]
    assert len(strings) == 48
    return strings


def first_step(model, data, recipe):
    """The loss and the gradient of a run's first step, and what the step was."""
    pretrained = load_pretrained(model, dropout=recipe.dropout)
    batches = Batches(data, recipe, loss_batch=recipe.batch_size, seed=5, processes=ALONE,
                      mask_token=pretrained.mask_token)  # fmt: skip
    trainer = mirror_trainer(pretrained, batches, recipe, precision="fp32", processes=ALONE)
    gradients = []

    def keep(optimizer, *_):
        parameters = optimizer.param_groups[0]["params"]
        dense = [p.grad.to_dense() for p in parameters if p.grad is not None]
        gradients.append(torch.cat([gradient.flatten() for gradient in dense]))

    hook = register_optimizer_step_pre_hook(keep)
    try:
        loss = trainer.run(CheckpointStore(model / "unused", {})).losses[0]
    finally:
        hook.remove()
    return loss, gradients[0], batches[0]


def simcse(model, batch, *, views):
    """As the authors' code: each sentence `views` times through one pass, cross-entropy of cosines.

    Nothing of the trainer is in it but the order of rows and the seed, which decide the dropout.
    """
    pretrained = load_pretrained(model, dropout=0.1)
    encoder = pretrained.model.train()
    quicken_on_cpu(encoder, "fp32")  # draws the masks that the trainer's dropout draws
    encoder.get_input_embeddings().sparse = False
    tokens = pretrained.text_tokenizer(32)(batch.texts).tokens
    padded = tokens.pad(np.arange(len(tokens)), pad_id=pretrained.pad_id)
    torch.manual_seed(dropout_seed(step_rng(seed=5, step=0), rank=0))
    hidden = encoder(
        input_ids=torch.from_numpy(padded.input_ids),
        attention_mask=torch.from_numpy(padded.attention_mask),
    ).last_hidden_state
    z1, *others = hidden[:, 0].chunk(views)
    logits = torch.cat(
        [functional.cosine_similarity(z1.unsqueeze(1), z.unsqueeze(0), dim=-1) for z in others], 1
    )
    loss = functional.cross_entropy(logits / 0.05, torch.arange(len(z1)))
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])
    return loss.item(), gradient, (z1, *others)


def test_mirror_without_masking_is_simcse(tiny_bert, equal_lengths):
    """Mirror-BERT with k = 0 gives SimCSE's views: the same strings, told apart by dropout alone.

    With SimCSE's loss and temperature it is one and the same training step.
    """
    data = TrainingData(equal_lengths, equal_lengths, None, "strings")
    mirror = load_recipe("sentence").replace(
        span_length=0, loss="one_way", temperature=0.05, batch_size=48, pooling="cls"
    )
    loss, gradient, batch = first_step(tiny_bert, data, mirror)
    first, second = batch.texts[:48], batch.texts[48:]
    assert batch.views == 2
    assert first == second
    assert sorted(first) == sorted(equal_lengths)
    expected, expected_gradient, (z1, z2) = simcse(tiny_bert, batch, views=2)
    assert (z1 - z2).abs().amax(dim=1).min() > 1e-3  # dropout differs for every string
    assert loss == pytest.approx(expected, abs=LOSS_ERROR)
    assert (gradient - expected_gradient).norm() <= GRADIENT_ERROR * expected_gradient.norm()

    recipe = load_recipe("simcse").replace(batch_size=48)
    assert first_step(tiny_bert, data, recipe)[0] == loss
    masked = first_step(tiny_bert, data, mirror.replace(span_length=3))
    assert masked[2].texts[:48] == first
    assert masked[2].texts[48:] != second
    assert masked[0] != loss


def test_hard_negatives_join_the_denominator(tiny_bert, equal_lengths):
    """Gao et al. 2021, Eq. 5, as a step of the trainer."""
    strings = [equal_lengths[i : i + 16] for i in (0, 16, 32)]
    data = TrainingData(strings[0], strings[1], None, "triplets", hard_negatives=strings[2])
    recipe = load_recipe("simcse-nli").replace(batch_size=16, epochs=1)
    loss, gradient, batch = first_step(tiny_bert, data, recipe)
    assert batch.views == 3
    rows = [strings[0].index(text) for text in batch.texts[:16]]
    assert batch.texts[16:] == [s[i] for s in strings[1:] for i in rows]
    expected, expected_gradient, _ = simcse(tiny_bert, batch, views=3)
    assert loss == pytest.approx(expected, abs=LOSS_ERROR)
    assert (gradient - expected_gradient).norm() <= GRADIENT_ERROR * expected_gradient.norm()


def test_what_hard_negatives_do_not_go_with(tiny_bert, words, tmp_path):
    """And data with other negatives are other data."""
    columns = [words[:120], words[120:240], words[240:360]]
    data = TrainingData(columns[0], columns[1], None, "t", hard_negatives=columns[2])
    recipe = load_recipe("simcse-nli")
    other = TrainingData(columns[0], columns[1], None, "t", hard_negatives=columns[0])
    assert other.sha256() != data.sha256() != TrainingData(*columns[:2], None, "t").sha256()
    for changes, message in [
        ({"loss": "multi_similarity", "temperature": 1}, "t has hard negatives, which the loss"),
        ({"same_dropout": True}, "give no hard negatives"),
    ]:
        config = TrainConfig(
            recipe=recipe.replace(**changes), out=tmp_path / "c", model=str(tiny_bert)
        )
        with pytest.raises(ConfigError, match=message):
            tune(data, config)


def test_spans_of_tokens_are_masked_in_positives_alone(tiny_bert, words):
    columns = [[f"{a} {b} {a}" for a, b in zip(words[i:], words[i + 9 :], strict=False)][:30]
               for i in (0, 40, 80)]  # fmt: skip
    data = TrainingData(columns[0], columns[1], None, "t", hard_negatives=columns[2])
    recipe = load_recipe("cf").replace(batch_size=30, epochs=1)
    pretrained = load_pretrained(tiny_bert)
    batch = Batches(data, recipe, loss_batch=30, seed=5, processes=ALONE,
                    mask_token=pretrained.mask_token)[0]  # fmt: skip
    plain = pretrained.text_tokenizer(recipe.max_length)(batch.texts).tokens
    masked = ViewTokenizer(pretrained, recipe)(batch).tokens
    rows = [i for i, (a, b) in enumerate(masked.spans())
            if (masked.ids[a:b] != plain.ids[a:b]).any()]  # fmt: skip
    assert len(rows) > 20
    assert min(rows) >= 30
    assert max(rows) < 60


NLI = [
    ("Men play.", "People play.", "entailment"),
    ("Men play.", "Men sleep.", "contradiction"),
    ("Men play.", "Men play football.", "neutral"),
    ("Men play.", "Men are outside.", "entailment"),
    ("A dog runs.", "An animal runs.", "entailment"),
    ("A dog runs.", "A dog sits.", "contradiction"),
    ("A dog runs.", "Nothing runs.", "contradiction"),
    ("It rains.", "It is wet.", "entailment"),
    ("It rains.", "It is dry.", "-"),
]
TRIPLETS = [
    ("Men play.", "People play.", "Men sleep."),
    ("A dog runs.", "An animal runs.", "A dog sits."),
]


def write(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text)
    return path


def triplets_of(data):
    return list(zip(data.first, data.second, data.hard_negatives, strict=True))


def test_inference_pairs_become_triplets(tmp_path):
    table = "premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in NLI)
    published = "gold_label\tsentence1\tsentence2\n"
    published += "".join(f"{c}\t{a}\t{b}\n" for a, b, c in NLI)
    lines = "".join(
        json.dumps({"gold_label": c, "sentence1": a, "sentence2": b, "pairID": "1"}) + "\n"
        for a, b, c in NLI
    )
    for name, text in [("a.tsv", table), ("snli.txt", published), ("snli.jsonl", lines)]:
        data = load_training_data(write(tmp_path, text, name), data_format="nli", language="en")
        assert triplets_of(data) == TRIPLETS
        assert (data.group_ids, data.language, data.source) == ([0, 1], "en", name)
        assert data.summary()["hard_negatives"]


def test_triplets_as_they_are(tmp_path):
    """SimCSE's own file, and the names of sentence-transformers."""
    own = 'sent0,sent1,hard_neg\n"a, b",c,d\n"a, b",e,f\n"a, b",c,d\n'
    data = load_training_data(write(tmp_path, own, "nli_for_simcse.csv"), data_format="triplets")
    assert triplets_of(data) == [("a, b", "c", "d"), ("a, b", "e", "f")]
    assert (data.group_ids, data.duplicates) == ([0, 0], 1)
    other = "anchor\tpositive\tnegative\na\tb\tc\n"
    data = load_training_data(write(tmp_path, other, "t.tsv"), data_format="triplets")
    assert triplets_of(data) == [("a", "b", "c")]


@pytest.mark.parametrize(
    ("data_format", "text", "message"),
    [
        ("triplets", "", "is empty"),
        ("triplets", "sent0\tsent1\thard_neg\n", "has no triplets"),
        ("triplets", "sent0\tsent1\na\tb\n", "has no hard negatives: expected a column 'hard_neg'"),
        ("triplets", "a\tb\tc\nd\te\tf\n", "has no anchors"),
        ("triplets", "sent0\tsent1\thard_neg\na\tb\n", "line 2: 2 cells, the header has 3"),
        ("triplets", "sent0\tsent1\thard_neg\na\tb\t \n", "line 2, column hard_neg: the string is"),
        # What read_nli refuses is in test_pairs_readers.py.
        ("nli", "premise\thypothesis\tlabel\na\tb\tyes\n", "line 2: the label 'yes', expected"),
        ("nli", "premise\thypothesis\tlabel\na\tb\tneutral\n", "no premise has both"),
        ("nli", "premise\thypothesis\tlabel\na\t\tentailment\na\tb\tcontradiction\n", "no premise"),
    ],
)
def test_unusable_files(tmp_path, data_format, text, message):
    with pytest.raises(DataError, match=message):
        load_training_data(write(tmp_path, text, "data.tsv"), data_format=data_format)


def test_real_inference_pairs(data):
    """SNLI as SentEval has it: three sentences a premise, one of each label or nearly so."""
    found = load_training_data(data / "pairs" / "snli-dev.tsv", data_format="nli")
    assert 2800 < len(found) < 3300
    assert len(set(found.group_ids)) <= len(found)
    row = found.first.index("Two women are embracing while holding to go packages .")
    assert found.second[row] == "Two woman are holding packages ."
    assert found.hard_negatives[row] == "The men are fighting outside a deli ."


@pytest.mark.full
def test_supervised_simcse_by_command(tiny_bert, words, tmp_path, succeed):
    rows = [("premise", "hypothesis", "label")]
    for i in range(0, 300, 3):
        rows += [(words[i], words[i + 1], "entailment"), (words[i], words[i + 2], "contradiction")]
    path = write(tmp_path, "".join("\t".join(row) + "\n" for row in rows), "nli.tsv")
    succeed("tune", "--recipe", "simcse-nli", "--data", path, "--data-format", "nli", "--model",
            tiny_bert, "--out", tmp_path / "out", "--batch-size", 50, "--precision", "fp32",
            "--learning-rate", 1e-3, "--epochs", 6)  # fmt: skip
    manifest = Manifest.read(tmp_path / "out", "mirror_rt encoder")
    assert manifest.data["hard_negatives"]
    assert manifest.data["strings"] == 100
    assert manifest.training["loss_last"] < manifest.training["loss_first"] - 0.1
