"""Multi-task fine-tuning: from files to a bundle whose heads predict what PyTorch's do."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch

from mirror_rt import BundleError, ConfigError, DataError, InvalidTextError, ModelError, Predictor
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.heads.task_heads import Heads
from mirror_train import TorchEncoder, TrainConfig
from mirror_train.data.passes import Passes
from mirror_train.data.tasks import MultitaskData
from mirror_train.systems import (
    MultitaskRecipe,
    load_multitask_data,
    train,
)
from mirror_train.training.labelled import step_batches
from rounding import ANY_BATCH, GATE, of_correlation

GOOD, BAD, FILL = ["good", "best", "love"], ["bad", "lost", "death"], ["the", "of", "day", "house"]
GRADES = [BAD[:2], BAD[:1], FILL[:1], GOOD[:1], GOOD[:2]]


def text(rng, *words):
    return " ".join([*words, *rng.choice(FILL, 2)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files in the form of the real ones, of tasks that one word decides."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("pairs")
    sentiment, quora, sts = [], [], []
    for i in range(120):
        sentiment.append(f"{i}\tx\t{text(rng, *GRADES[i % 5])}{i}\t{i % 5}")
        word, other = rng.choice(GOOD), rng.choice(BAD)
        same = i % 2
        pair = f"{text(rng, word)} {i}\t{text(rng, word if same else other)} {i}"
        quora.append(f"{i}\tx\t{pair}\t{same}.0")
        sts.append(f"{i}\tx\t{pair}\t{5.0 if same else 1.0}")
    pair = "\tid\tsentence1\tsentence2\t"
    files = {
        "ids-sst": ("\tid\tsentence\tsentiment", sentiment),
        "quora": (pair + "is_duplicate", quora),
        "sts": (pair + "similarity", sts),
    }
    for name, (header, lines) in files.items():
        for part, rows in (("train", lines[:80]), ("dev", lines[80:])):
            if (name, part) != ("quora", "train"):  # as in the data at hand: one file alone
                whole = "\n".join([header, *(lines if name == "quora" else rows)])
                (path / f"{name}-{part}.csv").write_text(whole + "\n", encoding="utf-8")
    return path


RECIPE = MultitaskRecipe(
    steps=30,
    learning_rate=2e-3,
    projection=16,
    batch_sizes={"sentiment": 16, "paraphrase": 24, "similarity": 16},
)


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="tuned", **options):
        changes = options.pop("recipe", {})
        recipe = dataclasses.replace(RECIPE, **changes)
        return TrainConfig(
            out=tmp_path / out, model=str(tiny_bert), precision="fp32", recipe=recipe, **options
        )

    return make


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, tiny_bert, folder):
    out = tmp_path_factory.mktemp("multitask") / "tuned"
    return train(
        "multitask",
        load_multitask_data(folder),
        TrainConfig(out=out, model=str(tiny_bert), precision="fp32", recipe=RECIPE),
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tuned):
    from mirror_export import ExportConfig, export_bundle

    out = tmp_path_factory.mktemp("multitask") / "bundle"
    export_bundle(ExportConfig(str(tuned.out), out))
    return out


def test_the_folder_is_an_ordinary_one_with_heads(tuned):
    losses = tuned.stats.losses
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    manifest = Manifest.read(tuned.out, "mirror_rt encoder")
    manifest.verify(tuned.out)
    assert manifest.pooling == "mean"
    assert {"heads/heads.json", "heads/paraphrase.npz"} <= set(manifest.files)
    assert manifest.recipe["system"] == "multitask"
    assert manifest.recipe["weights"] == {"sentiment": 5.0, "paraphrase": 20.0, "similarity": 1.0}
    assert manifest.data["tasks"]["paraphrase"]["dev"]["rows"] == 12
    assert manifest.training["best_step"] in (10, 20, 30)
    metrics = manifest.training["metrics"]
    assert {name: sorted(scores) for name, scores in metrics.items()} == {
        "sentiment": ["accuracy", "majority"],
        "paraphrase": ["accuracy", "majority"],
        "similarity": ["pearson", "spearman"],
    }
    heads = Heads.read(tuned.out)
    assert heads.get("paraphrase").weight.shape == (16, 32)
    assert heads.get("paraphrase").hinge == 0.7
    assert heads.get("similarity").scale == (0.0, 5.0)
    assert heads.get("sentiment").labels[4] == "very positive"


def test_the_bundle_predicts_what_pytorch_does(tuned, exported, folder):
    """Labels of PyTorch's own layers, of numpy's on its vectors, and of the bundle's."""
    bundle = Predictor.load(exported)
    torch_side = Predictor(TorchEncoder.load(tuned.out), Heads.read(tuned.out))
    for name, part in load_multitask_data(folder).tasks.items():
        items = part.train.items() + part.dev.items()
        found, expected = bundle.predict(name, items), torch_side.predict(name, items)
        np.testing.assert_allclose(found.scores, expected.scores, atol=GATE)
        near = np.abs(expected.scores - 0.85) < GATE if name == "paraphrase" else np.zeros(1)
        assert found.labels == expected.labels or near.any()
    head = Heads.read(tuned.out).get("sentiment")
    texts = ["good best the", "bad lost of"]
    z = torch.from_numpy(TorchEncoder.load(tuned.out).encode(texts, normalize_embeddings=False))
    logits = z @ torch.from_numpy(head.weight).T + torch.from_numpy(head.bias)
    assert bundle.predict("sentiment", texts).labels == [head.labels[i] for i in logits.argmax(1)]


