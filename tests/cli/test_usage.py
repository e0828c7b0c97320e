"""How the command line is called: names, groups, the model, suggestions, completion."""

import pickle
import subprocess
import sys

import pytest

from mirror_rt.cli.evaluate import Evaluate
from mirror_rt.cli.main import main
from mirror_rt.cli.parsing.parser import message_of, suggestion
from mirror_rt.cli.triton import Triton
from mirror_rt.errors import ConfigError, InvalidTextError, NotText, OutputExistsError, Setting


def test_no_arguments_say_what_to_do_first(cli):
    result = cli()
    assert (result.code, result.out) == (2, "")
    assert "mirror-rt encode all-MiniLM-L6-v2" in result.err.splitlines()[0]
    assert "use a model:" in result.err


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("encod bundle", "there is no command 'encod'", "did you mean encode?"),
        ("--versoin", "there is no option '--versoin'", "did you mean --version?"),
        ("encode b --inptu x", "there is no option --inptu", "did you mean --input?"),
        ("tune --out o --words en --data y", "pass one of --data FILE, --words",
         "for example: mirror-rt tune"),
        ("tune --recipe word", "tune needs --out", "for example: mirror-rt tune"),
        ("encode b", "encode needs --input, --output", "for example: mirror-rt encode"),
        ("study", "study needs NAME, --out", "for example: mirror-rt study"),
        ("info", "info needs BUNDLE|PACK", "for example: mirror-rt info bundle"),
        ("info a --model b", "not allowed with", "for example: mirror-rt info bundle"),
        ("info a b", "cannot tell what 'b' is for", "for example: mirror-rt info bundle"),
        ("train flwo", "needs one of burt, cf, colbert, cross-encoder", "did you mean flow?"),
        ("tune --out o --words en --epochs two", "--epochs must be an integer, got 'two'",
         "for example: mirror-rt tune"),
        ("tune --out o --data d --data-format pair",
         "--data-format must be one of auto, text, pairs",
         "did you mean pairs?"),
    ],
)  # fmt: skip
def test_wrong_usage_takes_three_lines(cli, line, said, hint):
    result = cli(*line.split())
    first, second, third = result.err.splitlines()
    assert result.code == 2
    assert first.startswith("mirror-rt: error: ")
    assert said in first
    assert second.startswith(hint)
    assert third.startswith("all options: mirror-rt")


def test_nothing_is_suggested_where_nothing_is_near():
    assert suggestion("zzzz", ["encode", "tune"]) == ""


def test_the_help_of_a_group_of_commands_lists_them(cli):
    assert cli("train", "--help").code == 0
    assert "train cf" in cli("train", "--help").out


@pytest.mark.parametrize(
    "line", ["m --out o", "--out o m", "--out o --model m", "--model=m --out o"]
)
def test_a_model_is_a_word_or_an_option(line, monkeypatch):
    seen = []
    monkeypatch.setattr(Triton, "run", lambda self: seen.append(self.model))
    monkeypatch.setattr(Evaluate, "run", lambda self: seen.append(self.model))
    assert main(["triton", *line.split()]) == 0
    assert main(["evaluate", *line.split(), "--suite", "all", "--data", "d"]) == 0
    assert seen == ["m", ("m",)]


@pytest.mark.parametrize(
    ("error", "in_python", "on_the_command_line"),
    [
        (OutputExistsError("x exists: pass ", Setting("overwrite", True)),
         "x exists: pass overwrite=True", "x exists: pass --overwrite"),
        (ConfigError(Setting("errors", "nan"), " needs float32"),
         "errors='nan' needs float32", "--errors nan needs float32"),
        (ConfigError(field="batch_size", expected="at least 1", value=0),
         "batch_size must be at least 1, got 0", "--batch-size must be at least 1, got 0"),
        (ConfigError(field="errors", expected="raise or nan", value="no"),
         "errors must be raise or nan, got 'no'", "--errors must be raise or nan, got 'no'"),
        (ConfigError("these errors must end"), "these errors must end", "these errors must end"),
        (ConfigError("pass ", Setting("provider_options", {"use_tf32": "true"})),
         "pass provider_options={'use_tf32': 'true'}", "pass --provider-option use_tf32=true"),
        (ConfigError(Setting("devices", [0, 1]), ": no cards"),
         "devices=[0, 1]: no cards", "--devices 0,1: no cards"),
        (ConfigError(Setting("normalize_embeddings", False), ", ", Setting("truncate_dim", None)),
         "normalize_embeddings=False, truncate_dim=None", "--no-normalize, no --truncate-dim"),
        (ConfigError("no field 'batch_size' in batch_size.json"),
         "no field 'batch_size' in batch_size.json", "no field 'batch_size' in batch_size.json"),
        (ConfigError(field="of_another_command", expected="right", value=1),
         "of_another_command must be right, got 1", "of_another_command must be right, got 1"),
        (InvalidTextError([(2, NotText.of(None))], noun="text"),
         "cannot encode text 2: expected str, got NoneType",
         "cannot encode text 2: expected a text, got null"),
    ],
)  # fmt: skip
def test_each_surface_writes_options_in_its_way(error, in_python, on_the_command_line):
    options = ["overwrite", "errors", "batch_size", "provider_option", "devices", "normalize",
               "truncate_dim"]  # fmt: skip
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == in_python
        assert message_of(one, options) == on_the_command_line


def test_an_error_carries_the_option_and_its_value():
    error = ConfigError(field="batch_size", expected="at least 1", value=0)
    assert (error.field, error.expected, error.value) == ("batch_size", "at least 1", 0)
    error = ConfigError(Setting("devices", [0]), ": no cards")
    assert (error.field, error.expected, error.value) == ("devices", None, [0])
    assert ConfigError("nothing to do").field is None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_a_shell_needs(cli, shell):
    result = cli("completion", shell)
    assert result.code == 0, result.err
    assert "mirror-rt" in result.out
    assert "_ARGCOMPLETE" in result.out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mirror-rt enc", {"encode"}),
        ("mirror-rt train ", {"flow", "cross-encoder", "mirror", "finetune"}),
        ("mirror-rt encode b --trunc", {"--truncate-dim"}),
        ("mirror-rt train cf --views ", {"mirror", "simcse"}),
        ("mirror-rt encode b --precision ", {"float32", "ubinary"}),
    ],
)
def test_the_tab_key(line, expected, tmp_path):
    answer = tmp_path / "answer"
    environment = {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "mirror_rt.cli"], env=environment, check=False)
    assert expected <= {word.strip() for word in answer.read_text().splitlines()}
