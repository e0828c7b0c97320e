import io
import json
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from command_errors import one_line_error
from mirror_rt import Encoder
from rounding import RUN_ERROR
from server_process import until


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the river\nthe old town\nЕё дом\n", encoding="utf-8")
    return path


def test_the_main_job(cli, tiny_bert, words_file, texts_file, tmp_path):
    tuned, bundle, vectors = tmp_path / "tuned", tmp_path / "bundle", tmp_path / "v.npy"
    result = cli("tune", "--model", tiny_bert, "--recipe", "word", "--data", words_file,
                 "--out", tuned, "--pooling", "mean", "--temperature", 0.1)  # fmt: skip
    assert result.code == 0, result.err
    assert "400 strings (0 blank and 0 repeated lines dropped)" in result.out
    assert json.loads((tuned / "mirror.json").read_text())["recipe"]["temperature"] == 0.1
    result = cli("export", tuned, "--out", bundle)
    assert result.code == 0, result.err
    assert "differs from PyTorch by" in result.out
    result = cli("encode", "--model", bundle, "--input", texts_file, "--output", vectors)
    assert result.code == 0, result.err
    expected = Encoder.load(bundle).encode(texts_file.read_text("utf-8").splitlines())
    np.testing.assert_array_equal(np.load(vectors), expected)
    assert "mirror_rt encoder" in cli("info", tuned).out
    as_it_is = cli(
        "encode", "--model", tuned, "--input", texts_file, "--output", tmp_path / "w.npy"
    )
    assert as_it_is.code == 0, as_it_is.err
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), expected, atol=RUN_ERROR)


def test_standard_input_and_output(cli, bundle, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the river\na\n")))
    result = cli("encode", "--model", bundle, "--input", "-", "--output", "-", "--quiet")
    assert result.code == 0, result.err
    records = [json.loads(line) for line in result.out.splitlines()]
    got = np.array([record["embedding"] for record in records], dtype=np.float32)
    np.testing.assert_array_equal(got, Encoder.load(bundle).encode(["the river", "a"]))
    assert result.err == ""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ctrl_c_of_a_job_that_a_script_put_in_the_background(bundle):
    words = f"-m mirror_rt.cli encode {bundle} --input - --output -".split()
    ignoring = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # as a shell does
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    line = [sys.executable, *words]
    with subprocess.Popen(line, **pipes, text=True, preexec_fn=ignoring) as job:
        status = Path(f"/proc/{job.pid}/status")

        def ignores():
            ignored = re.search(r"SigIgn:\s*(\w+)", status.read_text())[1]
            return int(ignored, 16) & 1 << (signal.SIGINT - 1)

        until(lambda: not ignores())
        for _ in range(12):  # again, as people do: a callback of Python can swallow an interrupt
            job.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                job.wait(10)
                break
        # A shell says 130 of both: Python ends by a signal that comes in an `exec` of an import.
        assert job.poll() in (130, -signal.SIGINT), job.stderr.read()


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_file(bundle, tmp_path):
    # VmHWM, not ru_maxrss: the latter starts at the size of the process that forked.
    program = (
        "import re, sys; from mirror_rt.cli import main; code = main(sys.argv[1:]); "
        "print(code, re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    peaks = []
    for lines in (20_000, 200_000):
        path = tmp_path / f"{lines}.txt"
        path.write_text("".join(f"river {i}\n" for i in range(lines)))
        arguments = ["encode", "--model", bundle, "--input", path,
                     "--output", tmp_path / f"{lines}.npy", "--quiet"]  # fmt: skip
        done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)],
                              capture_output=True, text=True, check=True)  # fmt: skip
        code, peak = map(int, done.stdout.split())
        assert code == 0
        peaks.append(peak)
    assert np.load(tmp_path / "200000.npy", mmap_mode="r").shape == (200_000, 32)
    # Held whole, the vectors alone of 180,000 more rows would take twice that.
    assert peaks[1] - peaks[0] < 180_000 * 32 * 4 / 1024 / 2, f"{peaks} KiB"


def test_info(cli, bundle, bundle_copy):
    result = cli("info", bundle)
    assert result.code == 0
    assert "32 dimensions, pooling mean" in result.out
    assert "every SHA-256 verified" in result.out
    values = json.loads(cli("info", bundle, "--json").out)
    assert values["verified"] is True
    assert values["dimension"] == 32
    (bundle_copy / "config.json").write_text("{}")
    one_line_error(cli("info", bundle_copy), code=1, contains="config.json has 2 bytes")