def test_metrics_are_those_of_the_saved_weights(tuned, folder):
    """The best weights were put back: what mirror.json says is what the folder does."""
    predictor = Predictor(TorchEncoder.load(tuned.out), Heads.read(tuned.out))
    metrics = tuned.manifest.training["metrics"]
    dev = load_multitask_data(folder).tasks["similarity"].dev
    found = predictor.predict("similarity", dev.items()).scores
    pearson = np.corrcoef(found, dev.targets)[0, 1]
    assert metrics["similarity"]["pearson"] == pytest.approx(
        pearson, abs=of_correlation(found, 5 * ANY_BATCH)
    )
    dev = load_multitask_data(folder).tasks["sentiment"].dev
    said = predictor.predict("sentiment", dev.items()).labels
    right = [dev.labels[i] for i in dev.targets]
    assert metrics["sentiment"]["accuracy"] == pytest.approx(np.mean(np.array(said) == right))


def test_earlier_weights_are_kept_where_they_were_better(folder, configure, monkeypatch):
    from mirror_train.training import labelled

    def metrics_of(value):
        return {"similarity": {"pearson": value}}

    values = iter([0.9, 0.2, 0.1])
    states = []

    def evaluate(model, held):
        layer = model.layers["similarity"]
        states.append(layer.linear.weight.detach().clone())
        return metrics_of(next(values))

    monkeypatch.setattr(labelled, "evaluate_tasks", evaluate)
    data = MultitaskData({"similarity": load_multitask_data(folder).tasks["similarity"]})
    report = train("multitask", data, configure(recipe={"steps": 3}, evaluate_every=1))
    assert report.manifest.training["best_step"] == 1
    assert report.manifest.training["metrics"] == metrics_of(0.9)
    kept = Heads.read(report.out).get("similarity").weight
    np.testing.assert_array_equal(kept, states[0].numpy())
    assert np.abs(kept - states[2].numpy()).max() > 0


@pytest.mark.full
def test_a_step_is_the_weighted_sum_of_the_tasks(folder, configure):
    """L = 5 L_sent + 20 L_para + L_sem (section 4.3), without dropout, at the first step."""
    from mirror_train.systems.multitask import _layer
    from mirror_train.training.labelled import open_model
    from mirror_train.training.run import begun

    data = load_multitask_data(folder)
    zero = dict.fromkeys(("sentiment", "paraphrase", "similarity"), 0.0)
    config = configure(recipe={"steps": 1, "dropout": 0.0, "dropouts": zero})
    make = {
        name: lambda dimension, name=name, part=part: _layer(
            name, part.train, config.recipe, dimension
        )
        for name, part in data.tasks.items()
    }
    with begun(config, "fp32") as run:
        layers = open_model(run, make, data={}).layers
    encoder = TorchEncoder.load(config.model, pooling="mean")
    expected = 0.0
    for task, texts, targets in step_batches(data, config.recipe.batch_sizes, config.seed)(0):
        z = torch.from_numpy(encoder.encode(texts, normalize_embeddings=False))
        loss = layers[task].loss(z, torch.from_numpy(targets)).item()
        expected += {"sentiment": 5, "paraphrase": 20, "similarity": 1}[task] * loss
    found = train("multitask", data, config).stats.losses[0]
    assert found == pytest.approx(expected, rel=1e-4)


