"""Options of a command out of the fields of a dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from mirror_rt.cli.parsing.invocation import add_options
from mirror_rt.cli.parsing.options import (
    Given,
    Group,
    Help,
    build,
    from_arguments,
    from_environment,
    from_file,
    options_of,
    unknown_variables,
)
from mirror_rt.cli.parsing.parser import Parser
from mirror_rt.errors import ConfigError
from mirror_rt.inference.devices import Devices
from mirror_rt.inference.providers import Providers


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
        providers: where to run.
        devices: which cards; by default the first.
        provider_options: of the provider.
    """

    providers: Providers = "auto"
    devices: Devices = None
    provider_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """What a command does.

    Attributes:
        size: how much, at
            most 90 %.
        wait: seconds.
        path, other: files.
        level: how `loud`.
        names: of some.
        on: whether much; by default as much as is usual.
        quick: soon.
        safe: with care.
        array: numbers.

    Raises:
        ConfigError: never.
    """

    size: int = 3
    wait: float = 1.0
    path: Path | None = None
    other: str | None = None
    level: Literal["low", "high"] = "low"
    names: tuple[str, ...] = ()
    on: bool | None = None
    quick: bool = False
    safe: bool = True
    array: npt.ArrayLike | None = None
    part: Part = Part()


@pytest.fixture
def parse():
    parser = Parser()
    add_options(parser, Config)
    add_options(parser, Part)

    def parse(*arguments, environment=None, file=None):
        sources = [
            from_arguments(parser.parse_args(list(map(str, arguments)))),
            from_environment(environment or {}, "T_"),
        ]
        if file is not None:
            sources.append(from_file(file, Config, Part))
        return build(Config, *sources)

    parse.help = parser.format_help
    return parse


def test_variables_that_set_no_option():
    environment = {"T_SIZE": "1", "T_SIEZ": "1", "T_NOTHING_ALIKE": "1", "HOME": "/"}
    found = list(unknown_variables(environment, "T_", Config, Part))
    assert found == ["T_SIEZ; did you mean T_SIZE?", "T_NOTHING_ALIKE"]


def test_help_is_that_of_the_docstring(parse):
    said = {option.field: option.about.text for option in options_of(Config)}
    assert said["size"] == "how much, at most 90 %"
    assert said["path"] == said["other"] == "files"
    assert "part" not in said
    text = " ".join(parse.help().split())
    for line in (
        "--size N how much, at most 90 % (default 3)",
        "--wait SECONDS seconds (default 1)",
        "--level {low,high} how loud (default low)",
        "--names NAMES of some (again for more)",
        "--on, --no-on whether much; by default as much as is usual",
        "--devices {all,N[,N]} which cards; by default the first",
        "--provider-option NAME=VALUE",
        "--safe, --no-safe with care",
    ):
        assert line in text
    assert "--no-quick" not in text


def test_flags(parse, tmp_path):
    assert parse() == Config()
    np.save(tmp_path / "a.npy", np.eye(2))
    made = parse(
        "--size", 5, "--wait", "2.5", "--path", "x", "--level", "high", "--names", "a", "--names",
        "b,c", "--no-on", "--quick", "--no-safe", "--devices", "0,2", "--array", tmp_path / "a.npy",
        "--provider-option", "a=1", "--provider-option", "b=input_ids:1x1,mask:1x1",
        "--provider-option", "c=true", "--provider-option", "d=0.5", "--provider-option", "e=",
    )  # fmt: skip
    options = {"a": 1, "b": "input_ids:1x1,mask:1x1", "c": True, "d": 0.5, "e": ""}
    assert made.part == Part(devices=[0, 2], provider_options=options)
    assert (made.size, made.wait, made.path, made.level) == (5, 2.5, Path("x"), "high")
    assert (made.names, made.on, made.quick, made.safe) == (("a", "b,c"), False, True, False)
    np.testing.assert_array_equal(made.array, np.eye(2))
    assert parse("--devices", "all").part.devices == "all"
    assert parse("--providers", "cuda").part.providers == "cuda"
    names = "CUDAExecutionProvider,CPUExecutionProvider"
    assert parse("--providers", names).part.providers == names.split(",")


def test_precedence(parse, tmp_path):
    """Flag, then environment, then file, then default."""
    file = tmp_path / "c.toml"
    file.write_text(
        'size = 7\nwait = 2\nnames = ["x", "y"]\nquick = true\nlevel = "high"\nsafe = false\n'
        'devices = [1]\nproviders = "cuda"\nprovider-option = {a = 1, b = "c"}\n'
    )
    made = parse(file=file)
    assert (made.size, made.wait, made.names, made.quick) == (7, 2.0, ("x", "y"), True)
    assert isinstance(made.wait, float)
    assert made.part == Part("cuda", [1], {"a": 1, "b": "c"})
    variables = {
        "T_SIZE": "8", "T_NAMES": "p, q", "T_QUICK": "no", "T_LEVEL": "low", "T_DEVICES": "all",
        "T_PROVIDER_OPTION": "a=2,b=x:1,y:2", "T_UNKNOWN": "left alone",
    }  # fmt: skip
    made = parse(file=file, environment=variables)
    assert (made.size, made.names, made.quick, made.level) == (8, ("p", "q"), False, "low")
    assert made.part == Part("cuda", "all", {"a": 2, "b": "x:1,y:2"})
    assert made.safe is False
    arguments = ("--size", 9, "--quick", "--safe", "--names", "f", "--providers", "cpu")
    made = parse(*arguments, file=file, environment=variables)
    assert (made.size, made.quick, made.safe, made.names) == (9, True, True, ("f",))
    assert made.part.providers == "cpu"
    assert parse("--no-quick", file=file).quick is False


