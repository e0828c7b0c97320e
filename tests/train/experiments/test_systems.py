"""The study of systems: what is tuned on what, what is kept, what is claimed."""

import dataclasses
import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from transformers import AutoModel

from mirror_export import study_bundles
from mirror_rt import ConfigError, DataError, Encoder
from mirror_rt.child_process import how_it_ended
from mirror_rt.evaluation.bootstrap import interval
from mirror_rt.evaluation.readers.pairs import ScoredPairs
from mirror_rt.evaluation.run import Measure, Result
from mirror_rt.evaluation.suites import Outcome
from mirror_train.compute.precision import resolve_device
from mirror_train.data.inputs import Inputs, without
from mirror_train.data.labelled_examples import Examples
from mirror_train.experiments import runner as study_module
from mirror_train.experiments.figures import column_title, figures_of, judge
from mirror_train.experiments.runner import run_study
from mirror_train.experiments.study import Run
from mirror_train.experiments.systems_study import (
    ENTRIES,
    SystemsConfig,
    find_entries,
    plan_systems,
)
from mirror_train.systems.system import Claim
from mirror_train.training.run_config import RunConfig

SENTIMENTS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory, words):
    """Every input and set, tiny: 60 sentences, 40 labelled pairs."""
    data = tmp_path_factory.mktemp("systems") / "data"
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(words, 5)) for _ in range(60)]

    def write(name, lines):
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def scored(header, pairs):
        return [header, *(f"{a}\t{b}\t{i % 11 / 2}" for i, (a, b) in enumerate(pairs))]

    def numbered(header, rows):
        return [f"\tid\t{header}", *(f"{i}\tx{i}\t" + "\t".join(row) for i, row in enumerate(rows))]

    pairs = list(zip(sentences[:40], sentences[20:], strict=True))
    write("sentences/en.txt", sentences)
    write("words/en.txt", words[:60])
    word_pairs = zip(words[:40], words[40:80], strict=True)
    write("multisimlex/en.tsv", scored("word1\tword2\tscore", word_pairs))
    write("sts/stsb-en-test.tsv", scored("sentence1\tsentence2\tscore", pairs[:30]))
    labels = ("entailment", "contradiction", "neutral")
    nli = [(sentences[i // 3], sentences[59 - i], labels[i % 3]) for i in range(60)]
    write("pairs/snli-dev.tsv", ["premise\thypothesis\tlabel", *map("\t".join, nli)])
    mentions = [f"{words[i]} {words[i + 1]}\tD{i // 3}" for i in range(60)]
    write("bel/ncbi-disease-train.tsv", ["mention\tconcept_id", *mentions])
    write("bel/ncbi-disease-test.tsv", ["mention\tconcept_id", *mentions[::5]])
    sentiments = [(s, str(i % SENTIMENTS)) for i, s in enumerate(sentences)]
    write("pairs/ids-sst-train.csv", numbered("sentence\tsentiment", sentiments))
    write("pairs/ids-sst-dev.csv", numbered("sentence\tsentiment", sentiments[:10]))
    duplicates = [(a, b, str(i % 2)) for i, (a, b) in enumerate(pairs)]
    write("pairs/quora-dev.csv", numbered("sentence1\tsentence2\tis_duplicate", duplicates))
    similar = [(a.upper(), f"{b}!", str(i % 6)) for i, (a, b) in enumerate(pairs)]
    write("pairs/sts-train.csv", numbered("sentence1\tsentence2\tsimilarity", similar))
    write("pairs/sts-dev.csv", numbered("sentence1\tsentence2\tsimilarity", similar[30:]))
    return data


@pytest.fixture
def configure(folder, tiny_bert, tmp_path):
    def make(**options):
        values = {"samples": 20, "max_steps": 2, "top": 48} | options
        return SystemsConfig(
            data=values.pop("data", folder),
            out=values.pop("out", tmp_path / "out"),
            model=str(tiny_bert),
            precision="fp32",
            device="cpu",
            show_progress_bar=False,
            **values,
        )

    return make


@pytest.fixture
def here(monkeypatch):
    """Tune in this process, and say what was tuned."""
    tuned = []

    def train(task):
        tuned.append(task[0].label)
        return study_module._train_alone(task)

    monkeypatch.setattr(study_module, "train_in_child", train)
    return tuned


def test_the_list_of_the_command_line_is_that_of_the_systems(cli):
    text = " ".join(cli("study", "--help").out.split())
    for _, system in ENTRIES.values():
        assert f"{system.name} {system.title} ({system.source})" in text
        assert json.loads(json.dumps(dataclasses.asdict(system.recipe())))
        assert all(claim.against in {"untuned", *ENTRIES} for claim in system.claims)


def test_every_system_from_one_folder(configure, here):
    config = configure()
    study = plan_systems(config)
    assert list(study.left_out) == ["sentences/pairs-sts-dev"]
    assert study.left_out["sentences/pairs-sts-dev"].endswith("call it sts-dev-en.csv")
    rows = run_study(study, config)
    assert here == list(ENTRIES)
    assert [row.label for row in rows] == ["untuned", *ENTRIES]
    assert {row.label: row.error for row in rows if row.error} == {}
    measures = [[result.measure for result in row.results] for row in rows]
    assert all(found == measures[0] for found in measures)
    assert {one.suite for one in measures[0]} == {"sentences", "words", "linking", "geometry"}
    values = {tuple(result.outcome.value for result in row.results) for row in rows}
    assert len(values) == len(rows)  # no two models are the same
    sts = [next(r for r in row.results if r.measure.set == "stsb-en") for row in rows]
    assert all(result.interval.low <= result.interval.high for result in sts)
    data = {row.label: row.data for row in rows}
    assert data["mirror"] == "en.txt, 48"
    assert data["synonyms"] == "ncbi-disease-train.tsv, 48"
    assert "without 30 pairs that are evaluated on" in data["multitask"]
    for row in rows[1:]:
        assert (config.out / "models" / row.label / "mirror.json").is_file()


@pytest.mark.full
def test_poolings_and_seeds_of_systems(configure, here, folder, tiny_bert, tmp_path):
    """`paper`: sentence-level BERT by the mean, words by [CLS], whatever the base declares."""
    base = shutil.copytree(tiny_bert, tmp_path / "base")
    types = [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling")]
    modules = [{"type": name, "path": "pooling" * i} for i, name in enumerate(types)]
    (base / "modules.json").write_text(json.dumps(modules))
    (base / "pooling").mkdir()
    (base / "pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    systems = ["mirror", "mirror-words", "flow", "cf", "multitask"]
    poolings = {"paper": ["mean", "cls", "mean", "mean", "mean"], "cls": ["cls"] * 5}
    for given, expected in poolings.items():
        config = configure(systems=systems, pooling=given, seeds=2, out=tmp_path / given)
        config = dataclasses.replace(config, model=str(base))
        study = plan_systems(config)
        assert study.rows[0].pooling == ("mean" if given == "paper" else "cls")
        runs = run_study(study, config)
        assert {run.label: run.error for run in runs if run.error} == {}
        models = config.out / "models"
        found = [json.loads((models / name / "mirror.json").read_text()) for name in systems]
        assert [one["pooling"] for one in found] == expected
        assert (models / "mirror-seed-43").is_dir()
        mirror = figures_of([run for run in runs if run.label == "mirror"])
        assert all(one.interval is not None for one in mirror.values())


@pytest.mark.full
def test_every_row_is_fine_tuned_on_the_tasks(configure, here, folder, tmp_path):
    """Table 1 of BERT-CF, its supervised half: that of `multitask`, from each row's folder."""
    config = configure(systems=["mirror", "flow"], evaluate=("sentences/stsb-en",), supervised=True)
    study = plan_systems(config)
    runs = run_study(study, config)
    titles = ["sentiment accuracy", "paraphrase accuracy", "similarity pearson"]
    assert [column_title(one.measure) for one in runs[0].results] == ["stsb-en", *titles]
    assert sorted(path.name for path in config.out.iterdir()) == ["models", "runs"]
    steps = configure(systems=["multitask"])
    (_, row) = plan_systems(steps).rows
    for run in runs[1:]:
        source = str(config.out / "models" / run.label)
        options = config.run_options() | {"model": source, "out": tmp_path / run.label}
        found = row.train(RunConfig(**options)).manifest
        expected = [found.training["metrics"][title.split()[0]][title.split()[1]]
                    for title in titles]  # fmt: skip
        assert [one.outcome.value for one in run.results[1:]] == expected
    assert study.setting != plan_systems(configure(systems=["mirror"])).setting


@pytest.mark.full
def test_scored_pairs_choose_the_weights_of_systems(configure, here, folder):
    """Section 5.3 of BERT-CF: "the model checkpoint that maximizes the STS-13 correlation"."""
    pairs = folder / "sts" / "stsb-en-test.tsv"
    systems = ["mirror-tokens", "flow", "burt", "multitask"]
    config = configure(systems=systems, select=pairs, evaluate_every=1)
    study = plan_systems(config)
    assert {run.label: run.error for run in run_study(study, config) if run.error} == {}
    for name in systems:
        found = json.loads((config.out / "models" / name / "mirror.json").read_text())
        assert found["training"]["select"], name
        assert found["training"]["best_step"] in (1, 2), name
    assert study.rows[1].identity != plan_systems(configure(systems=systems)).rows[1].identity


def test_optional_inputs_decide_a_row_too(configure, folder, tmp_path):
    """PPDB that BURT may take, pairs that must not be learnt from, and how models are evaluated."""
    data = shutil.copytree(folder, tmp_path / "data")

    def identities(**options):
        study = plan_systems(configure(data=data, **options))
        found = {row.label: study.setting | row.identity for row in study.rows}
        return [found[name] for name in ("mirror", "burt", "multitask")]

    mirror, burt, multitask = identities()
    assert set(burt["files"]) == {"pairs/snli-dev.tsv", "pairs/quora-dev.csv"}
    assert "sts/stsb-en-test.tsv" in multitask["files"]
    (data / "pairs" / "ppdb-s.txt").write_text("[NN] ||| a ||| b ||| ||| ||| Equivalence\n")
    (data / "sts" / "sick-r-all.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\n")
    after = identities()
    assert set(after[1]["files"]) - set(burt["files"]) == {"pairs/ppdb-s.txt"}
    assert set(after[2]["files"]) - set(multitask["files"]) == {"sts/sick-r-all.tsv"}
    assert after[0]["files"] == mirror["files"]
    for option in ({"export": False}, {"top": 40}):
        assert identities(**option)[0] != after[0]


def test_a_system_that_fails_is_a_row(configure, folder, here, tmp_path, monkeypatch):
    data = tmp_path / "data"
    for name in ("sentences", "sts", "bel"):
        (data / name).mkdir(parents=True)
        for path in (folder / name).iterdir():
            (data / name / path.name).write_bytes(path.read_bytes())
    (data / "bel" / "ncbi-disease-train.tsv").write_text("mention\tconcept_id\nfever\tD1\n")
    config = configure(data=data, systems=["mirror", "mirror-words", "synonyms", "multitask"])
    study = plan_systems(config)
    rows = run_study(study, config)
    assert [row.label for row in rows] == ["untuned", "mirror", "synonyms"]
    assert [row.error is None for row in rows] == [True, True, False]
    assert "no concept has two different names" in rows[2].error
    assert study.left_out == {
        "mirror-words": f"{data} has no words/en.txt",
        "multitask": f"{data} has no pairs/ids-sst-train.csv or pairs/ids-sst-dev.csv",
    }
    run_study(study, config)
    assert here == ["mirror", "synonyms", "synonyms"]  # a failure is not kept


@pytest.mark.full
def test_the_command_in_processes_of_their_own(folder, tiny_bert, tmp_path, succeed):
    """With a report; the second run finds everything."""
    line = ["study", "systems", "--data", folder, "--systems", "mirror", "--model", tiny_bert,
            "--out", tmp_path / "out", "--top", 40, "--samples", 20, "--precision", "fp32",
            "--no-export"]  # fmt: skip
    succeed(*line)
    report = json.loads((tmp_path / "out" / "systems.json").read_text())
    assert report["device"] == str(resolve_device("auto"))  # what it was measured on
    base, mirror = report["runs"]
    assert (base["label"], mirror["label"]) == ("untuned", "mirror")
    assert mirror["memory_mb"] > 100
    assert mirror["seconds"] > 0
    assert {one["verdict"].split(":")[0] for one in report["claims"]} <= {
        "holds", "not shown", "does not hold"}  # fmt: skip
    text = (tmp_path / "out" / "systems.md").read_text()
    assert "| untuned | - | " in text
    assert "| mirror | en.txt, 40 | " in text
    assert "| mirror | higher than untuned | stsb-en spearman | " in text
    succeed(*line)
    again = json.loads((tmp_path / "out" / "systems.json").read_text())
    assert again["runs"] == [run | {"kept": True} for run in report["runs"]]
    for one, kept in zip(report["claims"], again["claims"], strict=True):
        # Of values that are kept for it in single precision.
        assert kept.pop("interval") == pytest.approx(one.pop("interval"), abs=1e-5)
        assert kept == one


def test_systems_are_evaluated_as_they_are_used(configure, tiny_bert, bundle, monkeypatch):
    """Through bundles that were compared with PyTorch; a base without a pooling by its mean."""
    asked = []

    def export(config):
        asked.append((config.model, config.pooling, config.overwrite))
        shutil.copytree(bundle, config.out)

    monkeypatch.setattr(study_bundles, "export_bundle", export)
    opened = study_bundles.open_bundles(configure())("untuned", str(tiny_bert), "auto")
    assert asked == [(str(tiny_bert), "mean", True)]
    assert isinstance(opened.encoder, Encoder)
    assert "differs from PyTorch by" in opened.about


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--systems", "simsce"], 2, "no system 'simsce' (did you mean 'simcse'?); there are"),
        (["--strings", "x.txt"], 2, "--strings does not go with the study 'systems'"),
        (["--small"], 2, "--small does not go with the study 'systems'"),
        (["--top", 1], 2, "top must be at least 2, got 1"),
        (["--max-steps", 0], 2, "--max-steps must be at least 1, got 0"),
        (["--learning-rate", 0], 2, "--learning-rate must be above 0, got 0.0"),
        (["--learning-rate", "nan"], 2, "--learning-rate must be above 0, got nan"),
        (["--lang", "xx"], 1, "has no set in 'xx' to evaluate on"),
    ],
)
def test_what_cannot_be_used(folder, tiny_bert, tmp_path, cli, arguments, code, message):
    done = cli("study", "systems", "--data", folder, "--model", tiny_bert, "--no-export",
               "--out", tmp_path / "out", *arguments)  # fmt: skip
    assert (done.code, message in done.err) == (code, True), done.err


def test_options_of_systems_go_with_them_alone(folder, tmp_path, cli):
    for option in (["--systems", "mirror"], ["--max-steps", 3], ["--no-export"], ["--seed", 1],
                   ["--learning-rate", 2]):  # fmt: skip
        done = cli("study", "ablation", "--data", folder, "--out", tmp_path / "out", *option)
        assert done.code == 2
        assert f"{option[0]} does not go with the study 'ablation'" in done.err
    done = cli("study", "systems", "--out", tmp_path / "out")
    assert done.code == 2
    assert "study systems needs --data DIR" in done.err


@pytest.mark.full
@pytest.mark.parametrize("system", ["mirror", "cf", "burt", "multitask", "flow"])
def test_one_learning_rate_for_all_that_moves_the_encoder(system, folder, tiny_bert, tmp_path):
    """Not that of a flow, which learns vectors, however large the encoder is."""
    config = SystemsConfig(systems=[system], data=folder, top=48, out=tmp_path / "out",
              model=str(tiny_bert), max_steps=1, learning_rate=8e-4, precision="fp32", device="cpu",
              show_progress_bar=False)  # fmt: skip
    own = json.loads(json.dumps(dataclasses.asdict(ENTRIES[system][1].recipe())))
    row = plan_systems(config).rows[1]
    tuned = row.train(RunConfig(**config.run_options())).manifest.recipe
    assert tuned["learning_rate"] == (own["learning_rate"] if system == "flow" else 8e-4)
    flow = own["flow"]["learning_rate"] if system == "cf" else None
    assert tuned.get("flow_learning_rate") == flow


@pytest.mark.full
def test_recipes_are_cut_to_what_the_base_has_positions_for(configure, here, tiny_bert, tmp_path):
    base = shutil.copytree(tiny_bert, tmp_path / "short")
    model = AutoModel.from_pretrained(base)
    table = model.embeddings.position_embeddings
    table.weight = torch.nn.Parameter(table.weight[:24])
    model.config.max_position_embeddings = 24
    model.save_pretrained(base)
    systems = ["mirror", "cf", "burt", "multitask"]
    config = dataclasses.replace(configure(systems=systems), model=str(base))
    rows = run_study(plan_systems(config), config)
    assert [row.error for row in rows] == [None] * 5
    for system in systems:
        manifest = json.loads((config.out / "models" / system / "mirror.json").read_text())
        assert manifest["recipe"]["max_length"] == 24


def test_find_entries():
    assert [one.name for one in find_entries(["simcse", "mirror"])] == ["mirror", "simcse"]
    assert len(find_entries(None)) == len(ENTRIES)
    with pytest.raises(ConfigError, match="no system 'bert'"):
        find_entries(["bert"])


def test_pairs_that_are_evaluated_on_are_left_out():
    examples = Examples(
        ["A man plays.", "It rains", "Dogs run", "None"],
        ["Someone plays", "it is wet", "Cats sit.", "left"],
        np.array([5.0, 4.0, 0.0, 1.0]),
        (),
        "sts-train.csv",
    )
    evaluated = ScoredPairs(["a man plays", "cats sit"], ["someone PLAYS!", "dogs run"], np.ones(2))
    found = without(examples, [evaluated])
    assert found.items() == [("It rains", "it is wet"), ("None", "left")]
    assert found.targets.tolist() == [4.0, 1.0]
    assert found.source == "sts-train.csv without 2 pairs that are evaluated on"
    assert without(found, [evaluated]).source == found.source
    with pytest.raises(DataError, match="all of its pairs are evaluated on"):
        without(examples.take([0, 2]), [evaluated])


def test_the_real_training_pairs_hold_test_pairs(data):
    """CS224N's split of the STS benchmark is not that of the benchmark."""
    similarity = Inputs(data).tasks(42).tasks["similarity"]
    assert similarity.train.source == "sts-train.csv without 1059 pairs that are evaluated on"
    assert len(similarity.train) == 6040 - 1059


def result(model, suite, name, value, replicates):
    drawn = np.array(replicates)
    return Result(Measure(suite, name, "spearman"), model, Outcome("spearman", 10, value),
                  interval(drawn), drawn, 0.0)  # fmt: skip


def test_claims_are_judged_by_paired_intervals():
    noise = np.random.default_rng(0).normal(0, 0.02, 200)
    small = np.random.default_rng(1).normal(0, 0.001, 200)
    results = {
        "a": [
            result("a", "sentences", "sts", 0.6, 0.6 + noise),
            result("a", "sentences", "other", 0.6, 0.6 + noise),
            result("a", "words", "words", 0.1, 0.1 + noise),
        ],
        "b": [
            result("b", "sentences", "sts", 0.59, 0.59 + noise + small),
            result("b", "sentences", "other", 0.5999, 0.5999 + noise + small),
            result("b", "words", "words", 0.9, 0.9 + noise),
        ],
    }
    figures = {name: figures_of([Run(name, 1, found)]) for name, found in results.items()}

    def verdicts(system, claim):
        other = figures.get(claim.against, {})
        return {one.set: one.verdict for one in judge(system, claim, figures[system], other)}

    assert verdicts("a", Claim("b", ("sentences",))) == {
        "other spearman": "not shown: the interval holds 0", "sts spearman": "holds"}  # fmt: skip
    assert verdicts("a", Claim("b", ("words",))) == {
        "words spearman": "does not hold: it is lower"}  # fmt: skip
    assert verdicts("a", Claim("b", ("sentences",), "on par")) == {
        "other spearman": "holds",
        "sts spearman": "not shown: the interval is not within 0.01",
    }
    assert verdicts("a", Claim("b", ("words",), "on par")) == {
        "words spearman": "does not hold: it is lower"}  # fmt: skip
    assert verdicts("a", Claim("absent", ("sentences",))) == {}


def test_a_worker_that_is_killed_says_so():
    with subprocess.Popen(["bash", "-c", "kill -9 $$"]) as killed:
        killed.wait()
    assert how_it_ended(killed).endswith("out of memory, most likely")
    with subprocess.Popen(["bash", "-c", "exit 3"]) as failed:
        failed.wait()
    assert how_it_ended(failed) == "its process ended with code 3"
    assert how_it_ended(failed, said="why") == "its process ended with code 3: why"
