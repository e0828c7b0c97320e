"""Studies: each from end to end at small size, and what their tables say."""

import dataclasses
import functools
import itertools
import json
import re

import numpy as np
import pytest
from scipy import stats

from mirror_rt import ConfigError, __version__
from mirror_rt.evaluation.run import Measure, Result
from mirror_rt.evaluation.suites import Outcome
from mirror_rt.evaluation.suites.base import scored_set
from mirror_rt.evaluation.suites.sentences import AVERAGED
from mirror_train import load_recipe, load_training_data
from mirror_train.experiments import runner
from mirror_train.experiments.figures import t_interval
from mirror_train.experiments.mirror_studies import STUDIES
from mirror_train.experiments.paper_numbers import SENTENCES
from mirror_train.experiments.report import Report
from mirror_train.experiments.runner import own_code, product_code, run_study
from mirror_train.experiments.setups import _some, random_strings
from mirror_train.experiments.study import Run, StudyConfig
from mirror_train.training import tune as tune_module
from tiers import tiers

KEPT = "kept from an earlier run, "
TINY_RECIPE = """
level = "word"
temperature = 0.2
span_length = 0
span_mask = "mask-token"
dropout = 0.1
pooling = "cls"
loss = "ntxent"
max_length = 25
epochs = 1
batch_size = 20
learning_rate = 1e-3
weight_decay = 0.01
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, words, tiny_bert):
    """Options of a study that takes a second: 60 words, 300 scored pairs, a tiny model.

    A rank correlation over 40 pairs takes few values: two runs had the same one every now and then.
    """
    folder = tmp_path_factory.mktemp("study")
    (folder / "words").mkdir()
    (folder / "multisimlex").mkdir()
    (folder / "words" / "en.txt").write_text("\n".join(words[:60]))
    pairs = itertools.islice(itertools.combinations(words[:40], 2), 300)
    scores = np.random.default_rng(1).random(300)
    lines = [f"{a}\t{b}\t{score:.6f}" for (a, b), score in zip(pairs, scores, strict=True)]
    (folder / "multisimlex" / "en.tsv").write_text("\n".join(["word1\tword2\tscore", *lines]))
    (folder / "tiny.toml").write_text(TINY_RECIPE)
    return folder, ["--data", folder, "--recipe", folder / "tiny.toml", "--model", tiny_bert,
                    "--precision", "fp32", "--device", "cpu"]  # fmt: skip


@pytest.fixture
def plan(inputs, tiny_bert, tmp_path):
    """Make a study and its settings."""
    folder, _ = inputs

    def make(name, **options):
        config = StudyConfig(
            model=str(tiny_bert),
            precision="fp32",
            device="cpu",
            **{"out": tmp_path / "out", "seeds": 1, "samples": 0} | options,
        )
        data = load_training_data(folder / "words" / "en.txt")
        pairs = folder / "multisimlex" / "en.tsv"
        sets = [scored_set("pairs", "en", pairs, ("en",))]
        return STUDIES[name].plan(load_recipe(folder / "tiny.toml"), data, sets, config), config

    return make


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory):
    """One folder for all studies: they share the runs that they have in common."""
    return tmp_path_factory.mktemp("studies") / "out"


@pytest.mark.parametrize("name", tiers(STUDIES, fast=("controlled-dropout",)))
def test_a_study_from_end_to_end(name, inputs, shared_out, succeed):
    done = succeed("study", name, *inputs[1], "--seeds", 1, "--out", shared_out)
    setups = STUDIES[name].setups(load_recipe(inputs[0] / "tiny.toml"), 60)
    report = json.loads((shared_out / f"{name}.json").read_text())
    assert [row["label"] for row in report["rows"]] == [setup.label for setup in setups]
    assert (report["precision"], report["device"]) == ("fp32", "cpu")
    assert sum(row["verdict"] == "reference" for row in report["rows"]) == 1
    figures = [figure for row in report["rows"] for figure in row["figures"]]
    measured = [one["value"] for run in report["runs"] for one in run["results"]]
    assert measured == [one["value"] for one in figures]
    if name != "isotropy":
        assert all(-1 <= one["value"] <= 1 for one in figures)
        assert len(figures) == len(setups)
    table = (shared_out / f"{name}.md").read_text()
    assert markdown_rows(table) == [setup.label for setup in setups]
    assert STUDIES[name].source in table
    assert "One seed: nothing tells a difference" in table
    assert (shared_out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    value = "" if name == "isotropy" else r"\S*en -?0\.\d{4}"
    progress = re.findall(rf"^\[(\d+)/(\d+)\] .*: {value} \((?:{KEPT})?\d+\.\d s\)", done.out, re.M)
    assert progress == [(str(i + 1), str(len(setups))) for i in range(len(setups))]
    assert not (shared_out / "work").exists()


@pytest.mark.full
def test_the_papers_numbers_stand_beside_those_of_its_base(
    plan, inputs, tiny_bert, tmp_path, succeed
):
    """Only for a base of that name and the paper's own setup; the spread is two deviations."""
    study, config = plan("reproduce-words")
    assert not study.paper
    assert "bert-base-uncased alone, which this is not" in study.about["the paper's numbers"]
    study = dataclasses.replace(study, paper={"en": {"+ Mirror": 0.5}}, deviation=0.005)

    def runs(value):
        measure = Measure("pairs", "en", "spearman")
        result = Result(measure, "x", Outcome("spearman", 9, value), None, np.zeros(0), 0.0)
        return [Run(row.label, None, [result]) for row in study.rows]

    table = Report(study, config, runs(0.509)).table()
    assert "| en | en, paper | against the paper |" in table.splitlines()[0]
    assert "| + Mirror | 0.5090 | 0.500 | within 0.01 |" in table
    assert "| random strings | 0.5090 | - | - |" in table
    assert "| not within 0.01: en -0.011 |" in Report(study, config, runs(0.489)).table()
    for numbers in SENTENCES.values():
        averages = {
            label: sum(numbers[name][label] for name in AVERAGED) / 7
            for label in numbers["average of 7"]
        }
        assert numbers["average of 7"] == pytest.approx(averages, abs=2e-3)
    succeed("study", "reproduce", *inputs[1], "--seeds", 1, "--out", tmp_path / "both")
    names = {path.stem for path in (tmp_path / "both").glob("*.md")}
    assert names == {"reproduce-words", "reproduce-sts"}


