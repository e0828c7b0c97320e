"""Every option of loading and of encoding, at every place that takes them.

A field that is added to `LoadOptions` or `EncodeOptions` must come to each of these places;
tests/pipeline/test_options.py is about keywords and the methods that take them.
"""

import contextlib
import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from given_options import GIVEN
from mirror_rt import Client, Encoder
from mirror_rt.adapters.lazy import LazyEncoder
from mirror_rt.bulk import BulkConfig, DatasetConfig, encode_file
from mirror_rt.cli import encode, main
from mirror_rt.cli.benchmark import Benchmark
from mirror_rt.cli.doctor import Doctor
from mirror_rt.cli.encode import Encode
from mirror_rt.cli.evaluate import Evaluate
from mirror_rt.cli.evaluate_file import Geometry, Similarity
from mirror_rt.cli.parsing.invocation import add_options
from mirror_rt.cli.parsing.options import options_of
from mirror_rt.cli.parsing.parser import Parser
from mirror_rt.cli.predict import Predict
from mirror_rt.cli.serve import Serve
from mirror_rt.client.request import RemoteOptions
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions
from mirror_rt.pipeline.results import RowCounts
from mirror_rt.server import ServerConfig, load_models
from server_process import make_pack

LOAD = {field.name for field in fields(LoadOptions)}
ENCODE = {field.name for field in fields(EncodeOptions)}

GIVEN_LOAD = LoadOptions(**{name: GIVEN[name][0] for name in LOAD & set(GIVEN)})

# The options of encoding that a command has; each has all of loading. Evaluations encode as the
# paper does, so that figures can be compared, and `doctor` encodes texts of its own.
OF_ENCODING = {
    Encode: ENCODE,
    Serve: {"on_too_long"},  # the default of a request, which brings all others
    Benchmark: {"batch_size", "normalize_embeddings", "truncate_dim", "precision"},
    # The heads were trained on the model's own vectors.
    Predict: {"batch_size", "on_too_long", "errors"},
    Evaluate: set(), Similarity: set(), Geometry: set(), Doctor: set(),
}  # fmt: skip


class Seen(Exception):  # noqa: N818 - it is no error
    """Ends a command where what it was given has arrived."""


def flags(names):
    for option in [*options_of(LoadOptions), *options_of(EncodeOptions)]:
        if option.field in names:
            text = GIVEN[option.field][1]
            if text is None or text.startswith("--no-"):
                yield text or option.flag
            else:
                yield f"{option.flag}={text}"


def same(one, other):
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name))
               for field in fields(one))  # fmt: skip


def test_this_file_knows_every_field():
    assert set(GIVEN) == LOAD | ENCODE
    for option in (*options_of(LoadOptions), *options_of(EncodeOptions)):
        assert not np.array_equal(GIVEN[option.field][0], option.default), option.field
        assert option.about.text, f"{option.field} is not in the docstring"


@pytest.mark.parametrize("command", OF_ENCODING, ids=lambda command: command.__name__)
def test_commands_take_every_option_and_none_of_their_own_beside_it(command):
    parser = Parser()
    add_options(parser, command)
    every = [*options_of(LoadOptions), *options_of(EncodeOptions)]
    taken = {option.field for option in every if option.flag in parser._option_string_actions}
    assert taken == LOAD | OF_ENCODING[command]
    for group in parser._action_groups:
        if group.title in ("vectors", "model"):
            added = {action.dest for action in group._group_actions}
            assert added <= {"help", *(option.name for option in every)}


@pytest.fixture
def loaded(monkeypatch):
    """What `Encoder.load` was asked for, which it refuses."""
    asked = []

    def find(cls, path_or_name, keywords, **how):
        asked.append(LoadOptions(**keywords))
        raise Seen

    monkeypatch.setattr(Encoder, "_find", classmethod(find))
    return asked