def test_tasks_of_different_sizes_are_passed_through_at_their_own_pace(folder):
    data = load_multitask_data(folder)
    batches = step_batches(data, MultitaskRecipe().batch_sizes, 3)(0)
    assert [(b.task, len(b.texts), len(b.targets)) for b in batches] == [
        ("sentiment", 32, 32), ("paraphrase", 192, 96), ("similarity", 64, 32),
    ]  # fmt: skip
    passes = Passes(10, 4, (1, 2))
    drawn = np.concatenate([passes[i] for i in range(5)])
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10].tolist() != drawn[10:].tolist()
    np.testing.assert_array_equal(Passes(10, 4, (1, 2))[3], passes[3])
    small = Passes(3, 6, (1, 2))[0].tolist()  # fewer rows than a batch: some are there twice
    assert sorted(small) == [0, 0, 1, 1, 2, 2]


def test_bad_input(folder, configure, tmp_path):
    data = load_multitask_data(folder)
    rows = data.tasks["sentiment"]
    without = rows.train.take(np.flatnonzero(rows.train.targets != 3))
    lacking = MultitaskData({"sentiment": dataclasses.replace(rows, train=without)})
    with pytest.raises(DataError, match="has the label 'positive', which could never be learnt"):
        train("multitask", lacking, configure())
    with pytest.raises(ModelError, match=r"the loss became .* lower --learning-rate"):
        train("multitask", data, configure(recipe={"learning_rate": 1e30}))
    with pytest.raises(ConfigError, match="max_length 200 is more than the 128 positions"):
        train("multitask", data, configure(recipe={"max_length": 200}))
    assert not list(tmp_path.iterdir())
    for field, value, message in [
        ("steps", 0, "steps must be at least 1"),
        ("learning_rate", 0.0, "learning_rate must be greater than 0"),
        ("dropout", 1.0, "dropout must be at least 0 and less than 1"),
        ("weights", RECIPE.weights | {"paraphrase": -1.0}, "weight of paraphrase must be above 0"),
        ("batch_sizes", RECIPE.batch_sizes | {"sentiment": 0}, "batch size of sentiment must be"),
        ("hinges", RECIPE.hinges | {"similarity": 1.0}, "hinge of similarity must be in -1 .. 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            configure(recipe={field: value})
    with pytest.raises(ConfigError, match="seed must be at least 0"):
        configure(seed=-1)


def test_the_command_line(folder, tiny_bert, tmp_path, cli, succeed):
    out = tmp_path / "tuned"
    options = ["train", "multitask", "--data", folder, "--model", tiny_bert, "--out", out,
               "--steps", 2, "--projection", 8]  # fmt: skip
    done = succeed(*options)
    assert "paraphrase: 108 rows to train on (quora-dev.csv without 12 held out; 0" in done.out
    assert "majority class" in done.out
    assert Heads.read(out).get("paraphrase").hinge == 0.7
    again = cli(*options)
    assert (again.code, "already exists" in again.err) == (1, True)
    for extra, message in [
        (["--tasks", "sentiment,x"], "no task 'x': there are sentiment, paraphrase, similarity"),
        (["--top", "1"], "top must be at least 2"),
        (["--steps", "0"], "steps must be at least 1"),
    ]:
        done = cli(*options, "--overwrite", *extra)
        assert done.code == 2
        assert message in done.err
        assert done.err.count("\n") == 1


def test_predict_on_the_command_line(exported, folder, tmp_path, cli, succeed):
    one = ["predict", exported, "--quiet", "--head"]
    done = succeed(*one, "sentiment", "--input", folder / "ids-sst-dev.csv", "--label-field",
                   "sentiment")  # fmt: skip
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["id"] for record in records] == list(range(40))
    assert sum(records[0]["scores"].values()) == pytest.approx(1, abs=5 * 1e-6)  # of 6 digits
    said = [max(record["scores"], key=record["scores"].get) for record in records]
    assert said == [record["label"] for record in records]
    labels = ["very negative", "negative", "neutral", "positive", "very positive"]
    accuracy = np.mean([labels[(80 + i) % 5] == label for i, label in enumerate(said)])
    assert f"over 40 with a label: accuracy {accuracy:.4f}, majority 0.2000" in done.err
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("good the\tbest the\ngood the\tbad of\n", encoding="utf-8")
    done = cli(*one, "paraphrase", "--input", pairs)
    assert [sorted(json.loads(x)) for x in done.out.splitlines()] == [
        ["id", "label", "similarity"],
        ["id", "label", "similarity"],
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": "good the", "b": "best", "y": 4}\n{"a": "", "b": "bad", "y": 1}\n')
    more = ["similarity", "--input", rows, "--fields", "a,b"]
    done = cli(*one, *more)
    assert done.code == 1
    assert "item 1: the string is empty" in done.err
    out = tmp_path / "out.jsonl"
    succeed(*one, *more, "--errors", "nan", "--output", out)
    values = [json.loads(line)["value"] for line in out.read_text().splitlines()]
    assert 0 <= values[0] <= 5
    assert values[1] is None


def test_predict_refuses(exported, bundle, folder, tuned, tmp_path, cli):
    lines = tmp_path / "lines.txt"
    lines.write_text("good\n")
    empty = tmp_path / "empty.txt"
    empty.touch()
    quora = folder / "quora-dev.csv"
    for arguments, code, message in [
        ([bundle, "--input", lines], 1, "has no task heads: mirror-rt train finetune"),
        ([tuned.out, "--input", lines], 2, "name the head: there are sentiment, paraphrase"),
        ([exported, "--input", lines], 2, "name the head: there are sentiment, paraphrase"),
        ([exported, "--head", "x", "--input", lines], 2, "no head 'x'"),
        ([exported, "--head", "paraphrase", "--input", lines], 1, "1 cells, expected two texts"),
        ([exported, "--head", "sentiment", "--input", empty], 1, "holds no rows"),
        ([exported, "--head", "sentiment", "--input", quora], 1, "has no texts (see --fields)"),
        ([exported, "--head", "sentiment", "--input", quora, "--fields", "sentence1",
          "--label-field", "id"], 1, "row 0: the label 'x' is not one of very negative"),
        ([exported, "--head", "paraphrase", "--input", quora, "--fields", "sentence1"], 2,
         "expected 2 columns, as a row has two texts"),
        ([exported, "--head", "sentiment", "--input", lines, "--label-field", "y"], 2,
         "which have no fields"),
        ([exported, "--head", "sentiment", "--input", lines, "--output", lines], 1,
         "already exists"),
    ]:  # fmt: skip
        done = cli("predict", *arguments)
        assert (done.code, done.err.count("\n")) == (code, 1), done.err
        assert message in done.err
    predictor = Predictor.load(exported)
    with pytest.raises(InvalidTextError, match="item 1: expected a pair of texts, got 'b'"):
        predictor.predict("paraphrase", [("a", "b"), "b"])
    with pytest.raises(ConfigError, match="got one string"):
        predictor.predict("sentiment", "a")
    assert predictor.predict("paraphrase", []).labels == []
    mixed = predictor.predict("sentiment", ["good", None, " ", "bad"], errors="nan")
    assert [label is None for label in mixed.labels] == [False, True, True, False]
    assert np.isnan(mixed.scores[1:3]).all()
    long = "good " * 500
    with pytest.raises(InvalidTextError, match="item 1: it is too long"):
        predictor.predict("sentiment", ["good", long], on_too_long="error")
    found = predictor.predict("sentiment", ["good", long], on_too_long="error", errors="nan")
    assert [label is None for label in found.labels] == [False, True]


def test_predictions_need_no_torch(exported, command_in_child):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
        f"from mirror_rt import Predictor; p = Predictor.load({str(exported)!r}); "
        "print(p.predict('similarity', [('good', 'good')]).scores[0] > 4.99)"
    )
    assert command_in_child(code).strip() == "True"


def test_info_and_card_say_so(exported, cli):
    done = cli("info", exported)
    assert re.search("task heads +sentiment, paraphrase, similarity", done.out)
    card = (exported / "README.md").read_text("utf-8")
    assert "labelled rows by the multi-task fine-tuning of BERT-CF" in card
    assert "| metrics, similarity, pearson |" in card
    assert "from sentence_transformers import" in card  # which loads it: it has no flow


def test_heads_of_other_vectors_are_left_out(tuned, tmp_path, caplog):
    """Of a bundle that was cut (--truncate-dim), or pooled in another way (--pooling)."""
    from mirror_export.trace import _write_heads

    for change in ({"dimension": 8}, {"pooling": "cls"}):
        manifest = dataclasses.replace(tuned.manifest, **change)
        _write_heads(tuned.out, manifest, tmp_path)
        assert "are left out: they take 32 dimensions by mean pooling" in caplog.text
        caplog.clear()
    assert not Heads.present(tmp_path)
    _write_heads(tuned.out, tuned.manifest, tmp_path)
    assert Heads.present(tmp_path)
    assert not caplog.messages
    with pytest.raises(BundleError, match="heads take vectors of 32 dimensions, the encoder gives"):
        Predictor(_Dimension(8), Heads.read(tuned.out))


class _Dimension:
    def __init__(self, dimension):
        self.dimension = dimension
