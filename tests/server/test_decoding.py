"""Large bodies, which are decoded in parts: the same structs, the same refusals."""

import asyncio
import itertools
import json
import random

import msgspec
import pytest

from mirror_rt import _core
from mirror_rt.server import ServerConfig
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.http import decoding, openai, tei
from mirror_rt.server.http.client_fields import CLIENT_FIELDS

PATHS = [(openai._decode, "input"), (tei._embed, "inputs"), (tei._similarity, "inputs.sentences"),
         (tei._tokenize, "inputs")]  # fmt: skip
CHARACTERS = [
    "a",
    "é",
    "人",
    "🙂",
    "\\n",
    '\\"',
    "\\\\",
    "\\u00e9",
    "\\ud83d\\ude00",
    ",",
    "[",
    "}",
    " ",
]
BAD = ["\\ud800", "\\u12", "\\x", '"', "\x01", b"\xff", b"\xe4\xba", "]", ",,", "}", "1.5", "null",
       "{}", "[", "true", "-1", '"a" 1']  # fmt: skip


def text(rng):
    return '"' + "".join(rng.choices(CHARACTERS, k=rng.choice([1, 3, 40]))) + '"'


def ids(rng):
    return "[" + ",".join(str(rng.randrange(30000)) for _ in range(rng.randrange(9))) + "]"


def value(rng):
    if rng.random() < 0.2:
        return text(rng)
    blank = " " * rng.choice([0, 0, 0, 30])
    one = rng.choice([lambda: text(rng), lambda: text(rng), lambda: ids(rng), lambda: "7"])
    return "[" + ",".join(blank + one() for _ in range(rng.randrange(30))) + blank + "]"


def bodies(rng, field):
    inner = value(rng)
    if "." in field:
        inner = f'{{"source_sentence": {text(rng)}, "sentences": {inner}}}'
    name = field.split(".")[0]
    extra = rng.choice(["", "", '"lang":"fr",', '"model" : "x" , ', '"no": 1,'])
    body = f'{{{extra}"{name}": {inner} }}'.encode()
    if rng.random() < 0.4:  # damage it
        at = rng.randrange(len(body))
        bad = rng.choice(BAD)
        bad = bad if isinstance(bad, bytes) else bad.encode()
        body = body[:at] + bad + body[at + rng.randrange(3) :]
    return body