def test_the_papers_mean_counts_padding_for_the_base_that_it_is_taken_for(plan, monkeypatch):
    """BERT's sentences: tuned with 50 tokens, measured with 64; of all others a row of its own."""
    study, _ = plan("reproduce-sts")
    assert [row.pooling for row in study.rows] == ["cls", "mean-with-padding", "mean"] + [
        "auto"
    ] * 6
    bert = dataclasses.replace(STUDIES["reproduce-sts"], padded=("tiny-bert",))
    monkeypatch.setitem(STUDIES, "reproduce-sts", bert)
    study, _ = plan("reproduce-sts")
    poolings = ["cls", "mean-with-padding", "mean"] + ["mean-with-padding"] * 6
    assert [row.pooling for row in study.rows] == poolings
    assert study.rows[3].identity["tuned with"] == "mean-with-padding"


def test_the_buckets_of_frequency_count_the_words_of_the_pairs(plan):
    """Figure 8, in blue: 40 of the 60 words have pairs, of which the first bucket has 20."""
    study, _ = plan("frequency")
    assert study.about["words of en in each bucket"] == "20, 20, 0 of 40"


@pytest.mark.full
def test_isotropy_is_measured_on_the_strings_of_the_study(inputs, tmp_path, succeed):
    out = tmp_path / "out"
    succeed("study", "isotropy", *inputs[1], "--top", 30, "--seeds", 1, "--out", out)
    figures = json.loads((out / "isotropy.json").read_text())["rows"][0]["figures"]
    assert {(one["set"], one["n"]) for one in figures} == {("words-en, 30", 30)}


def markdown_rows(text):
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]


def test_the_list_of_the_command_line_is_that_of_the_studies(cli):
    text = cli("study", "--help").out
    for name, study in STUDIES.items():
        line = f"{study.title} ({study.source})"
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.M)


def test_setups_have_as_many_strings_as_there_are():
    word = load_recipe("word")
    buckets = STUDIES["frequency"].setups(word, 100_000)[1:]
    assert [(one.start, one.top) for one in buckets] == [(i * 10_000, 10_000) for i in range(10)]
    few = STUDIES["frequency"].setups(word, 650)[1:]
    assert [(one.start, one.top) for one in few] == [(0, 216), (216, 216), (432, 216)]
    sizes = [setup.top for setup in STUDIES["data-size"].setups(word, 100_000)]
    assert sizes == [None, 10_000, 1_000, 2_000, 5_000, 20_000, 50_000, 100_000]
    assert [s.top for s in STUDIES["data-size"].setups(word, 1_500)] == [None, 1_000, 200, 500]


def test_sizes_take_the_first_words_and_samples_of_sentences():
    strings = [str(i) for i in range(100)]
    assert _some(strings, 10, load_recipe("word")) == strings[:10]
    sample = _some(strings, 10, load_recipe("sentence"))
    assert sample == sorted(sample, key=int)
    assert sample != strings[:10]
    assert {*sample} < {*_some(strings, 50, load_recipe("sentence"))}
    assert _some(strings, None, load_recipe("sentence")) == strings


