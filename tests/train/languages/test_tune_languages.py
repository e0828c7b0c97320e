"""tune --lang: one run for many languages."""

import itertools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import mirror_train.languages.language_job as module
from command_errors import one_line_error
from mirror_rt.bundle.manifest import Manifest
from mirror_train import TorchEncoder
from paths import TESTS

PROBES = ["the river", "река", "maison"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Words of three languages, scored pairs of two."""
    import wordfreq

    root = tmp_path_factory.mktemp("languages")
    (root / "words").mkdir()
    (root / "data" / "multisimlex").mkdir(parents=True)
    for language in ("en", "fr", "ru"):
        words = wordfreq.top_n_list(language, 120)
        (root / "words" / f"{language}.txt").write_text("\n".join(words), encoding="utf-8")
        if language != "ru":
            rows = [f"{a}\t{b}\t{i % 7}" for i, (a, b) in enumerate(itertools.pairwise(words))]
            text = "\n".join(["word1\tword2\tscore", *rows])
            (root / "data" / "multisimlex" / f"{language}.tsv").write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def arguments(tiny_bert, folders, tmp_path):
    def line(*options, langs="en,fr,ru", words=folders / "words", out="tuned"):
        return ["tune", "--recipe", "word", "--lang", langs, "--model", tiny_bert,
                *(("--words", words) if words else ()), "--batch-size", 20, "--learning-rate",
                1e-3, "--precision", "fp32", "--out", tmp_path / out, *options]  # fmt: skip

    return line


@pytest.fixture
def tune(cli, arguments):
    return lambda *options, **named: cli(*arguments(*options, **named))


def vectors(folder):
    return TorchEncoder.load(folder).encode(PROBES)


def test_three_languages_in_one_run(tune, folders, tmp_path, succeed, tiny_bert, monkeypatch):
    loads, load_base = [], module.load_base
    monkeypatch.setattr(module, "load_base", lambda config: loads.append(1) or load_base(config))
    result = tune("--data", folders / "data", "--json")
    assert result.code == 0, result.err
    assert len(loads) == 1
    rows = json.loads(result.out)
    assert [(row["language"], row["status"], row["strings"]) for row in rows] == [
        ("en", "tuned", 120), ("fr", "tuned", 120), ("ru", "tuned", 120)]  # fmt: skip
    for row in rows:
        seconds, pooling = row["seconds"], row["pooling"]
        assert seconds > 0
        assert f"{row['language']}: 120 strings in {seconds} s, pooling {pooling}\n" in result.err
        for measures in (row["before"], row["after"]):
            assert 0 < measures["geometry"]["isotropy_score"] <= 1
            assert (measures["score"] is None) == (row["language"] == "ru")
        assert row["before"]["geometry"] != row["after"]["geometry"]
    manifest = Manifest.read(tmp_path / "tuned" / "fr", "mirror_rt encoder")
    manifest.verify(tmp_path / "tuned" / "fr")
    assert (manifest.language, manifest.level) == ("fr", "word")
    # The third is what it is alone: the shared base was not trained on the way.
    succeed("tune", tiny_bert, "--recipe", "word", "--data", folders / "words/ru.txt",
            "--lang", "ru", "--batch-size", 20, "--learning-rate", 1e-3, "--precision",
            "fp32", "--out", tmp_path / "alone")  # fmt: skip
    np.testing.assert_array_equal(vectors(tmp_path / "tuned/ru"), vectors(tmp_path / "alone"))
    from mirror_export import find_models

    models, others = find_models(tmp_path / "tuned")
    assert [name.rpartition("/")[2] for name in models] == ["en", "fr", "ru"]
    assert others == [module.REPORT_FILE]


@pytest.mark.full
def test_the_pooling_that_a_table_names_for_a_level(tune, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[languages.fr.word]\npooling = 'mean'", encoding="utf-8")
    result = tune("--recipes", own, "--epochs", 1, langs="fr,en")
    assert result.code == 0, result.err
    folders = [tmp_path / "tuned" / tag for tag in ("fr", "en")]
    found = [Manifest.read(folder, "mirror_rt encoder").pooling for folder in folders]
    assert found == ["mean", "cls"]


@pytest.mark.full
def test_the_table_and_resuming(tune, folders, tmp_path):
    first = tune("--data", folders / "data", langs="en,ru")
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert lines[0].split()[:5] == ["language", "base", "strings", "steps", "seconds"]
    assert [line.split()[0] for line in lines[1:3]] == ["en", "ru"]
    assert lines[1].endswith("tuned")
    assert " -> " in lines[1]
    assert f"mirror-rt export --all {tmp_path / 'tuned'} --out PACK" in lines[3]
    before = (tmp_path / "tuned/en/mirror.json").read_bytes()
    one_line_error(tune(langs="en,fr"), code=1, contains="en is left of an earlier run")
    again = tune("--data", folders / "data", "--resume", langs="en,fr,ru")
    assert again.code == 0, again.err
    assert "en: kept, finished earlier" in again.err
    row = again.out.splitlines()[1]
    assert row.split()[-1] == "kept"
    assert row.split()[:-1] == lines[1].split()[:-1]  # the same figures; columns fit all languages
    assert (tmp_path / "tuned/en/mirror.json").read_bytes() == before
    changed = shutil.copytree(folders / "data", tmp_path / "changed")
    for path in changed.rglob("en.tsv"):
        path.write_text(path.read_text().replace("1", "2"))
    scored = tune("--data", changed, "--resume", langs="en").out.splitlines()[1].split()
    assert scored[-2:] == ["-", "kept"]  # the score was of other pairs
    other = tune("--epochs", 1, "--resume", langs="en")
    assert other.code == 1
    assert "is of another run: epochs was 2, now 1" in other.err
    (tmp_path / "tuned/en/config.json").write_text("{}")
    assert "en is damaged" in tune("--resume", langs="en").err


@pytest.mark.full
def test_one_failure_does_not_stop_the_rest(tune, folders, tmp_path):
    words = tmp_path / "words"
    words.mkdir()
    for name in ("en.txt", "ru.txt"):
        (words / name).write_bytes((folders / "words" / name).read_bytes())
    (words / "fr.txt").write_bytes(b"caf\xe9\n")
    result = tune(words=words)
    assert result.code == 1
    assert "1 of 3 languages failed: fr" in result.err.splitlines()[-1]
    assert "failed: " in result.out.splitlines()[2]
    assert "not UTF-8" in result.out.splitlines()[2]
    assert not (tmp_path / "tuned/fr").exists()
    (words / "fr.txt").write_bytes((folders / "words/fr.txt").read_bytes())
    result = tune("--resume", words=words)
    assert result.code == 0, result.err
    assert [line.split()[-1] for line in result.out.splitlines()[1:4]] == ["kept", "tuned", "kept"]


@pytest.mark.full
def test_ctrl_c_leaves_what_resume_goes_on_from(tune, arguments, tmp_path):
    """In the fifth step of the second language, the 17th; the signal reaches no other test."""
    line = [sys.executable, TESTS / "support" / "processes" / "stop_at_step.py", 17, "SIGINT",
            *arguments(langs="en,fr")]  # fmt: skip
    interrupted = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False)
    assert interrupted.returncode == 130, interrupted.stderr
    assert "continue with --resume" in interrupted.stderr
    assert sorted(path.name for path in (tmp_path / "tuned").iterdir()) == [
        "en", "fr.checkpoints", module.REPORT_FILE]  # fmt: skip
    one_line_error(tune(langs="fr"), code=1, contains="fr.checkpoints is left of an earlier run")
    result = tune("--resume", "--json", langs="en,fr")
    assert result.code == 0, result.err
    assert [row["status"] for row in json.loads(result.out)] == ["kept", "tuned"]
    assert tune(langs="fr", out="whole").code == 0
    np.testing.assert_array_equal(vectors(tmp_path / "tuned/fr"), vectors(tmp_path / "whole/fr"))


def test_words_in_another_script(tune, folders, tmp_path, caplog):
    words = tmp_path / "words"
    words.mkdir()
    (words / "ru.txt").write_bytes((folders / "words/en.txt").read_bytes())
    result = tune("--json", words=words, langs="ru")
    assert result.code == 0
    assert "of the script Latn, but ru is written in Cyrl" in json.loads(result.out)[0]["warning"]
    assert "is it the right file?" in caplog.text


@pytest.mark.parametrize(
    ("options", "contains"),
    [
        ({"langs": "en,frnch"}, "no language 'frnch' (did you mean fr?)"),
        ({"langs": "en,EN"}, "--lang has en more than once"),
        ({"langs": ","}, "--lang names no language"),
        ({"langs": "en,zh"}, "has no zh.txt"),
        ({"langs": "et", "words": None}, "no word list for language 'et'; there are ar, bg"),
        ({"options": ["--recipes", "none.toml"]}, "none.toml: No such file"),
        ({"options": ["--data", "nowhere"]}, "pass one of --data FILE, --words LANG and"),
        ({"options": ["--data", "."]}, "--data . has no scored pairs: expected multisimlex/TAG"),
        ({"options": ["--lang", "en"]}, "--lang has en more than once"),
        ({"options": ["--top", 5]}, "--top goes with the words of wordfreq"),
        ({"options": ["--recipe", "sentence"], "words": None}, "recipe sentence needs strings"),
        ({"options": ["--workers", 2]}, "--workers goes with --engine ray"),
        ({"options": ["--engine", "ray", "--worker-gpus", 2]}, "--worker-gpus must be 0 or 1"),
        ({"words": "nowhere"}, "--words nowhere: with --lang TAG alone, a folder is expected"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_said_before_any_work(tune, options, contains, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = dict(options)
    one_line_error(tune(*options.pop("options", ()), **options), code=2, contains=contains)
    assert not (tmp_path / "tuned").exists()


def test_a_language_near_to_one_with_words(tune, tmp_path):
    (tmp_path / "gl.toml").write_text("[languages.gl]\nname = 'Galician'\nbase = 'mbert'\n")
    result = tune("--recipes", tmp_path / "gl.toml", langs="gl", words=None)
    one_line_error(result, code=2, contains="no word list for language 'gl'; the nearest that has "
                   "one is 'es'; for your own, pass --words DIR with gl.txt")  # fmt: skip


def test_not_with_torchrun(tune, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    one_line_error(tune(), code=2, contains="--lang TAG,... runs in one process")


@pytest.mark.parametrize(
    ("options", "contains"),
    [
        (["--json"], "--json and --recipes go with --lang alone"),
        (["--engine", "ray"], "--engine goes with --lang alone"),
    ],
)
def test_options_that_go_with_langs(cli, words_file, tmp_path, options, contains):
    out = tmp_path / "x"
    result = cli("tune", "--recipe", "word", "--data", words_file, "--out", out, *options)
    one_line_error(result, code=2, contains=contains)


def test_an_absent_ray_is_named(tune, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    one_line_error(tune("--engine", "ray"), code=1,
                   contains="needs the package 'ray', which is not installed")  # fmt: skip
