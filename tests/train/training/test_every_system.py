"""What the one training loop gives every system: checkpoints, Ctrl-C, resuming, processes."""

import signal
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mirror_rt import (
    ConfigError,
    DataError,
    MultiVectorEncoder,
    OutputExistsError,
    SparseEncoder,
)
from mirror_rt.heads.task_heads import Heads
from mirror_train import TorchEncoder, TrainConfig, TrainingData, load_recipe
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.tasks import TaskData
from mirror_train.model.cross_encoder import TorchCrossEncoder
from mirror_train.model.token_head import TorchMultiVector
from mirror_train.systems import (
    SYSTEMS,
    BurtRecipe,
    BurtTasks,
    CfRecipe,
    ColbertRecipe,
    CrossEncoderRecipe,
    FinetuneRecipe,
    FlowRecipe,
    MultitaskData,
    MultitaskRecipe,
    SpladeRecipe,
    train,
)
from mirror_train.training.checkpoint import Interrupted
from mirror_train.training.loop import Trainer
from rounding import ANY_BATCH
from tiers import tiers

PROBES = ["the river", "old town hall", "doctor"]
STEPS = 8
SIZES = dict.fromkeys(("sentiment", "paraphrase", "similarity"), 4)


def strings(words):
    texts = [" ".join(words[i : i + 1 + i % 5]) for i in range(STEPS * 8)]
    return TrainingData(texts, texts, None, "strings")


def tasks(words):
    def rows(labels, targets, *, pairs=True):
        second = words[40:80] if pairs else None
        return Examples(words[:40], second, np.asarray(targets), tuple(labels), "rows")

    def split(examples):
        return TaskData(examples.take(range(30)), examples.take(range(30, 40)))

    numbers = np.arange(40)
    nli = rows(("entailment", "neutral", "contradiction"), numbers % 3)
    multitask = MultitaskData(
        {
            "sentiment": split(rows("abcde", numbers % 5, pairs=False)),
            "paraphrase": split(rows("ny", numbers % 2)),
            "similarity": split(rows((), numbers % 6 / 1.0)),
        }
    )
    return BurtTasks(nli=nli, paraphrases=nli), multitask


def systems(words):
    """The name of each system, its data, and a short recipe."""
    flow = FlowRecipe(steps=STEPS, batch_size=8, learning_rate=1e-3)
    mirror = load_recipe("word").replace(batch_size=8, epochs=1, learning_rate=1e-3, span_length=2)
    cf = CfRecipe(mirror=mirror, flow=flow)
    burt = BurtRecipe(steps=STEPS, batch_size=4, learning_rate=1e-3)
    frozen = FinetuneRecipe(layer="regression", frozen=True, steps=STEPS, batch_size=4)
    cross = CrossEncoderRecipe(steps=STEPS, batch_size=4, learning_rate=1e-3)
    short = {"steps": STEPS, "batch_size": 4, "learning_rate": 1e-3, "max_length": 16}
    pairs = TrainingData.of_pairs(list(zip(words[:40], words[40:80], strict=True)), "pairs")
    multitask = MultitaskRecipe(steps=STEPS, learning_rate=1e-2, projection=8, batch_sizes=SIZES)
    texts, (burt_tasks, multitask_data) = strings(words), tasks(words)
    late = ColbertRecipe(dimension=8, query_length=12, **short)
    return {
        "tune": ("mirror", texts, mirror),
        "flow": ("flow", texts, flow),
        "cf": ("cf", texts, cf),
        "cf-joint": ("cf", texts, cf.replace(joint=True)),
        "burt": ("burt", burt_tasks, burt),
        "multitask": ("multitask", multitask_data, multitask),
        "finetune": ("finetune", multitask_data.tasks["similarity"], frozen),
        "cross-encoder": ("cross-encoder", multitask_data.tasks["similarity"].train, cross),
        "splade": ("splade", pairs, SpladeRecipe(**short)),
        "colbert": ("colbert", pairs, late),
    }


_RUNS = systems(["any"] * 100)
RUNS = [*_RUNS]
MIXED = [run for run, (name, *_) in _RUNS.items() if "precision" in SYSTEMS[name].settings]


@pytest.fixture
def runner(words, tiny_bert, tmp_path):
    """Runs a system into a folder, with options."""

    def run(system, out, **options):
        name, data, recipe = systems(words)[system]
        options = {"evaluate_every": 3, "recipe": recipe} | options
        config = TrainConfig(out=tmp_path / out, model=str(tiny_bert), **options)
        return train(name, data, config)

    return run