@pytest.mark.full
def test_studies_of_sentences_average_the_seven_sets(inputs, words, tmp_path, cli, succeed):
    """As Tables 7, 12, 13 and 20 do; --evaluate takes any sets instead, a column each."""
    folder, options = tmp_path / "data", inputs[1][2:]
    (folder / "sts").mkdir(parents=True)
    for i, name in enumerate(AVERAGED):
        pairs = zip(words[:50], words[9:59], strict=True)
        lines = [f"{a} {b}\t{b}\t{(i + 2) * j % 11}" for j, (a, b) in enumerate(pairs)]
        lines = ["sentence1\tsentence2\tscore", *lines]
        path = folder / "sts" / ("sick-r-all.tsv" if name == "sick-r" else f"{name}-test.tsv")
        path.write_text("\n".join(lines))
    (folder / "sentences").mkdir()
    (folder / "sentences" / "en.txt").write_text("\n".join(words[:60]))
    recipe = tmp_path / "sentence.toml"
    recipe.write_text(inputs[0].joinpath("tiny.toml").read_text().replace('"word"', '"sentence"'))
    line = ["study", "ablation", "--data", folder, *options, "--recipe", recipe, "--seeds", 2]
    succeed(*line, "--out", tmp_path / "seven")
    report = json.loads((tmp_path / "seven" / "ablation.json").read_text())
    values = {one["set"]: one["value"] for one in report["rows"][1]["figures"]}
    assert {*values} == {*AVERAGED, "average of 7"}
    average = values.pop("average of 7")
    assert average == pytest.approx(sum(values.values()) / 7)
    assert "average of 7 |" in (tmp_path / "seven" / "ablation.md").read_text()
    other = ["sentences/sts12", "geometry"]
    succeed(*line, "--evaluate", *other, "--out", tmp_path / "other")
    report = json.loads((tmp_path / "other" / "ablation.json").read_text())
    assert {one["set"] for one in report["rows"][1]["figures"]} == {"sts12", "sentences-en"}
    for extra, message in [
        (
            ["--evaluate", "sentences/sts11"],
            "has no set sentences/sts11; of sentences it has sick-r, sts1",
        ),
        (["--evaluate", "sts"], "unknown suite 'sts'"),
        (["--evaluate", "sentences", "--pairs", recipe], "in the place of --pairs"),
        (["--evaluate", "words"], "has no set of words"),
    ]:
        done = cli(*line, *extra, "--out", tmp_path / "bad")
        assert message in done.err


@pytest.mark.full
def test_an_interrupted_study_goes_on(plan, monkeypatch):
    study, config = plan("controlled-dropout", seeds=2)
    whole = run_study(study, config)
    assert [run.seed for run in whole] == [None, 42, 42, 42, 43, 43, 43]
    check_rows(Report(study, config, whole), whole)
    tuned = []
    original = tune_module.tune

    def tune(data, config):
        if len(tuned) == 3:
            raise KeyboardInterrupt
        tuned.append(config.seed)
        return original(data, config)

    other = plan("controlled-dropout", out=config.out.parent / "other", seeds=2)
    monkeypatch.setattr(tune_module, "tune", tune)
    with pytest.raises(KeyboardInterrupt):
        run_study(*other)
    monkeypatch.setattr(tune_module, "tune", lambda *args: tuned.append(0) or original(*args))
    lefts = []
    again = run_study(*other, on_run=lambda run, done, total, left: lefts.append(left))
    assert tuned == [42, 42, 42, 0, 0, 0]
    assert [(run.label, run.seed, rho(run)) for run in again] == [
        (run.label, run.seed, rho(run)) for run in whole
    ]
    assert lefts[0] > lefts[-1] == 0
    kept = run_study(*other)
    assert all(run.kept for run in kept)
    assert [run.kept for run in again] == [True] * 4 + [False] * 3
    assert [dataclasses.replace(run, kept=True).to_json() for run in again] == [
        run.to_json() for run in kept
    ]
    assert (
        "runs kept of earlier commands, with the same code: 7"
        in Report(study, config, kept).markdown()
    )
    assert len(tuned) == 6


def test_other_code_makes_another_run(plan, monkeypatch, capsys):
    study, config = plan("controlled-dropout")
    study = dataclasses.replace(study, rows=study.rows[:1])
    assert [run.kept for run in run_study(study, config) + run_study(study, config)] == [
        False,
        True,
    ]
    files = product_code()
    assert files["mirror_rt"] == __version__
    monkeypatch.setattr(runner, "product_code", lambda: files | {"files": "of another commit"})
    assert not run_study(study, config)[0].kept


