"""Every surface takes every option: the fields of `LoadOptions` and `EncodeOptions` against each.

A field that is added to one place alone fails here.
"""

import asyncio
import inspect
import typing
from dataclasses import fields

import pytest

from given_options import GIVEN
from mirror_rt import ConfigError, Encoder, LanguagePack, Scheduler
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.pipeline.pipeline import Pipeline

LOAD_FIELDS = [field.name for field in fields(LoadOptions)]
ENCODE_FIELDS = [field.name for field in fields(EncodeOptions)]
LOAD, ENCODE = ({name: GIVEN[name][0] for name in names} for names in (LOAD_FIELDS, ENCODE_FIELDS))


class Asked(Exception):  # noqa: N818  # no error: it carries something
    """Carries the options that have arrived."""


@pytest.mark.parametrize(
    ("options", "keywords"), [(LoadOptions, LoadKeywords), (EncodeOptions, EncodeKeywords)]
)
def test_keywords_are_those_of_the_fields(options, keywords):
    assert typing.get_type_hints(keywords) == typing.get_type_hints(options)
    assert list(keywords.__annotations__) == [field.name for field in fields(options)]
    assert not keywords.__required_keys__


@pytest.fixture
def options_seen(monkeypatch):
    """The `LoadOptions` that an encoder or a pack is made with, instead of either."""

    def refuse(self, *arguments, options=None, **_):
        raise Asked(*(one for one in (options, *arguments) if isinstance(one, LoadOptions)))

    monkeypatch.setattr(Encoder, "__init__", refuse)
    monkeypatch.setattr(LanguagePack, "__init__", refuse)
    monkeypatch.setattr(LoadOptions, "find", lambda _, path: path)


@pytest.mark.parametrize("kind", [Encoder, LanguagePack])
def test_load_passes_every_option(options_seen, monkeypatch, bundle, kind):
    monkeypatch.setattr("mirror_rt.languages.language_pack.PackIndex.read", lambda path: None)
    monkeypatch.setattr("mirror_rt.languages.language_pack.Router", lambda *_: None)
    with pytest.raises(Asked) as asked:
        kind.load(bundle, **LOAD)
    assert asked.value.args == (LoadOptions(**LOAD),)
    assert typing.get_type_hints(kind.load)["keywords"] == typing.Unpack[LoadKeywords]


def test_what_loads_the_same_again_names_every_option(bundle):
    with Encoder.load(bundle, threads=2, spinning="off") as encoder:
        assert list(encoder.load_options) == LOAD_FIELDS
        assert LoadOptions(**encoder.load_options) == encoder.options


@pytest.fixture(scope="module")
def encoder(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def scheduler(encoder):
    with Scheduler(encoder) as scheduler:
        yield scheduler


@pytest.fixture
def plan_refused(monkeypatch):
    """Options that reach the pipeline come back as `Asked`."""

    def refuse(self, **options):
        raise Asked(options)

    monkeypatch.setattr(Pipeline, "plan", refuse)


def drained(result):
    """Run a coroutine, or draw from an iterator."""
    if inspect.isawaitable(result):
        return asyncio.run(result)
    return list(result) if inspect.isgenerator(result) else result


@pytest.mark.parametrize(
    "method",
    ["encode", "encode_with_info", "encode_query", "encode_document", "encode_iter",
     "encode_tokens", "aencode", "aencode_query", "aencode_document"],
)  # fmt: skip
def test_every_method_passes_every_option(encoder, plan_refused, method):
    with pytest.raises(Asked) as asked:
        drained(getattr(encoder, method)(["a"], **ENCODE))
    (given,) = asked.value.args
    assert all(given[name] is value for name, value in ENCODE.items())


@pytest.mark.parametrize("method", ["submit", "encode", "encode_with_info", "aencode"])
def test_a_scheduler_passes_every_option_but_one(scheduler, plan_refused, method):
    call = getattr(scheduler, method)
    with pytest.raises(ConfigError, match="batch_size: the batches of a Scheduler"):
        drained(call(["a"], batch_size=5))
    options = {name: value for name, value in ENCODE.items() if name != "batch_size"}
    with pytest.raises(Asked) as asked:
        drained(call(["a"], **options))
    (given,) = asked.value.args
    assert all(given[name] is value for name, value in options.items())


def test_plans_of_equal_values_of_other_types_are_not_mixed_up(encoder):
    """They are kept from call to call."""
    assert encoder.encode("a", truncate_dim=8).shape == (8,)
    with pytest.raises(ConfigError, match=r"truncate_dim must be an integer, got 8\.0"):
        encoder.encode("a", truncate_dim=8.0)
    with pytest.raises(ConfigError, match="precision must be one of"):
        encoder.encode("a", precision=["int8"])
    with pytest.raises(TypeError, match="unknown"):
        encoder.encode_with_info("a", unknown=1)