def test_info_shows_prompts_and_normalisation(cli, bundle_copy):
    shown = cli("info", bundle_copy).out
    assert "pooling mean, unit length" in shown
    assert re.search(r"^prompts +none$", shown, re.MULTILINE)
    path = bundle_copy / "mirror.json"
    changes = {
        "normalize": False,
        "prompts": {"query": "query: ", "passage": "des passages : «"},
        "default_prompt_name": "query",
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    shown = cli("info", bundle_copy).out
    assert "as pooled (normalize: false)" in shown
    assert 'query "query: ", passage "des passages : «"; default: query' in shown


def test_evaluate(cli, bundle, tiny_bert, words_file, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    rows = [("river", "rivers", 5), ("old", "new", 2), ("a", "town", 0), ("x", "y", 1)]
    pairs.write_text("text1\ttext2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in rows))
    scores = []
    for model in (bundle, tiny_bert):
        result = cli("evaluate", "similarity", "--model", model, "--pairs", pairs, "--json")
        assert result.code == 0, result.err
        scores.append(json.loads(result.out))
    assert scores[0]["spearman"] == pytest.approx(scores[1]["spearman"])
    assert scores[0]["n"] == 4
    result = cli("evaluate", "geometry", "--model", bundle, "--texts", words_file)
    for name in ("isotropy score", "mean vector norm", "alignment", "uniformity", "mean cosine"):
        assert name in result.out
    for name in ("similarity", "geometry"):
        assert cli("evaluate", name, "--help").code == 0


def test_one_pair_has_no_rank_correlation(cli, tmp_path):
    """The file is named, before a model is loaded."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text1\ttext2\tscore\nriver\tstream\t4\n")
    result = cli("evaluate", "similarity", "--model", tmp_path / "absent", "--pairs", pairs)
    one_line_error(result, code=1, contains=f"{pairs} has 1 pair, and Spearman's rho needs at")


TUNE = ("tune", "--recipe", "word")


@pytest.mark.parametrize(
    ("content", "options", "code", "contains"),
    [
        (None, (), 1, "no such file"),
        (b"\x7fELF\x02\x01\x01\0\0\0\n", (), 1, "a NUL byte; this is not a text file"),
        (b"one\n", (), 1, "give at least 2"),
        (b"a\nb\nc\n", ("--batch-size", 1), 2, "--batch-size must be at least 2"),
        (b"a\nb\nc\n", ("--batch-size", 2, "--temperature", 0), 2, "--temperature must be greater"),
        (b"a\nb\nc\n", ("--batch-size", 2, "--device", "tpu"), 2, "--device must be"),
    ],
)
def test_bad_training_data(cli, tiny_bert, tmp_path, content, options, code, contains):
    path = tmp_path / "data.txt"
    if content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    result = cli(*TUNE, "--model", tiny_bert, "--data", path, "--out", tmp_path / "out", *options)
    one_line_error(result, code=code, contains=contains)
    assert sorted(tmp_path.iterdir()) == before


def test_options_of_the_other_source_are_refused(cli, words_file, tmp_path):
    out = ("--out", tmp_path / "out")
    result = cli(*TUNE, "--data", words_file, "--top", 5, *out)
    one_line_error(result, code=2, contains="--top goes with --words")
    result = cli(*TUNE, "--words", "en", "--lang", "en", *out)
    one_line_error(result, code=2, contains="--words en: with --lang TAG alone, a folder is")
    result = cli(*TUNE, "--data", words_file, "--lang", "en,fr", *out)
    one_line_error(result, code=2, contains="has one language")


def test_existing_outputs(cli, tiny_bert, bundle, words_file, texts_file, tmp_path):
    tuned = cli(*TUNE, "--model", tiny_bert, "--data", words_file, "--out", bundle)
    one_line_error(
        tuned, code=1, contains="already exists: choose another output, or pass --overwrite"
    )
    one_line_error(cli("export", tiny_bert, "--out", bundle), code=1, contains="already exists")
    out = tmp_path / "v.npy"
    out.write_bytes(b"precious")
    options = ("encode", "--model", bundle, "--input", texts_file, "--output", out)
    one_line_error(cli(*options), code=1, contains="already exists")
    assert out.read_bytes() == b"precious"
    assert cli(*options, "--overwrite").code == 0


def test_a_reader_that_leaves_early(bundle, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("river\n" * 30_000)
    words = [sys.executable, "-m", "mirror_rt.cli", "encode", "--model", bundle, "--input", path,
             "--output", "-"]  # fmt: skip
    line = f"{shlex.join(map(str, words))} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_version(cli):
    from mirror_rt import __version__

    assert cli("--version").out.strip() == f"mirror-rt {__version__}"