@pytest.mark.parametrize(
    ("name", "text", "toml", "expected"),
    [
        ("size", "many", '"many"', "an integer"),
        ("size", "1.5", "1.5", "an integer"),
        ("size", "true", "true", "an integer"),
        ("wait", "long", "[1]", "a number"),
        ("level", "loud", '"loud"', "one of low, high"),
        ("level", "", "3", "one of low, high"),
        ("names", None, "3", "text, or several"),
        ("other", None, "3", "text"),
        ("quick", "maybe", "1", "true or false"),
        ("devices", "0,a", "0", "all, or numbers separated by commas"),
        (
            "providers",
            "cudda",
            '["cuda"]',
            "one of auto, cpu, cuda, native, openvino, or names of",
        ),
        ("provider_option", "gpu_mem_limit", "{a = [1]}", "NAME=VALUE"),
        ("array", "/nowhere.npy", '"/nowhere.npy"', "a NumPy file of numbers"),
    ],
)
def test_one_style_of_error(parse, tmp_path, capsys, name, text, toml, expected):
    file = tmp_path / "c.toml"
    file.write_text(f"{name} = {toml}\n")
    with pytest.raises(ConfigError) as error:
        parse(file=file)
    assert str(error.value).startswith(f"{name} in {file} must be {expected}")
    if text is None:
        return
    with pytest.raises(ConfigError) as error:
        parse(environment={f"T_{name.upper()}": text})
    assert str(error.value).startswith(f"T_{name.upper()} must be {expected}")
    assert str(error.value).endswith(f"got {text!r}")
    if name != "quick":
        flag = f"--{name.replace('_', '-')}"
        with pytest.raises(SystemExit):
            parse(f"{flag}={text}")
        assert capsys.readouterr().err.startswith(f"mirror-rt: error: {flag} must be {expected}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sise = 3\n", "no option 'sise'; did you mean size?"),
        (b"zzzzzz = 3\n", "no option 'zzzzzz'; there are size, wait, path"),
        (b"provider-option = {}\nprovider_option = {}\n", "is given twice"),
        (b"size = \n", "is not a TOML file"),
        (b"\xff\n", "is not a TOML file"),
        (None, "cannot read"),
    ],
)
def test_bad_files(parse, tmp_path, content, message):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        parse(file=file)


def test_a_field_without_a_default_must_be_given(capsys):
    @dataclass
    class Needed:
        name: str

    parser = Parser(prog="mirror-rt do")
    add_options(parser, Needed)
    assert build(Needed, from_arguments(parser.parse_args(["--name", "x"]))) == Needed("x")
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "do needs --name" in capsys.readouterr().err


@dataclass
class Inner:
    """What a command leaves to another.

    Attributes:
        name: what it is called.
        size: how much.
    """

    name: str
    size: int = 3


@dataclass(kw_only=True)
class Outer:
    """What a command asks for.

    Attributes:
        words: not this text.
    """

    words: Annotated[tuple[str, ...], Help("texts", "WORD", word=True)]
    many: Annotated[tuple[int, ...], Help("numbers", many=True)] = (1, 2)
    empty: Annotated[str | None, Help("perhaps", empty="nothing")] = None
    inner: Annotated[Given[Inner], Group("inner", leave_out=("name",), overrides=True)]


def test_options_of_a_dataclass_that_is_made_later():
    parser = Parser()
    add_options(parser, Outer)
    text = " ".join(parser.format_help().split())
    assert "WORD texts; or --words" in text
    assert "--many N [N ...] numbers (default 1 2)" in text
    assert "inner: --size N how much options" in f"{text} options"  # another's default is not said
    made = build(Outer, from_arguments(parser.parse_args(["a", "b", "--many", "3", "4"])))
    assert (made.words, made.many, made.empty) == (("a", "b"), (3, 4), None)
    assert made.inner.values() == {}
    assert made.inner.make(name="x") == Inner("x")
    words = ["--words", "a", "--size", "5", "--empty"]
    made = build(Outer, from_arguments(parser.parse_args(words)))
    assert (made.empty, made.inner.values()) == ("nothing", {"size": 5})
    assert made.inner.make(name="x") == Inner("x", 5)


def test_a_type_that_no_option_takes():
    @dataclass
    class Odd:
        value: dict[str, int]

    with pytest.raises(TypeError, match="no option takes"):
        add_options(Parser(), Odd)
