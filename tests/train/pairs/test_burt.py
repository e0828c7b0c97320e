"""BURT: whose turn it is, negatives, the schedule, and a run from pairs to a bundle."""

import dataclasses
import json
import re

import numpy as np
import pytest

from mirror_rt import ConfigError, DataError, Encoder, Predictor
from mirror_rt.heads.task_heads import Heads
from mirror_train import TorchEncoder, TrainConfig
from mirror_train.data.burt_tasks import NegativeSampling, turns
from mirror_train.data.labelled_examples import Examples
from mirror_train.recipes.recipe import CONCATENATIONS
from mirror_train.systems import BurtRecipe, BurtTasks, train
from mirror_train.systems.burt import plan_batches
from mirror_train.training.movement import rate_factor
from rounding import OTHER_TOOLS


@pytest.fixture(scope="module")
def tasks(words):
    rng = np.random.default_rng(0)

    def side(n):
        return [" ".join(rng.choice(words, 3)) for _ in range(n)]

    nli = Examples(
        side(60), side(60), np.arange(60) % 3, ("entailment", "neutral", "contradiction"), "nli"
    )
    relations = Examples(
        words[:30],
        words[100:130],
        np.arange(30) % 3,
        ("equivalence", "entailment", "independent"),
        "ppdb",
    )
    return BurtTasks(nli, relations, relations)


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="tuned", recipe=None, **options):
        return TrainConfig(
            out=tmp_path / out,
            model=str(tiny_bert),
            precision="fp32",
            recipe=BurtRecipe(**({"steps": 6, "learning_rate": 1e-3} | (recipe or {}))),
            **options,
        )

    return make


def test_sentences_are_every_second_batch():
    assert turns(["nli", "pi", "ptc"]) == ["nli", "pi", "nli", "ptc"]
    assert turns(["ptc", "nli"]) == ["nli", "ptc"]
    assert turns(["nli"]) == ["nli"]
    assert turns(["pi", "ptc"]) == ["pi", "ptc"]


def test_the_batches_of_a_run(tasks):
    recipe = BurtRecipe(objectives=("nli", "pi", "ptc"), batch_size=4)
    total, batches = plan_batches(tasks, recipe, 1)
    assert total == 15 * 2  # a pass over 60 pairs of sentences, every second batch
    run = [batches(step)[0] for step in range(30)]
    assert [batch.task for batch in run[:5]] == ["nli", "pi", "nli", "ptc", "nli"]
    sentences = [text for batch in run if batch.task == "nli" for text in batch.texts[:4]]
    assert sorted(sentences) == sorted(tasks.nli.first)
    assert [len(batch.texts) for batch in run] == [8] * 30
    recipe = BurtRecipe(objectives=("pi", "ptc"), negatives=3, batch_size=4)
    assert (
        plan_batches(tasks, recipe, 1)[0] == 30 * 4 // 4 * 2
    )  # the largest task: 30 pairs and 90 negatives