@pytest.mark.parametrize(
    "line",
    [
        ["benchmark", "m"],
        ["evaluate", "similarity", "--model", "m", "--pairs", "pairs.tsv"],
        ["evaluate", "geometry", "--model", "m", "--texts", "texts.txt"],
        ["predict", "m", "--input", "x"],
        ["doctor", "--model", "m"],
    ],
    ids=lambda line: " ".join(line[:2]),
)
def test_commands_load_as_they_were_told(line, loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("text1\ttext2\tscore\na\tb\t1\nc\td\t2\n")
    Path("texts.txt").write_text("a\nb\n")
    monkeypatch.setattr("mirror_rt.cli.common.declared_format", lambda _: "mirror_rt bundle")
    with pytest.raises(Seen):
        main([*line, *flags(LOAD)])
    assert loaded == [GIVEN_LOAD]


def test_encode_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.save("ranges.npy", GIVEN["ranges"][0])
    configs = []

    def keep(config):
        configs.append(config)
        raise Seen

    monkeypatch.setattr(encode, "encode_file", keep)
    line = ("encode --model m --input a.txt --output b.npy --window 7 --processes 2 --resume "
            "--overwrite --text-field t --id-field i")  # fmt: skip
    with pytest.raises(Seen):
        main([*line.split(), *flags(LOAD | ENCODE)])
    (config,) = configs
    assert config.load == GIVEN_LOAD
    assert same(config.options, EncodeOptions(**{name: GIVEN[name][0] for name in ENCODE}))
    plain = BulkConfig("m", "a.txt", "b.npy", "t", "i", 2, resume=True, overwrite=True, window=7,
                       show_progress_bar=True)  # fmt: skip
    assert replace(config, load=plain.load, options=plain.options) == plain


@pytest.fixture
def served(monkeypatch):
    """What a server was asked to serve."""
    served = []
    monkeypatch.setattr("mirror_rt.server.process.serving.serve", lambda *a: served.append(a))
    monkeypatch.setattr("mirror_rt.server.monitoring.logs.configure_logging", lambda **_: None)
    return served


def test_serve_command(served):
    assert main(["serve", "m", "--port", "0", *flags(LOAD)]) == 0
    ((source, config, listen),) = served
    assert (source, config, listen.port) == (("m",), ServerConfig(load=GIVEN_LOAD), 0)
    assert pickle.loads(pickle.dumps(config)) == config  # as workers get it


def test_serve_takes_its_options_from_everywhere(served, monkeypatch, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text(
        'source = "of-the-file"\nport = 1\nworkers = 2\nlang = ["fr", "de"]\nmax-wait = 2\n'
        'api_keys = ["k"]\nthreads = 4\n[provider-option]\ngpu_mem_limit = 1\n'
    )
    for name, value in (("CONFIG", str(path)), ("PORT", "2"), ("DEVICES", "0,1")):
        monkeypatch.setenv(f"MIRROR_RT_SERVE_{name}", value)
    assert main(["serve", "--workers", "1"]) == 0
    ((source, config, listen),) = served
    assert (source, listen.port, listen.workers) == (("of-the-file",), 2, 1)
    load = LoadOptions(threads=4, devices=[0, 1], provider_options={"gpu_mem_limit": 1})
    assert config == ServerConfig(languages=("fr", "de"), max_wait=2.0, api_keys=("k",), load=load)


def test_server_config(bundle, loaded, tmp_path):
    """A bundle, and each of a pack, is loaded with all options; the folder is at hand by then."""
    load = replace(GIVEN_LOAD, variant=None, revision=None)
    pack = make_pack(tmp_path / "pack", {"fr": bundle}, "fr")
    for source in (bundle, pack):
        with pytest.raises(Seen):
            load_models(source, ServerConfig(load=load))
    assert loaded == 2 * [replace(load, offline=False)]


def test_options_of_bulk_jobs_may_be_mappings():
    for kind in (BulkConfig, DatasetConfig):
        job = kind("m", "a", "b", load={"variant": "int8"}, options={"batch_size": 4})
        assert job.load == LoadOptions(variant="int8")
        assert job.options == EncodeOptions(batch_size=4)
        with pytest.raises(TypeError, match="nonsense"):
            kind("m", "a", "b", load={"nonsense": 1})


def test_bulk_workers(bundle, tmp_path, monkeypatch):
    """They get both whole, and a job is another one where a vector could be another."""
    specs = []

    def keep(spec, *_, **__):
        specs.append(spec)
        raise Seen
        yield

    monkeypatch.setattr("mirror_rt.bulk.run.encode_windows", keep)
    monkeypatch.setattr("mirror_rt.bulk.run.open_job", plans := Plans())
    (tmp_path / "a.txt").write_text("a\n")
    load = replace(GIVEN_LOAD, variant=None, revision=None)
    options = EncodeOptions(**{name: GIVEN[name][0] for name in ENCODE})
    config = BulkConfig(
        str(bundle), str(tmp_path / "a.txt"), str(tmp_path / "b.npy"), load=load, options=options
    )
    for resumable in (config, replace(config, output="-")):
        with pytest.raises(Seen):
            encode_file(resumable)
    assert [spec.load for spec in specs] == [load, load]
    assert all(same(spec.options, options) for spec in specs)
    no_change = {"revision", "offline", "verify", "allow_fallback", "threads", "spinning",
                 "devices", "errors", "cache", "cache_bytes"}  # fmt: skip
    assert (LOAD | ENCODE) - set(plans.plan) == no_change
    assert plans.plan["ranges"] == GIVEN["ranges"][0].tolist()


class Plans:
    """Stands for `open_job`, and keeps the plan."""

    @contextlib.contextmanager
    def __call__(self, output, plan, **_):
        self.plan, self.parts, self.is_complete = plan.values, 0, False
        self.folder, self.counts = output, RowCounts()
        yield self


def test_client():
    """It takes what the protocol can carry, and names the reason for the rest."""
    of_the_server = {"batch_size", "errors"}
    assert ENCODE - set(RemoteOptions.__annotations__) == of_the_server
    with Client() as client:
        for name in of_the_server:
            with pytest.raises(ConfigError, match=f"^{name}: .*server"):
                client.encode("a", **{name: GIVEN[name][0]})


def test_adapters(loaded):
    """All of loading and of encoding, by name."""
    load = {name: GIVEN[name][0] for name in LOAD}
    lazy = LazyEncoder("m", load, {name: GIVEN[name][0] for name in ENCODE})
    with pytest.raises(Seen):
        lazy.load()
    assert loaded == [GIVEN_LOAD]
    for keywords in ({"model_kwargs": {"x": 1}}, {"encode_kwargs": {"x": 1}}):
        with pytest.raises(ConfigError, match="takes no argument 'x'"):
            LazyEncoder("m", **keywords)