def outcome(decode):
    try:
        return msgspec.to_builtins(decode())
    except msgspec.ValidationError as error:
        return "invalid", str(error).split(" - at")[-1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "malformed"
    except Problem as problem:
        return problem.status


MANY = ServerConfig(max_items=100_000, max_waiting_texts=100_000)


@pytest.mark.parametrize(("decode", "field"), PATHS, ids=[field for _, field in PATHS])
def test_parts_are_decoded_as_the_whole(decode, field, monkeypatch):
    """Any body of some dozens of bytes, in parts of a few: what msgspec makes of it at once."""
    monkeypatch.setattr(decoding, "_SMALL", 60)
    monkeypatch.setattr(decoding, "_LARGEST_ITEM", 10_000)
    rng, seen = random.Random(0), {"same": 0, "refused": 0, "cut": 0}
    for _ in range(8000):
        body = bodies(rng, field)
        monkeypatch.setattr(decoding, "_PART", part := rng.choice([20, 30, 60, 100]))
        if _core.find_large_json_value(body, part)[1] == 0:
            continue
        found = outcome(lambda: decode._decode_large(body, MANY))  # noqa: B023
        whole = outcome(lambda: decode._decoders["refuse"].decode(body))  # noqa: B023
        if found == 413:
            seen["refused"] += 1
            continue
        malformed = "malformed" in (found, whole) and not isinstance(found, dict)
        # Of two faults another one may be found first.
        assert found == whole or (malformed and not isinstance(whole, dict)), (body, found, whole)
        seen["same"] += isinstance(whole, dict)
        seen["cut"] += isinstance(whole, dict) and bool(_core.find_large_json_value(body, part)[2])
    assert seen["cut"] > 300, seen


def test_cuts(monkeypatch):
    """At least so far apart, and no further where there is something to cut at."""
    body = json.dumps(
        {"inputs": ["word " * 50] * 100 + [[5] * 100] * 10}, ensure_ascii=False
    ).encode()
    start, stop, cuts = _core.find_large_json_value(body, 400)
    assert body[start:stop] == body[len('{"inputs": ') : -1]
    positions = [start + 1, *(at for at, _ in cuts)]
    assert all(400 <= b - a <= 900 for a, b in itertools.pairwise(positions))
    assert {body[at : at + 1] for at, in_text in cuts if not in_text} == {b","}
    assert _core.find_large_json_value(body, len(body)) == (0, 0, [])
    for cut_off in (b"", b'"', b'"\\', b'"\\u', b"[", b'["', b'["\\ud83d', b"]", b"}]"):
        assert _core.find_large_json_value(cut_off, 1)[1] <= len(cut_off)
    with pytest.raises(ValueError, match="size must be at least 1"):
        _core.find_large_json_value(b"", 0)


REFUSED = {
    "many texts": b'{"inputs": [' + b'"",' * 200_000 + b'""]}',
    "many lists": b'{"inputs": [' + b"[]," * 200_000 + b"[]]}",
    "many numbers": b'{"inputs": [' + b"5," * 200_000 + b"5]}",
    "one long list": b'{"inputs": [[' + b"5," * 1_000_000 + b"5]]}",
    "white space": b'{"inputs": "a"' + b" " * 200_000 + b"}",
    "the field twice": b'{"inputs": "%s", "inputs": "%s"}' % ((b"a" * 200_000,) * 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_large_bodies_of_no_use(name):
    with pytest.raises(Problem, match="413"):
        asyncio.run(tei._embed(REFUSED[name], ServerConfig()))


def test_other_fields_that_are_large():
    """One with a limit is refused by that, one without as too large."""
    large = b"a" * 200_000
    with pytest.raises(msgspec.ValidationError, match=r"length <= 256 - at `\$\.lang`"):
        asyncio.run(tei._embed(b'{"inputs": "a", "lang": "%s"}' % large, ServerConfig()))
    with pytest.raises(Problem, match="413"):
        asyncio.run(openai._decode(b'{"input": "a", "user": "%s"}' % large, ServerConfig()))


def test_an_error_in_a_part_names_the_field():
    body = b'{"inputs": [' + b'"a",' * 50_000 + b"1]}"
    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$\.inputs\["
    ):
        asyncio.run(tei._tokenize(body, MANY))


@pytest.mark.parametrize(
    "one", [one for one in CLIENT_FIELDS if "openai" in one.requests and one.values is not None],
    ids=lambda one: one.name,
)  # fmt: skip
def test_fields_that_change_vectors_elsewhere_are_never_ignored(one):
    ignoring = ServerConfig(unknown_fields="ignore")
    for value in (-2, "int8", ["int8"]):
        body = json.dumps({"input": "a", one.name: value}).encode()
        for config in (ServerConfig(), ignoring):
            with pytest.raises((msgspec.ValidationError, Problem), match=one.name):
                asyncio.run(openai._decode(body, config))
    for value in (None, *one.values):
        body = json.dumps({"input": "a", one.name: value}).encode()
        request = asyncio.run(openai._decode(body, ignoring))
        expected = None if value is None or one.sets is None else one.values[value]
        assert (request.input, getattr(request, one.sets or "prompt")) == ("a", expected)


def test_a_field_and_what_it_stands_for_must_agree():
    body = {"input": "a", "output_dimension": 8, "dimensions": 8}
    assert asyncio.run(openai._decode(json.dumps(body).encode(), ServerConfig())).dimensions == 8
    with pytest.raises(Problem, match="output_dimension: `dimensions` says something else"):
        asyncio.run(openai._decode(json.dumps(body | {"dimensions": 4}).encode(), ServerConfig()))


@pytest.mark.parametrize("texts", [["a"], ["a" * 1000] * 200])
def test_unknown_fields_are_refused_or_ignored(texts):
    """In a small body, which is decoded at once, and in one that is decoded in parts."""
    body = json.dumps({"input": texts, "extra_body": {"x": 1}, "model": "m"}).encode()
    with pytest.raises(msgspec.ValidationError, match="unknown field `extra_body`"):
        asyncio.run(openai._decode(body, ServerConfig()))
    request = asyncio.run(openai._decode(body, ServerConfig(unknown_fields="ignore")))
    assert (request.input, request.model) == (texts, "m")
    with pytest.raises(msgspec.ValidationError, match="Expected"):  # other faults stay faults
        asyncio.run(openai._decode(b'{"x": 1, "input": 1}', ServerConfig(unknown_fields="ignore")))