def test_negatives(words):
    """Of n (1 + k) rows of a pass, n are the pairs, k for each are of its first with others."""
    first = [words[i // 2] for i in range(40)]
    pairs = Examples(first, words[100:140], np.ones(40, np.int64), (), "pairs")
    sampling = NegativeSampling(pairs, 3, 16, seed=1)
    assert len(sampling) == 160
    rows = []
    for number in range(10):
        _, texts, targets = sampling[number]
        rows += zip(texts[:16], texts[16:], targets.tolist(), strict=True)
    positives = [(a, b) for a, b, target in rows if target]
    assert sorted(positives) == sorted(pairs.items())
    negatives = [(a, b) for a, b, target in rows if not target]
    counts = {a: [x for x, _ in negatives].count(a) for a in first}
    assert set(counts.values()) == {6}  # two pairs of each first phrase
    assert not set(negatives) & set(pairs.items())
    assert all(a != b for a, b in negatives)
    assert len({b for _, b in negatives}) > 30
    again = NegativeSampling(pairs, 3, 16, seed=1)[7]
    assert again.texts == sampling[7].texts
    with pytest.raises(DataError, match="there is no negative for it"):
        NegativeSampling(Examples(["a"], ["b"], np.ones(1), (), "pairs"), 1, 4, seed=1)


def test_the_learning_rate_rises_and_falls():
    """Linear warm-up over the first 10 %, then linear decay (section 3.3)."""
    factors = [rate_factor(step, 100, warm_up=0.1, decay=True) for step in range(100)]
    np.testing.assert_allclose(factors[:10], np.arange(1, 11) / 10)
    np.testing.assert_allclose(factors[10:], 1 - np.arange(90) / 90)
    assert rate_factor(0, 1, warm_up=0.1, decay=True) == 1
    assert rate_factor(0, 3, warm_up=0.0, decay=True) == 1


@pytest.mark.full
def test_from_pairs_to_a_bundle(tasks, configure, tmp_path, succeed):
    report = train("burt", tasks, configure(recipe={"steps": 40, "pooling": "max"}))
    losses = report.stats.losses
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    assert report.manifest.pooling == "max"
    assert report.manifest.recipe["system"] == "burt"
    assert report.manifest.recipe["objectives"] == ("nli", "pi", "ptc")
    heads = Heads.read(report.out)
    assert heads.get("nli").features == ("u", "v", "|u-v|")
    assert heads.get("pi").labels == ("not paraphrase", "paraphrase")
    succeed("export", report.out, "--out", tmp_path / "bundle")
    encoder = TorchEncoder.load(report.out)
    texts = tasks.nli.first[:10]
    expected = encoder.encode(texts)
    np.testing.assert_allclose(
        Encoder.load(tmp_path / "bundle").encode(texts), expected, atol=OTHER_TOOLS
    )
    bundle, own = Predictor.load(tmp_path / "bundle"), Predictor(encoder, heads)
    for name in ("nli", "pi", "ptc"):
        items = tasks.of(name).items()
        assert bundle.predict(name, items).labels == own.predict(name, items).labels


@pytest.mark.full
@pytest.mark.parametrize("concatenation", CONCATENATIONS)
def test_every_concatenation_trains(tasks, configure, concatenation):
    report = train("burt", tasks, configure(recipe={"concatenation": concatenation, "steps": 2}))
    parts = Heads.read(report.out).get("nli").features
    assert ",".join(parts) == concatenation


@pytest.mark.full
def test_albert_is_a_base(tasks, configure, tiny_model):
    from transformers import AutoConfig

    config = dataclasses.replace(configure(recipe={"steps": 2}), model=str(tiny_model("albert")))
    out = train("burt", tasks, config).out
    saved = AutoConfig.from_pretrained(out)
    assert saved.model_type == "albert"
    assert saved.hidden_dropout_prob == saved.attention_probs_dropout_prob == 0.1
    assert TorchEncoder.load(out).encode(["a town"]).shape == (1, 32)


def test_adam_is_that_of_the_paper(tasks, configure, monkeypatch):
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    made = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: made.append(optimizer.defaults))
    try:
        train("burt", tasks, configure(recipe={"steps": 1}))
    finally:
        hook.remove()
    paper = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0}
    assert paper.items() <= made[0].items()


