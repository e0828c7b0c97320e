"""`mirror-rt tune --lang ... --engine ray`: the languages are tasks, and a death loses little."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import ray
import torch

from mirror_rt.adapters.ray_cluster import ClusterOptions, run_tasks
from mirror_rt.errors import ConfigError, ProcessGroupError
from mirror_train import LanguageJob, TorchEncoder, TrainConfig, load_recipe, tune_languages
from mirror_train.languages.language_job import REPORT_FILE

WORDS = [f"{a}{b}" for a in ("river", "town", "street", "house") for b in "abcdefghij"]
RAY = ClusterOptions(engine="ray")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Of two CPUs; its workers take the functions of this module by value."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def words(tmp_path):
    folder = tmp_path / "words"
    folder.mkdir()
    for language in ("en", "fr", "ru"):
        (folder / f"{language}.txt").write_text("\n".join(language + word for word in WORDS))
    return folder


def jobs(base, words, out, *, epochs=3, **options):
    recipe = load_recipe("word").replace(batch_size=10, epochs=epochs, learning_rate=1e-3)
    return [
        LanguageJob(
            path.stem,
            TrainConfig(recipe=recipe, out=out / path.stem, model=str(base), precision="fp32",
                       show_progress_bar=False, **options),
            strings=path,
        )
        for path in sorted(words.iterdir())
    ]  # fmt: skip


def vectors(folder):
    return TorchEncoder.load(folder).encode(["the river", "a street"])


def kill_workers(name):
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(b"ray::") and name in line:
            os.kill(int(path.name), signal.SIGKILL)


def test_languages_are_those_of_one_process_and_one_that_fails_stops_none(
    cluster, base, words, tmp_path, monkeypatch
):
    (words / "fr.txt").write_bytes(b"caf\xe9\n")
    torch.set_num_threads(1)
    tune_languages([job for job in jobs(base, words, tmp_path / "one") if job.language != "fr"])
    monkeypatch.chdir(tmp_path)  # the workers run elsewhere
    told = []
    results = tune_languages(
        jobs(base, words.relative_to(tmp_path), Path("out")), cluster=RAY, on_result=told.append
    )
    assert [(one.language, one.status) for one in results] == [
        ("en", "tuned"), ("fr", "failed"), ("ru", "tuned")]  # fmt: skip
    assert "not UTF-8" in results[1].error
    assert {one.language for one in told} == {"en", "fr", "ru"}
    for language in ("en", "ru"):
        np.testing.assert_allclose(
            vectors(tmp_path / "out" / language), vectors(tmp_path / "one" / language), atol=1e-5
        )
    (words / "fr.txt").write_text("\n".join("fr" + word for word in WORDS))
    again = tune_languages(jobs(base, words, tmp_path / "out", resume=True), cluster=RAY)
    assert [one.status for one in again] == ["kept", "tuned", "kept"]
    assert again[0].after == results[0].after
    assert set(json.loads((tmp_path / "out" / REPORT_FILE).read_text())) == {"en", "fr", "ru"}


def test_a_worker_that_dies_goes_on_from_its_checkpoint(cluster, base, words, tmp_path):
    (words / "fr.txt").unlink()
    torch.set_num_threads(1)
    tune_languages(jobs(base, words, tmp_path / "one", epochs=60))
    steps = []

    def kill_once():
        while not (found := list(tmp_path.glob("out/*.checkpoints/step-*.pt"))):
            time.sleep(0.01)
        steps.extend(found)
        kill_workers(b"_run_in_worker")

    killer = Thread(target=kill_once, daemon=True)
    killer.start()
    made = tune_languages(
        jobs(base, words, tmp_path / "out", epochs=60, checkpoint_every=20), cluster=RAY
    )
    killer.join(1)
    assert steps
    assert [one.status for one in made] == ["tuned", "tuned"]
    for language in ("en", "ru"):
        np.testing.assert_allclose(
            vectors(tmp_path / "out" / language), vectors(tmp_path / "one" / language), atol=1e-4
        )


def end_or_double(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def test_a_task_whose_worker_always_dies_is_given_up(cluster):
    tried = []

    def again(number):
        tried.append(number)
        return number

    options = ClusterOptions(engine="ray", workers=2)
    made = dict(run_tasks(end_or_double, [1, 2, 3, 4], options, again=again))
    error = made.pop(3)
    assert made == {1: 2, 2: 4, 4: 8}
    assert tried == [3, 3]
    assert isinstance(error, ProcessGroupError)
    assert "its worker died 3 times" in str(error)


def test_several_cards_for_a_language_are_refused(base, words, tmp_path):
    options = ClusterOptions(engine="ray", worker_gpus=2)
    with pytest.raises(ConfigError, match="worker_gpus must be 0 or 1"):
        tune_languages(jobs(base, words, tmp_path / "out"), cluster=options)


def test_ctrl_c_writes_checkpoints_and_resume_goes_on(base, words, tmp_path):
    """By the command, with a cluster of its own."""
    line = [sys.executable, "-P", "-m", "mirror_rt.cli", "tune", "--recipe", "word", "--lang",
            "en,fr,ru", "--model", base, "--words", words, "--batch-size", "10", "--precision",
            "fp32", "--out", tmp_path / "out", "--engine", "ray", "--address", "local"]  # fmt: skip
    line = list(map(str, line))
    process = subprocess.Popen([*line, "--epochs", "2000", "--checkpoint-every", "50"],
                               cwd=tmp_path, stderr=subprocess.PIPE, text=True)  # fmt: skip
    while not (before := list(tmp_path.glob("out/*.checkpoints/step-*.pt"))):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 130, said
    assert "--resume keeps the languages that are finished" in said
    after = list(tmp_path.glob("out/*.checkpoints/step-*.pt"))
    # Written on Ctrl-C: not at a step of --checkpoint-every.
    assert before
    assert any(int(path.stem.removeprefix("step-")) % 50 for path in after), after
