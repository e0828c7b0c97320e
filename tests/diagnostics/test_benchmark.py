"""The command `benchmark`: what it measures, and what it refuses."""

import json
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from mirror_rt import ConfigError, Encoder
from mirror_rt.diagnostics import benchmarking
from mirror_rt.diagnostics.benchmarking import measure, synthetic_texts
from tiers import tiers

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("family", tiers(["bert", "roberta", "xlm-roberta"], fast=["bert"]))
def test_made_up_texts_have_the_length_asked_for(tiny_bundle, family):
    encoder = Encoder.load(tiny_bundle(family))
    for tokens in (4, 32, encoder.max_length):
        texts = synthetic_texts(encoder, tokens, 20)
        lengths = [len(ids) for ids in encoder.tokenize(texts)]
        assert max(lengths) <= encoder.max_length
        assert abs(sum(lengths) / 20 - tokens) <= 1
        assert texts == synthetic_texts(encoder, tokens, 20)
    for tokens in (2, encoder.max_length + 1):
        with pytest.raises(ConfigError, match="are special tokens"):
            synthetic_texts(encoder, tokens, 1)


def test_texts_are_made_where_the_tokenizer_pads(bundle_copy):
    """To a fixed length, as that of all-MiniLM-L6-v2 does."""
    tokenizer = Tokenizer.from_file(str(bundle_copy / "tokenizer.json"))
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(bundle_copy / "tokenizer.json"))
    assert len(synthetic_texts(Encoder.load(bundle_copy, verify=False), 8, 4)) == 4


@pytest.fixture
def clock(monkeypatch):
    """A time that only calls move: each takes the first of the seconds given, or the last one."""
    clock = SimpleNamespace(now=0.0, calls=[])

    def timed(*seconds):
        def encode(texts):
            clock.calls.append(list(texts))
            clock.now += seconds[min(len(clock.calls), len(seconds)) - 1]

        return encode

    clock.timed = timed
    monkeypatch.setattr(benchmarking.time, "perf_counter", lambda: clock.now)
    return clock


def test_figures_are_those_of_the_calls(clock):
    encode = clock.timed(0.25, *[2**-8] * 94, *[2**-7] * 6)  # the first is slow, and not counted
    cell = measure(encode, ["a", "b", "c"], batch=2, tokens=[1, 2, 3], seconds=0.66)
    assert clock.calls[:3] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert cell.calls == len(clock.calls) - 1 == 100
    assert cell.tokens == pytest.approx(2, abs=1 / 100)
    assert (cell.p50_ms, cell.p95_ms, cell.p99_ms) == (1000 / 256, 1000 / 128, 1000 / 128)
    assert cell.texts_per_second == pytest.approx(200 / (94 / 256 + 6 / 128))
    assert cell.tokens_per_second == pytest.approx(cell.tokens * cell.texts_per_second)


@pytest.mark.parametrize(("seconds", "calls"), [(1.0, 1), (0.06, 3), (0.03, 3), (0.02, 5)])
def test_few_calls_tell_of_no_rare_delays(clock, seconds, calls):
    """Three long calls are timed, or as many as begin within twice the time, but one at least."""
    cell = measure(clock.timed(seconds), ["a"], batch=1, tokens=[3], seconds=0.1)
    assert (cell.calls, cell.p95_ms, cell.p99_ms) == (calls, None, None)
    assert cell.p50_ms == pytest.approx(1000 * seconds)


def test_the_benchmark_ships(cli, bundle, tmp_path):
    files = tmp_path / "b.json", tmp_path / "b.png"
    result = cli("benchmark", bundle, "--threads", 1, "--variant", "fp32", "--seconds", 0.1,
                 "--lengths", 8, 64, "--batches", 1, 4, "--json", files[0],
                 "--plot", files[1])  # fmt: skip
    assert result.code == 0, result.err
    assert files[1].read_bytes().startswith(PNG)
    assert f"{files[0]}: the figures\n{files[1]}: the plot" in result.out
    report = json.loads(files[0].read_text())
    assert (report["threads"], report["variant"], report["texts"]) == (1, "fp32", "synthetic")
    assert [(cell["texts"], round(cell["tokens"])) for cell in report["cells"]] == [
        (1, 8), (4, 8), (1, 64), (4, 64)]  # fmt: skip
    assert all(cell["texts_per_second"] > 0 for cell in report["cells"])
    assert "p95 ms" in result.out


def test_texts_of_a_file(cli, bundle, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("the river\n\nold town\n")
    result = cli("benchmark", bundle, "--texts", path, "--seconds", 0.1, "--batches", 2)
    assert result.code == 0, result.err
    path.write_text("\n")
    assert "holds no texts" in cli("benchmark", bundle, "--texts", path).err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batches", 0), "--batches must be at least 1, got 0"),
        (("--lengths", 129), "a length of 129 tokens: expected 3 .. 128"),
        (("--seconds", 0), "--seconds must be above 0"),
        (("--plot", "x.pdf"), "expected a name in .png"),
        (("--texts", "x", "--lengths", 8), "give --texts or --lengths"),
        (("--threads", 0), "threads must be in 1 .. 1024"),
        (("--batch-size", 0), "--batch-size must be at least 1"),
    ],
)
def test_refusals(cli, bundle, options, message):
    result = cli("benchmark", bundle, *options)
    assert result.code == 2
    assert message in result.err