def test_bad_input(tasks, configure):
    with pytest.raises(ConfigError, match="there are no data: pass --nli FILE"):
        train("burt", BurtTasks(), configure())
    with pytest.raises(ConfigError, match="objective 'ptc' has no data: pass --ppdb"):
        train("burt", BurtTasks(nli=tasks.nli), configure(recipe={"objectives": ("nli", "ptc")}))
    two = tasks.nli.take(np.flatnonzero(tasks.nli.targets != 1))
    with pytest.raises(DataError, match="none of its 40 rows has the label 'neutral'"):
        train("burt", BurtTasks(nli=two), configure())
    for field, value, message in [
        ("objectives", ("nli", "x"), "objectives must be of nli, pi, ptc, got 'x'"),
        ("objectives", ("nli", "nli"), "given twice"),
        ("concatenation", "u,u", "concatenation must be one of 'u,v'"),
        ("pooling", "lasttoken", "pooling must be one of cls, max, mean, got 'lasttoken'"),
        ("negatives", 0, "negatives must be at least 1"),
        ("warm_up", 1.0, "warm_up must be at least 0 and less than 1"),
        ("steps", 0, "steps must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            BurtRecipe(**{field: value})


@pytest.fixture
def files(tasks, tmp_path):
    lines = ["premise\thypothesis\tlabel"]
    names = tasks.nli.labels
    lines += [
        f"{a}\t{b}\t{names[target]}"
        for (a, b), target in zip(tasks.nli.items(), tasks.nli.targets, strict=True)
    ]
    (tmp_path / "nli.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    relation = ("Equivalence", "ReverseEntailment", "Independent")
    lines = [
        f"[X] ||| {a} of ||| {b} ||| Equivalence={i / 30} ||| 0-0 ||| {relation[i % 3]}"
        for i, (a, b) in enumerate(tasks.relations.items())
    ]
    (tmp_path / "ppdb").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_the_command_line(files, tiny_bert, cli, succeed):
    options = [
        "train",
        "burt",
        "--nli",
        files / "nli.tsv",
        "--model",
        tiny_bert,
        "--steps",
        2,
        "--out",
    ]
    done = succeed(*options, files / "tuned", "--ppdb", files / "ppdb", "--concatenation", "|u-v|",
                   "--pooling", "max")  # fmt: skip
    assert "ptc: 30 pairs (ppdb; 0 lines left out)" in done.out
    assert list(Heads.read(files / "tuned").by_name) == ["nli", "pi", "ptc"]
    for extra, message in [
        (["--objectives", "ptc"], "has no data: pass --ppdb FILE, or leave it out of --objectives"),
        (["--concatenation", "u"], "concatenation must be one of"),
        (["--evaluate", "a=b"], "go with --ablation"),
        (["--ablation", "pooling"], "an ablation needs sets"),
        (["--ablation", "pooling", "--evaluate", "x"], "expected NAME=FILE.tsv"),
        (["--ablation", "pooling", "--evaluate", "x=a,b"], "NAME=TRAIN.tsv,DEV.tsv,FILE.tsv"),
        (["--seeds", 2], "go with --ablation"),
    ]:
        done = cli(*options, files / "other", *extra)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert message in done.err
    assert not (files / "other").exists()


@pytest.mark.full
def test_ablations_write_a_table_and_keep_their_runs(files, tiny_bert, cli, succeed, monkeypatch):
    (files / "words.tsv").write_text("word1\tword2\tscore\nthe\tof\t1\nday\ttime\t4\nin\ton\t3\n")
    lines = (files / "ppdb").read_text().splitlines()
    (files / "test-ppdb").write_text("\n".join(lines[:15]) + "\n")
    (files / "sts13").mkdir()
    for part, scores in (("FNWN", "1\n4\n3\n"), ("OnWN", "3\n0\n5\n")):
        (files / "sts13" / f"STS.input.{part}.txt").write_text("the\tof\nday\ttime\nin\ton\n")
        (files / "sts13" / f"STS.gs.{part}.txt").write_text(scores)
    known = ("the", "of", "day", "time", "in", "on")
    vectors = [f"{word} {i} {i * i % 7} {i % 3}" for i, word in enumerate(known)]
    (files / "glove.txt").write_text("\n".join(vectors) + "\n")
    out = files / "ablation"
    options = ["train", "burt", "--nli", files / "nli.tsv", "--model", tiny_bert, "--steps", 1,
               "--evaluate", f"words={files / 'words.tsv'}", "--out", out,
               "--ablation"]  # fmt: skip
    trained = "trained=" + ",".join([str(files / "words.tsv")] * 3)
    more = ["--evaluate", trained, "--evaluate", f"sts13={files / 'sts13'}"]
    with_phrases = ["--ppdb", files / "ppdb", "--ppdb-test", files / "test-ppdb", *more,
                    "--seeds", 2]  # fmt: skip
    done = succeed(*options, "pooling", *with_phrases)
    assert "ptc: 15 pairs (ppdb; 15 lines left out)" in done.out
    rows = json.loads((out / "ablation.json").read_text())["rows"]
    names = ["CLS", "MAX", "MEAN"]
    labels = [f"{kind}, {name}" for kind in ("untuned", "pooling") for name in names]
    assert [row["label"] for row in rows] == labels
    rows = rows[3:]
    sets = ["words", "trained", "sts13", "sts13", "phrases", "words of 2"]
    assert [[one["set"] for one in row["figures"]] for row in rows] == [sets] * 3
    assert rows[0]["figures"][3]["metric"] == "spearman, mean of subsets"
    for row in rows:
        values = [one["value"] for one in row["figures"]]
        assert values[-1] == pytest.approx((values[0] + values[1]) / 2)
    assert all(one["interval"] for row in rows for one in row["figures"])
    assert all(row["figures"][1]["value"] == 1 for row in rows)  # fitted to what it is measured on
    assert len({json.dumps(row["figures"]) for row in rows}) > 1
    assert not (out / "work").exists()
    table = (out / "ablation.md").read_text()
    assert "| pooling, MEAN | " in table
    fail = lambda *_: pytest.fail("run again")  # noqa: E731
    monkeypatch.setattr("mirror_train.experiments.burt_ablation.train", fail)
    succeed(*options, "pooling", *with_phrases)
    again, kept = re.subn(r"- runs kept of .*: 9\n", "", (out / "ablation.md").read_text())
    assert (again, kept) == (table, 1)
    for path in (out / "runs").glob("*.json"):
        path.write_text("{")
    done = cli(*options, "pooling", *with_phrases)
    assert "is not the result of a run" in done.err
    monkeypatch.undo()
    pairs = [f"word{i}\tlong phrase{i}\t{i % 2}" for i in range(24)]
    (files / "semeval.tsv").write_text("\n".join(pairs) + "\n")
    given = ["--semeval", *[files / "semeval.tsv"] * 2, "--static", f"GloVe={files / 'glove.txt'}"]
    done = succeed(*options, "objectives", *given)
    rows = json.loads((out / "ablation.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["GloVe", "objectives, NLI"]
    for row in rows:
        _, accuracy = row["figures"]  # of which there is no average with correlations
        assert (accuracy["metric"], accuracy["n"]) == ("semeval accuracy", 24)
        assert 0 <= accuracy["value"] <= 1
    assert "| semeval accuracy |" in (out / "ablation.md").read_text()
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["runs"]
    assert "left out, objectives, NLI+PI: no data for pi" in done.out
    assert "- left out, objectives, NLI+PTC: no data for ptc" in (out / "ablation.md").read_text()
