"""`mirror-rt evaluate --suite`: sets found in a folder, models compared, a report."""

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import ModelError
from mirror_rt.cli import evaluate as evaluate_command
from mirror_rt.evaluation.html import _section
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.report import describe_comparison, summaries, verdict
from mirror_rt.evaluation.run import Evaluation, Measure, Result, evaluate_sets
from mirror_rt.evaluation.suites import SuiteOptions, find_sets
from mirror_rt.evaluation.suites.base import Outcome, in_training, language_of
from mirror_rt.evaluation.suites.sentences import AVERAGED
from mirror_train import TorchEncoder
from paths import ROOT
from rounding import RUN_ERROR

SUITES = ["words", "sentences", "linking", "qnli", "clws", "bli", "geometry"]


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, words):
    """Tiny sets in the published formats, of real words."""
    root = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(0)
    words = [word for word in words if word.isalpha() and len(word) > 2]

    def pairs(n):
        return [(*rng.choice(words, 2), round(float(rng.random()) * 5, 2)) for _ in range(n)]

    # fmt: off
    for tag in ("en", "fr"):
        lines = [f"{i}\t{a}\t{b}\t{s}" for i, (a, b, s) in enumerate(pairs(40))]
        write(root / "multisimlex" / f"{tag}.tsv", "pair_id\tword1\tword2\tscore", *lines)
        write(root / "words" / f"{tag}.txt", *words[:150])
    for year in range(12, 17):
        sts = root / "STS" / f"STS{year}-en-test"
        for subset in ("MSRpar", "OnWN"):
            some = pairs(25)
            write(sts / f"STS.input.{subset}.txt", *(f"the {a}\tsome {b}" for a, b, _ in some))
            write(sts / f"STS.gs.{subset}.txt", *("" if s < 0.2 else str(s) for *_, s in some))
    write(root / "STS/STSBenchmark/sts-test.csv",
          *(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}" for a, b, s in pairs(30)))
    write(root / "SICK/SICK_test_annotated.txt",
          "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
          *(f"1\t{a}\t{b}\t{s}\tNEUTRAL" for a, b, s in pairs(30)))
    write(root / "bel/ncbi-disease-dictionary.txt",
          *(f"D{i}||{w}" for i, w in enumerate(words[:60])))
    write(root / "bel/ncbi-disease-test.tsv", "mention\tconcept_id",
          *(f"{w}s\tD{i}|X" for i, w in enumerate(words[:20])))
    labels = ("entailment", "not_entailment")
    write(root / "qnli/dev.tsv", "index\tquestion\tsentence\tlabel",
          *(f"{i}\t{a}?\t{b}\t{labels[i % 2]}" for i, (a, b, _) in enumerate(pairs(40))))
    write(root / "bli/en-fr.train.tsv", *(f"{w}\t{w}s" for w in words[:100]))
    write(root / "bli/en-fr.test.tsv", *(f"{w}\t{w}s" for w in words[100:140]))
    # fmt: on
    return root


@pytest.fixture(scope="module")
def report(tmp_path_factory, folder, bundle, tiny_bert):
    """All suites on a bundle and on the Hugging Face folder that it was made from."""
    from mirror_rt.cli import main

    out = tmp_path_factory.mktemp("report") / "report"
    code = main([
        "evaluate", f"bundle={bundle}", f"torch={tiny_bert}", "--suite", "all", "--data",
        str(folder), "--out", str(out), "--pooling", "auto", "--samples", "50",
        "--geometry-texts", "60", "--allow-missing", "--quiet",
    ])  # fmt: skip
    return code, json.loads((out / "report.json").read_text()), (out / "report.html").read_text()


def test_all_suites_on_a_bundle_and_a_folder(report):
    code, values, _ = report
    assert code == 0
    assert values["failures"] == []
    assert {result["suite"] for result in values["results"]} == set(SUITES)
    assert {result["model"] for result in values["results"]} == {"bundle", "torch"}
    # fmt: off
    assert {
        ("multisimlex-en", "spearman"), ("sts12", "spearman"),
        ("sts12", "spearman, mean of subsets"), ("stsb-en", "spearman"),
        ("average of 7", "spearman"), ("ncbi-disease", "accuracy @1"),
        ("ncbi-disease", "accuracy @5"), ("qnli", "ROC AUC"), ("multisimlex-en-fr", "spearman"),
        ("en-fr", "accuracy @1, procrustes"), ("en-fr", "accuracy @1, vecmap"),
        ("words-fr", "isotropy score"),
    } <= {(result["set"], result["metric"]) for result in values["results"]}
    # fmt: on
    for result in values["results"]:
        low, high = result["interval"] or (result["value"], result["value"])
        assert low <= high
        assert (result["interval"] is None) == (result["suite"] == "geometry")
    assert any("bc5cdr-disease" in one for one in values["missing"])
    assert not any("ncbi" in one for one in values["missing"])


def test_average_is_of_the_seven_sets(report):
    for model in ("bundle", "torch"):
        found = {
            result["set"]: result["value"]
            for result in report[1]["results"]
            if result["model"] == model and result["metric"] == "spearman"
            if result["suite"] == "sentences"
        }
        average = found.pop("average of 7")
        assert len(found) == 7
        assert average == pytest.approx(np.mean(list(found.values())))


def test_an_average_of_fewer_sets_says_so(tmp_path, cli, tiny_bert):
    """A random sample of labelled pairs, too, says what it is."""
    for name in ("stsb-en-test", "sts12-test", "stsb-ru-test"):
        write(tmp_path / f"sts/{name}.tsv", "text1\ttext2\tscore", "the\tof\t1", "day\ttime in\t2",
              f"old\ttown {name}\t3")  # fmt: skip
    rows = [f"the {i}\tof {i}\t{i % 2}" for i in range(40)]
    write(tmp_path / "pairs/quora.tsv", "question1\tquestion2\tis_duplicate", *rows)
    done = cli("evaluate", tiny_bert, "--suite", "sentences", "qnli", "--data", tmp_path,
               "--out", tmp_path / "report", "--allow-missing", "--samples", 0, "--no-plots",
               "--labelled-pairs", 30)  # fmt: skip
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    found = {one["set"]: one["value"] for one in results if one["metric"] == "spearman"}
    expected = np.mean([found["stsb-en"], found["sts12"]])
    assert found["average of 2 of 7"] == pytest.approx(expected)
    (area,) = (one for one in results if one["metric"] == "ROC AUC")
    assert (area["n"], area["note"]) == (30, "a random sample of 30 of 40 pairs")


@pytest.mark.full
def test_a_pooling_for_each_model_and_the_cosines_of_pairs(tmp_path, cli, tiny_bert):
    write(tmp_path / "pairs/quora.tsv", "question1\tquestion2\tis_duplicate", "the\tof\t1",
          "day\ttime\t0", "in\ton\t1")  # fmt: skip
    write(tmp_path / "pairs.tsv", "text1\ttext2\tscore", "the\tof\t1", "day\ttime in\t2")
    models = [f"{name}={tiny_bert}:{name}" for name in ("cls", "mean", "max")]
    done = cli("evaluate", *models, "--suite", "qnli", "--data", tmp_path, "--out",
               tmp_path / "report", "--allow-missing", "--samples", 0)  # fmt: skip
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    uniform = {one["model"]: one["value"] for one in results if one["metric"] == "uniformity"}
    assert len({*uniform.values()}) == 3
    assert "ROC curves of quora" in (tmp_path / "report" / "report.html").read_text()
    line = ["evaluate", "similarity", tiny_bert, "--pairs", tmp_path / "pairs.tsv", "--cosines",
            tmp_path / "cosines.tsv"]  # fmt: skip
    assert cli(*line).code == 0
    rows = [row.split("\t") for row in (tmp_path / "cosines.tsv").read_text().splitlines()]
    assert rows[0] == ["text1", "text2", "score", "cosine"]
    a, b = TorchEncoder.load(tiny_bert).encode(["day", "time in"])
    assert float(rows[2][3]) == pytest.approx(a @ b, abs=RUN_ERROR)
    assert "already exists" in cli(*line).err
    plot = tmp_path / "cosines.png"
    assert cli(*line[:5], "--plot", plot).code == 0
    (tmp_path / "texts.txt").write_text("the\nof\nday\ntime in\n")
    line = ["--texts", tmp_path / "texts.txt", "--json"]
    found = [
        cli("evaluate", "geometry", f"{tiny_bert}:{one}", *line).out for one in ("cls", "mean")
    ]
    assert len({json.loads(one)["isotropy_score_normalized"] for one in found}) == 2
    native = cli("evaluate", "geometry", f"{tiny_bert}:mean", *line, "--providers", "native")
    assert json.loads(native.out)["n"] == json.loads(found[1])["n"]  # which PyTorch would not take
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_published_word_sets_are_found_below_wordsim(tmp_path):
    write(tmp_path / "wordsim/SimLex-999/SimLex-999.txt", "word1\tword2\tSimLex999", "a\tb\t1")
    write(tmp_path / "wordsim/MEN/MEN_dataset_natural_form_full", "a b 1")
    write(tmp_path / "wordsim/SCWS/ratings.txt", "1\ta\tn\tb\tn\tx\ty\t1")
    write(tmp_path / "wordsim/wordsim_relatedness_goldstandard.txt", "a\tb\t1")
    found = find_sets(tmp_path, ["words"], SuiteOptions()).sets
    names = [one.name for one in found]
    assert names == ["simlex-999", "ws-353-rel", "men", "scws"]
    assert {one.languages for one in found} == {("en",)}


def test_the_average_takes_tables_under_the_names_that_studies_advise(tmp_path):
    names = [f"sts{year}-test-en" for year in range(12, 17)] + ["stsb-en-test", "sick-r-en"]
    for name in names:
        write(tmp_path / f"sts/{name}.tsv", "sentence1\tsentence2\tscore", "a\tb\t1", "c\td\t2")
    write(tmp_path / "sts/sts12-fr-test.tsv", "sentence1\tsentence2\tscore", "a\tb\t1")
    found = find_sets(tmp_path, ["sentences"], SuiteOptions()).sets
    assert {one.name: one.languages for one in found} == dict.fromkeys(AVERAGED, ("en",)) | {
        "sts12-fr": ("fr",)
    }


def test_a_model_and_its_bundle_are_not_ranked(report):
    """They give the same vectors to 1e-6, so nearly the same figures: nothing to rank."""
    compared = [one for one in report[1]["comparisons"] if one["suite"] != "geometry"]
    assert compared
    assert [one for one in compared if abs(one["difference"]) > 0.1] == []
    assert not all(one["shown"] for one in compared)
    for one in compared:
        low, high = one["interval"]
        assert one["shown"] == (not low <= 0 <= high)


def test_the_page_needs_no_other_file(report):
    page = report[2]
    assert "no difference shown" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert page.count("data:image/svg+xml;base64,") >= 8
    assert "Sets that are not in the folder" in page


def test_the_report_is_whole_after_every_set(cli, folder, bundle, tmp_path, monkeypatch):
    """Also where the process is killed, and nothing runs at its end."""
    found = []

    def keep(path, values):
        page = path.with_name("report.html")
        found.append(page.read_text("utf-8").count("<table") if page.is_file() else 0)
        write_json(path, values)

    write_json = evaluate_command.write_json
    monkeypatch.setattr(evaluate_command, "write_json", keep)
    line = ["evaluate", "--suite", "words", "linking", "--model", bundle, "--data", folder]
    done = cli(*line, "--samples", 0, "--out", tmp_path / "a", "--allow-missing")
    assert done.code == 0, done.err
    assert found[0] == 0 < found[1] <= found[-1]


def test_missing_sets_end_with_1_unless_allowed(cli, folder, bundle, tmp_path):
    line = ["evaluate", "--suite", "linking", "--model", bundle, "--data", folder, "--samples", 0]
    done = cli(*line, "--out", tmp_path / "a", "--no-plots")
    assert done.code == 1
    assert "missing: linking/cometa: " in done.err
    assert "4 sets are missing: add them, or pass --allow-missing" in done.err
    assert "accuracy @1" in done.out
    assert (tmp_path / "a" / "report.html").is_file()
    done = cli(*line, "--out", tmp_path / "b", "--no-plots", "--allow-missing")
    assert (done.code, "error" in done.err) == (0, False)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"--suite": ["wordz"]}, 2, "unknown suite 'wordz': expected words,"),
        ({"--data": ["nowhere"]}, 1, "nowhere is no folder"),
        ({"--data": ["empty"], "--suite": ["bli"]}, 1, "has no set of bli"),
        ({"--out": ["."]}, 1, "already exists"),
        ({"--model": ["x", "x"]}, 2, "two models have the same label"),
        ({"--samples": [-1]}, 2, "--samples must be at least 0, got -1"),
        ({"--model": []}, 2, "expected at least one argument"),
        ({"--data": None}, 2, "evaluate needs --data"),
        ({"--suite": None}, 2, "evaluate needs --suite"),
    ],
)
def test_bad_options(cli, folder, bundle, tmp_path, monkeypatch, change, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    options = {"--suite": ["words"], "--model": [bundle], "--data": [folder], "--out": ["o"]}
    given = {name: values for name, values in (options | change).items() if values is not None}
    line = [part for name, values in given.items() for part in (name, *values)]
    done = cli("evaluate", *line)
    assert (done.code, message in done.err) == (code, True), done.err
    assert not (tmp_path / "o").exists()


class Encoder:
    """Stands in for an encoder: a vector follows from the letters of a text."""

    mask_token = "[MASK]"

    def __init__(self, seed=0):
        self.letters = np.random.default_rng(seed).standard_normal((128, 16))
        self.encoded = []

    def encode(self, texts, *, normalize_embeddings, show_progress_bar):
        assert normalize_embeddings is False
        self.encoded += texts
        return np.array(
            [sum(self.letters[ord(c) % 128] for c in text) for text in texts], dtype=np.float32
        )


def test_one_bad_set_does_not_stop_the_others(folder, tmp_path):
    write(tmp_path / "multisimlex/de.tsv", "word1\tword2\tscore", "a\tb\t3", "c\td\t3")
    write(tmp_path / "multisimlex/en.tsv", "word1\tword2\tscore", "a\tb\t3", "c\td\t1")
    write(tmp_path / "wordsim/x.tsv", "word1\tword2", "a\tb")
    write(tmp_path / "bli/en-de.train.tsv", "a\tb")
    write(tmp_path / "bli/en-de.test.tsv", "a\tb")
    write(tmp_path / "words/de.txt", "ein", "zwei")
    write(tmp_path / "bel/ncbi-disease-test.tsv", "mention\tconcept_id", "a\tD1")
    found = find_sets(tmp_path, ["words", "linking", "bli"], SuiteOptions())
    kept = []
    model = EvaluatedModel("m", lambda language: Encoder())
    evaluation = evaluate_sets(
        [model], found.sets, samples=10, after=lambda e: kept.append(len(e.results))
    )
    assert [result.measure.set for result in evaluation.results] == ["multisimlex-en"]
    reasons = {failure.set: failure.reason for failure in evaluation.failures}
    assert (
        "Spearman's rho is undefined: all values of one side are equal" in reasons["multisimlex-de"]
    )
    assert "has no scores: expected a column 'score'" in reasons["x"]
    assert "no word of the dictionary (the first is 'b') is in" in reasons["en-de"]
    assert "has no dictionary for ncbi-disease" in reasons["ncbi-disease"]
    assert len(kept) == len(found.sets)


def test_a_model_that_cannot_be_loaded_spares_the_others(folder):
    def broken(language):
        raise ModelError("no weights")

    found = find_sets(folder, ["words", "clws"], SuiteOptions())
    models = [EvaluatedModel("bad", broken), EvaluatedModel("good", lambda language: Encoder())]
    evaluation = evaluate_sets(models, found.sets, samples=0)
    assert [(f.model, f.reason) for f in evaluation.failures] == [("bad", "no weights")] * 3
    assert {result.model for result in evaluation.results} == {"good"}


def test_languages_have_their_own_encoders(folder):
    """Texts are encoded once each by the encoder of their language; others are skipped."""
    loaded = {}

    def load(language):
        return loaded.setdefault(language, Encoder(seed=len(loaded)))

    def model(languages):
        return EvaluatedModel("m", load, languages=frozenset(languages))

    sets = find_sets(folder, ["words", "clws"], SuiteOptions()).sets
    evaluation = evaluate_sets([model({"en"})], sets, samples=0)
    assert [(f.set, f.reason, f.skipped) for f in evaluation.failures] == [
        ("multisimlex-fr", "no model for fr", True),
        ("multisimlex-en-fr", "no model for fr", True),
    ]
    loaded.clear()
    evaluation = evaluate_sets([model({"en", "fr"})], sets, samples=0)
    assert len(evaluation.results) == 3
    assert set(loaded) == {"en", "fr"}
    for encoder in loaded.values():
        assert len(encoder.encoded) == len(set(encoder.encoded))


def test_ranking_is_refused_inside_the_interval(folder):
    found = find_sets(folder, ["words"], SuiteOptions())
    models = [
        EvaluatedModel(name, lambda language, seed=seed: Encoder(seed))
        for name, seed in (("a", 0), ("b", 1), ("c", 2))
    ]
    evaluation = evaluate_sets(models, found.sets, samples=200)
    for measure, row in evaluation.by_measure().items():
        best = max(row.values(), key=lambda result: result.outcome.value)
        close = [
            one
            for one in evaluation.comparisons()
            if one.measure == measure and best.model in (one.first, one.second)
            if not one.difference.shown
        ]
        words = verdict(row)
        assert ("no difference shown" in words) == bool(close)
        assert ("is best" in words) == (not close)


def known(values):
    """An evaluation of measures m0, m1 ...: (value of a, value of b, half the interval)."""
    spread, found = np.linspace(-1, 1, 201), Evaluation(["a", "b"])
    for i, (a, b, half) in enumerate(values):
        for model, value, drawn in (("a", a, a + half * spread), ("b", b, np.full(201, b))):
            outcome = Outcome("spearman", 10, value)
            measure = Measure("words", f"m{i}", "spearman")
            found.results.append(Result(measure, model, outcome, None, drawn, 0.0))
    return found


def test_the_verdict_of_known_figures():
    """The better model comes first, with its largest gain and the interval of that."""
    better = known([(0.5, 0.7, 0.0), (0.4, 0.5, 0.02), (0.6, 0.5, 0.04), (0.5, 0.51, 0.1)])
    (words,) = summaries(better)
    assert words == (
        "b is better than a on 2 of 4 measures (most on m0, spearman: by 0.200, interval 0.200 to "
        "0.200), and worse on 1 (m2, spearman: by 0.100, interval 0.062 to 0.138); no "
        "difference is shown on the other 1."
    )
    (words,) = summaries(known([(0.5, 0.51, 0.1)]))
    assert words == "No difference between a and b is shown on 1 measure."
    assert summaries(Evaluation(["a"])) == []
    assert [describe_comparison(one)[:30] for one in better.comparisons()] == [
        "b is better: a - b = -0.2000 [", "b is better: a - b = -0.1000 [",
        "a is better: a - b = +0.1000 [", "no difference shown: a - b = -",
    ]  # fmt: skip


def test_a_section_of_the_report():
    """A column that is empty in all rows is left out."""
    page = _section("A table", ["set", "note", "n"], [["x", "", "1"], ["y", "", "2"]])
    assert "note" not in page
    assert page.count("<td>") == 4


def test_few_items_are_only_a_hint(report):
    for row in re.findall(r"<tr>(<td>.*?)</tr>", report[2], re.DOTALL):
        if counted := re.search(r"<td>(?:.*?)(?:higher|lower|to 0)</td><td>([0-9,]+)</td>", row):
            few = int(counted[1].replace(",", "")) < 50
            assert few == ("a hint, no result" in row), row
    assert "only 40 items: a hint, no result" in report[2]


def test_the_report_begins_with_the_verdict(report):
    _, values, page = report
    assert page.index('class="verdict"') < page.index("<h2>")
    assert "No difference between" in page or "is better than" in page
    directions = {result["metric"]: result["better"] for result in values["results"]}
    assert (directions["spearman"], directions["uniformity"]) == ("higher", "lower")
    assert directions["mean cosine"] == "nearer to 0"
    for words in ("\u2191 higher", "\u2193 lower", "nearer to 0"):
        assert words in page


@pytest.mark.full
@pytest.mark.browser
def test_the_report_in_a_browser(report, browser, tmp_path):
    (tmp_path / "report.html").write_text(report[2])
    folder = Path(os.environ.get("MIRROR_RT_ARTEFACTS", ROOT / "build"))
    for width, scheme in itertools.product((1280, 390), ("light", "dark")):
        browser.show_as(width, scheme)
        browser.call("Page.navigate", url=(tmp_path / "report.html").as_uri())
        browser.wait_for("document.querySelector('.verdict') !== null")
        browser.check_readable()
        browser.screenshot(folder / f"report-{width}-{scheme}.png")
        narrow = browser.evaluate("[...document.images].every(i => i.currentSrc !== i.src)")
        assert narrow == (width == 390), "phones have pictures of their own"
    assert {url.partition(":")[0] for url in browser.requested} <= {"about", "file", "data"}


def test_splits_and_languages_from_names(tmp_path):
    names = ["a-test.tsv", "a-dev.tsv", "a-train.tsv", "b-dev.tsv", "c.tsv"]
    split = in_training(Path(name) for name in names)
    assert [path.name for path, training in split if training] == ["a-dev.tsv", "a-train.tsv"]
    assert language_of(Path("stsb-ru-test.tsv")) == "ru"
    assert language_of(Path("quora-dev.csv")) is None
    assert language_of(Path("ws-sim.tsv")) is None
    assert language_of(Path("ws-sim-en.tsv")) == "en"


def test_training_splits_are_measured_where_they_are_named(cli, bundle, tmp_path):
    for part in ("train", "dev"):
        lines = ["sentence1\tsentence2\tis_duplicate", "a\tb\t1", "c\td\t0"]
        write(tmp_path / f"pairs/quora-{part}.tsv", *lines)
    line = ["evaluate", "--model", bundle, "--data", tmp_path, "--samples", 0, "--no-plots",
            "--allow-missing", "--suite"]  # fmt: skip
    done = cli(*line, "qnli", "--out", tmp_path / "dev")
    assert "left out: qnli/quora-train, as models are trained on it" in done.err
    assert ": --suite qnli/quora-train measures it" in done.err
    assert ("quora-dev" in done.out, "quora-train" in done.out) == (True, False)
    done = cli(*line, "qnli/quora-train", "--out", tmp_path / "train")
    assert ("quora-dev" in done.out, "quora-train" in done.out) == (False, True)


def test_a_pack_by_language_folder(cli, folder, tiny_bert, tmp_path):
    """A folder of Hugging Face folders by language, as `tune` leaves them."""
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "en").symlink_to(tiny_bert, target_is_directory=True)
    (tmp_path / "empty").mkdir()
    line = ["evaluate", "--suite", "words", "--data", folder, "--samples", 0, "--no-plots",
            "--allow-missing", "--model"]  # fmt: skip
    done = cli(*line, f"t={tmp_path / 'tuned'}", "--out", tmp_path / "o")
    assert done.code == 0, done.err
    assert "skipped: words/multisimlex-fr with t: no model for fr" in done.err
    assert "multisimlex-en" in done.out
    done = cli(*line, tmp_path / "empty", "--out", tmp_path / "p")
    assert (done.code, "nor a folder of models by language" in done.err) == (1, True)