def weights(out):
    """Everything that a run has trained, by its effect or its value."""
    if (out / "1_SpladePooling").exists():
        return [SparseEncoder.load(out).encode(PROBES).toarray()]
    if (out / "2_MultiVectorMask").exists():
        model = MultiVectorEncoder.load(out)
        sides = model.encode_query(PROBES), model.encode_document(PROBES[::-1])
        return [model.similarity(*sides).diagonal()]
    if not (out / "modules.json").exists():
        return [output(TorchCrossEncoder.load(out))]
    found = [output(TorchEncoder.load(out))]
    if Heads.present(out):
        found += [head.weight for head in Heads.read(out).by_name.values()]
    return found


def output(model):
    """What a model makes of the probes: vectors or, of their pairs, logits or scores."""
    if isinstance(model, TorchMultiVector):
        return model.scores(PROBES, PROBES[::-1])
    if isinstance(model, TorchCrossEncoder):
        return model.logits(PROBES, PROBES[::-1])
    return model.encode(PROBES, normalize_embeddings=False)


def interrupt_at(step, monkeypatch):
    original = Trainer._step

    def interrupted(self, number):
        if number == step:
            # What Python calls on Ctrl-C; test_tune.py sends the signal itself, to a child.
            signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
        return original(self, number)

    monkeypatch.setattr(Trainer, "_step", interrupted)