def test_the_code_of_a_system_of_ones_own_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "own_system.py"
    source.write_text("def train(scale, run): ...\n")
    from own_system import train

    row = functools.partial(train, 2)
    before = own_code(row)
    assert len(before) == 1
    source.write_text("def train(scale, run): return scale\n")
    assert own_code(row) != before
    assert own_code(functools.partial(tune_module.tune, None)) == own_code(None) == []


def rho(run):
    (result,) = run.results
    return result.outcome.value


def check_rows(report, runs):
    assert len({rho(run) for run in runs}) == len(runs)  # seeds differ, and so do setups
    figures = {label: next(iter(found.values())) for label, found in report.figures.items()}
    assert figures["untuned"].interval is None  # the base model has no randomness
    for label in list(figures)[1:]:
        one = figures[label]
        values = [rho(run) for run in runs if run.label == label]
        assert one.outcome.value == pytest.approx(np.mean(values))
        assert one.interval.low < one.outcome.value < one.interval.high


def test_random_strings(words):
    like = [*words[:50], "a", "i", "人"]
    strings = random_strings(like, seed=1)
    assert len(set(strings)) == len(like)
    assert [len(s) for s in strings] == [len(s) for s in like]
    assert set("".join(strings)) <= set("abcdefghijklmnopqrstuvwxyz0123456789")
    assert random_strings(like, seed=1) == strings
    assert not set(random_strings(like, seed=2)) & {s for s in strings if len(s) > 3}
    assert len(set(random_strings(["x"] * 50, seed=1))) == 50  # 36 of one character, then longer


def test_the_interval_is_students():
    assert t_interval([0.5]) is None
    found = t_interval([1, 2, 3])
    assert (found.low, found.high) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=0.5e-5)
    values = [0.51, 0.55, 0.52, 0.56]
    found = t_interval(values, level=0.9)
    low, high, mean = found.low, found.high, np.mean(values)
    assert (low + high) / 2 == pytest.approx(mean)
    assert stats.ttest_1samp(values, low).pvalue == pytest.approx(0.1)
    assert stats.ttest_1samp(values, high).pvalue == pytest.approx(0.1)


def test_overlapping_intervals_are_no_difference(plan):
    def run(label, seed, rho):
        outcome = Outcome("spearman", 300, rho)
        measure = Measure("pairs", "en", "spearman")
        return Run(label, seed, [Result(measure, label, outcome, None, np.empty(0), 0.0)])

    def verdicts(*values):
        study, config = plan("controlled-dropout", seeds=len(values[0]))
        runs = [run("untuned", None, 0.2)]
        for row, rhos in zip(study.rows[1:], values, strict=True):
            runs += [run(row.label, 42 + i, rho) for i, rho in enumerate(rhos)]
        report = Report(study, config, runs)
        return [report.verdict(row) for row in study.rows], report.table()

    found, table = verdicts([0.50, 0.51, 0.52], [0.60, 0.61, 0.62], [0.51, 0.53, 0.55])
    assert found == ["lower", "reference", "higher", "intervals overlap: no difference shown"]
    assert "| untuned | 0.2000 | lower |" in table
    assert "| dropout | 0.6100 [0.5852, 0.6348] | higher |" in table
    found, _ = verdicts([0.5], [0.9], [0.1])
    assert found[2] == "one seed: no interval, no verdict"


def test_what_cannot_be_used(inputs, plan, cli, tmp_path, monkeypatch):
    folder, options = inputs
    for arguments, code, message in [
        (["ablation", "--out", tmp_path], 2, "pass --data DIR, or --strings FILE"),
        (["ablation", *options, "--lang", "xx", "--out", tmp_path], 2, "words/xx.txt does not"),
        (["ablation", "--data", folder, "--out", tmp_path], 2, "'sentence' needs it: pass --str"),
        (["ablations", *options, "--out", tmp_path], 2, "did you mean ablation?"),
        (["ablation", *options, "--top", 0, "--out", tmp_path], 2, "--top must be at least 1"),
        (["ablation", *options, "--seeds", 0, "--out", tmp_path], 2, "seeds must be at least 1"),
        (["ablation", *options, "--top", 1, "--out", tmp_path], 1, "which needs at least 2"),
    ]:
        done = cli("study", *arguments)
        assert (done.code, message in done.err) == (code, True), done.err
    assert "--batch-size" not in done.err  # which the command does not have
    assert not (tmp_path / "runs").exists()  # nothing had run yet
    study, config = plan("pooling")
    run_study(study, config)
    path = next((config.out / "runs").iterdir())
    path.write_text(path.read_text()[:-20])
    with pytest.raises(Exception, match=f"{path.name} is not the result of a run"):
        run_study(study, config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="a study runs in one process"):
        plan("pooling")