def test_a_pack_has_an_encoder_for_each_language(cli, folder, bundle, tmp_path):
    from mirror_rt.bundle.pack_index import PackedBundle, PackIndex

    pack = tmp_path / "pack"
    shutil.copytree(bundle, pack / "fr")
    PackIndex({"fr": PackedBundle.describe(pack, "fr", {})}, default="fr").write(pack)
    line = ["evaluate", "--suite", "words", "clws", "--model", pack, "--data", folder]
    done = cli(*line, "--out", tmp_path / "o", "--samples", 0, "--allow-missing", "--no-plots")
    assert done.code == 0, done.err
    values = json.loads((tmp_path / "o/report.json").read_text())
    assert [result["set"] for result in values["results"]] == ["multisimlex-fr"]
    assert {f["set"]: f["reason"] for f in values["failures"]} == {
        "multisimlex-en": "no model for en",
        "multisimlex-en-fr": "no model for en",
    }


def test_what_was_measured_survives_an_interruption(cli, folder, tmp_path, monkeypatch):
    class Interrupted(Encoder):
        def encode(self, texts, **options):
            if self.encoded:
                raise KeyboardInterrupt
            return super().encode(texts, **options)

    encoder = Interrupted()
    monkeypatch.setattr("mirror_rt.cli.common.LoadingOptions.load_named", lambda *_: encoder)
    line = ["evaluate", "--suite", "words", "--model", "x", "--data", folder, "--no-plots"]
    done = cli(*line, "--out", tmp_path / "o")
    assert done.code == 130
    (result,) = json.loads((tmp_path / "o/report.json").read_text())["results"]
    assert result["set"] == "multisimlex-en"
    assert "multisimlex-en" in (tmp_path / "o/report.html").read_text()
    assert cli(*line, "--out", tmp_path / "o").code == 1  # never over an earlier report
    assert cli(*line, "--out", tmp_path / "o", "--overwrite").code == 130