@pytest.mark.parametrize("system", tiers(RUNS, fast=("tune",)))
def test_ctrl_c_leaves_a_checkpoint_from_which_the_same_comes(
    system, runner, tmp_path, monkeypatch
):
    whole = runner(system, "whole")
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        with pytest.raises(Interrupted, match="interrupted after step 5 of 8; continue with --res"):
            runner(system, "parts")
    left = "parts.checkpoints"
    if system == "cf":  # the first step comes first
        left = "parts.mirror.checkpoints"
    assert [path.name for path in (tmp_path / left).iterdir()] == ["step-00000005.pt"]
    assert not (tmp_path / "parts").exists()
    with pytest.raises((OutputExistsError, ConfigError), match="continue it with --resume"):
        runner(system, "parts")
    with pytest.raises(ConfigError, match="of another run: seed was"):
        runner(system, "parts", resume=True, seed=1)
    resumed = runner(system, "parts", resume=True)
    assert resumed.stats.losses == whole.stats.losses
    for found, expected in zip(weights(resumed.out), weights(whole.out), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


@pytest.mark.full
def test_the_best_weights_outlive_an_interruption(runner, monkeypatch):
    """Those of an evaluation before the checkpoint, where no later one is better."""
    scores = iter([0.9, 0.2, 0.1])
    metrics = {"similarity": {"pearson": 0.9}}

    def evaluate(model, held):
        return {"similarity": {"pearson": next(scores)}}

    monkeypatch.setattr("mirror_train.training.labelled.evaluate_tasks", evaluate)
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        with pytest.raises(Interrupted):
            runner("multitask", "parts")
    training = runner("multitask", "parts", resume=True).manifest.training
    assert (training["best_step"], training["metrics"]) == (3, metrics)


@pytest.mark.parametrize("system", tiers(RUNS, fast=("cross-encoder",)))
def test_scored_pairs_choose_the_weights(system, runner, tmp_path, monkeypatch):
    """After steps 3, 6 and 8 of every run, with the weights of that step; resumed or not.

    What chooses is what is saved: float32, whatever the precision of training.
    """
    runner = partial(runner, **({"precision": "bf16"} if system in MIXED else {}))
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("text1\ttext2\tscore\nthe river\told town hall\t1\nday\ttime\t3\nin\ton\t2\n")
    scores, seen = {3: 0.1, 6: 0.9, 8: 0.5}, []

    def evaluate(model, found):
        assert len(found.scores) == 3
        seen.append(output(model))
        return [*scores.values()][(len(seen) - 1) % 3]

    monkeypatch.setattr("mirror_train.training.run.evaluate_similarity", evaluate)
    for name in ("cross_encoder", "colbert"):
        monkeypatch.setattr(f"mirror_train.systems.{name}.score_correlation", evaluate)
    report = runner(system, "whole", select=pairs)
    assert len(seen) == (6 if system == "cf" else 3)
    np.testing.assert_allclose(weights(report.out)[0], seen[-2], atol=ANY_BATCH)
    training = report.manifest.training
    assert (training["best_step"], training["spearman"], training["steps"]) == (6, 0.9, STEPS)
    assert training["select"]["file"] == "dev.tsv"
    with monkeypatch.context() as patch:
        for name in ("training.run.evaluate_similarity", "systems.cross_encoder.score_correlation",
                     "systems.colbert.score_correlation"):  # fmt: skip
            patch.setattr(f"mirror_train.{name}", lambda *_: {0: 0.1, 1: 0.9}[len(seen) % 2])
        interrupt_at(6, patch)
        seen.append(None)
        with pytest.raises(Interrupted):
            runner(system, "parts", select=pairs)
    with pytest.raises(ConfigError, match="of another run: evaluate_every was 3, now 4"):
        runner(system, "parts", select=pairs, evaluate_every=4, resume=True)
    pairs.write_text("text1\ttext2\n")
    with pytest.raises(DataError, match="has no scores"):
        runner(system, "parts", select=pairs, resume=True)


@pytest.mark.full
def test_steps_in_the_place_of_epochs(runner, words):
    recipe = systems(words)["tune"][2].replace(epochs=3, steps=2 * STEPS + 3)
    losses = runner("tune", "out", recipe=recipe).stats.losses
    assert len(losses) == 2 * STEPS + 3
    assert runner("tune", "epochs", recipe=recipe.replace(steps=None)).stats.losses[:19] == losses


@pytest.mark.parametrize("system", RUNS)
def test_every_system_warms_up_and_decays(system, runner, words, monkeypatch):
    """The rate of each step by the formula of BURT's section 4: warm-up, then linear decay."""
    recipe = systems(words)[system][2]
    changes = {"warm_up": 0.25, "decay": True}
    if isinstance(recipe, CfRecipe):
        recipe = recipe.replace(flow=recipe.flow.replace(**changes))
    else:
        recipe = recipe.replace(**changes)
    rates, original = [], Trainer._step

    def step(self, number):
        loss = original(self, number)
        if "flow" in self.modules or "cf" not in system:
            groups = zip(self.optimizer.param_groups, self._rates, strict=True)
            rates.append({round(group["lr"] / rate, 6) for group, rate in groups})
        return loss

    monkeypatch.setattr(Trainer, "_step", step)
    runner(system, "out", recipe=recipe)
    expected = [1 / 2, 1, *((STEPS - step) / (STEPS - 2) for step in range(2, STEPS))]
    assert rates == [{round(rate, 6)} for rate in expected]


@pytest.mark.full
@pytest.mark.parametrize("system", MIXED)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(system, precision, runner):
    report = runner(system, "out", precision=precision)
    assert np.isfinite(report.stats.losses).all()
    assert report.manifest.training["precision"] == precision
    saved = load_file(report.out / "model.safetensors").values()
    assert {one.dtype for one in saved if one.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("system", tiers(RUNS, fast=("tune", "flow")))
def test_the_seed_decides_and_the_global_state_is_left_alone(system, runner):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (runner(system, f"run{i}", seed=seed) for i, seed in enumerate((1, 1, 2)))
    assert torch.equal(torch.rand(3), expected)
    assert one.stats.losses == same.stats.losses != other.stats.losses
    for number, found in enumerate(zip(*(weights(x.out) for x in (one, same, other)), strict=True)):
        np.testing.assert_array_equal(found[0], found[1])
        frozen = (system, number) == ("finetune", 0)  # its encoder
        assert np.array_equal(found[0], found[2]) == frozen


@pytest.mark.full
def test_multitask_trains_the_flow_that_it_begins_with(runner, words, tmp_path):
    """BERT-CF, section 5.3: "we have all layers unfrozen"."""
    flowed = runner("flow", "flowed").out
    _, data, recipe = systems(words)["multitask"]
    config = TrainConfig(
        out=tmp_path / "out", model=str(flowed), recipe=recipe, evaluate_every=STEPS
    )
    report = train("multitask", data, config)
    (before,) = TorchEncoder.load(flowed).head.layers
    (after,) = TorchEncoder.load(report.out).head.layers
    for name, weight in before.blocks.state_dict().items():
        fixed = name.endswith(("signs", "permutation"))
        assert torch.equal(weight, after.blocks.state_dict()[name]) == fixed, name
