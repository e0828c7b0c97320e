"""Whoever uses what will go is told since when, until when, and what to write instead."""

import logging
import subprocess
import sys
from dataclasses import dataclass

import pytest

import mirror_rt
from mirror_rt.cli.main import main
from mirror_rt.cli.parsing.options import announcing, build, from_environment, from_file
from mirror_rt.deprecation import DEPRECATED, Deprecation, log_deprecated, warn_deprecated
from public_names import LISTS, names_of

IN = Deprecation("0.8", "0.10", "write new")
TOLD = "is deprecated since 0.8 and goes in 0.10: write new"
KEPT = LISTS.parents[1] / "kept"


def minor(version):
    return tuple(int(part) for part in version.split(".")[:2])


def problems(version, now, before, deprecated):
    """Say what breaks the promise in a version, by the names of it and of those before it."""
    for name in sorted(before - now):
        if name not in deprecated or minor(version) < minor(deprecated[name].until):
            yield f"{name} is gone, and was not announced"
    for name, one in deprecated.items():
        (major, since), (until, last) = minor(one.since), minor(one.until)
        two = until == major == 0 and last >= since + 2
        if not two and not (until > major and last == 0):
            yield f"{name} works too short a time"
        if name in now and minor(version) >= minor(one.until):
            yield f"{name} should be gone"
        if name not in now | before:
            yield f"{name} was never public"


def names_in(files):
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return {name for line in lines for name in names_of(line)}


def test_a_public_name_goes_only_when_it_was_announced():
    now = names_in(LISTS.iterdir())
    assert {"mirror_rt.Encoder.encode(inputs)", "mirror-rt serve --port", "POST /embed: inputs",
            "mirror.json: dimension", "mirror_rt_batch_texts"} <= now  # fmt: skip
    files = KEPT.glob("[0-9]*/public/*.txt")
    before = names_in(one for one in files if minor(one.parts[-3]) < minor(mirror_rt.__version__))
    assert not list(problems(mirror_rt.__version__, now, before, DEPRECATED))


@pytest.mark.parametrize(
    ("version", "since", "until", "now", "problem"),
    [
        ("0.8.1", "0.8", "0.10", "a b", None),
        ("0.9.0", "0.8", "0.10", "a b", None),
        ("0.9.0", "0.8", "0.10", "b", "a is gone, and was not announced"),
        ("0.10.0", "0.8", "0.10", "a b", "a should be gone"),
        ("0.10.0", "0.8", "0.10", "b", None),
        ("0.11.0", "0.8", "0.10", "", "b is gone, and was not announced"),
        ("0.8.0", "0.8", "0.9", "a b", "a works too short a time"),
        ("0.9.0", "0.9", "1.0", "a b", None),
        ("1.3.0", "1.3", "1.5", "a b", "a works too short a time"),
        ("1.3.0", "1.3", "2.0", "a b", None),
        ("2.0.0", "1.3", "2.0", "a b", "a should be gone"),
    ],
)
def test_how_long_a_name_stays(version, since, until, now, problem):
    found = list(
        problems(version, set(now.split()), {"a", "b"}, {"a": Deprecation(since, until, "")})
    )
    assert found == ([problem] if problem else [])


def test_a_name_of_python(monkeypatch):
    monkeypatch.setitem(DEPRECATED, "mirror_rt.Scheduler", IN)
    monkeypatch.setitem(DEPRECATED, "mirror_train.TuneConfig", IN)
    with pytest.warns(DeprecationWarning, match=f"^mirror_rt.Scheduler {TOLD}$") as told:
        assert mirror_rt.Scheduler.__name__ == "Scheduler"
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="mirror_train.TuneConfig") as told:
        from mirror_train import TuneConfig  # noqa: F401
    assert {one.filename for one in told} == {__file__}


def test_a_parameter_warns_the_line_that_gives_it(monkeypatch):
    """Not a line of this project: Python shows such a warning only to who can mend it."""
    monkeypatch.setitem(DEPRECATED, "mirror_rt.Encoder.encode(old)", IN)
    inner = {"__name__": "mirror_rt.inner", "warn_deprecated": warn_deprecated}
    exec("def encode(): warn_deprecated('mirror_rt.Encoder.encode(old)')", inner)
    with pytest.warns(DeprecationWarning, match="old") as told:
        inner["encode"]()
    assert told[0].filename == __file__


def test_python_shows_it_to_a_script():
    code = (
        "from mirror_rt.deprecation import DEPRECATED, Deprecation\n"
        "DEPRECATED['mirror_rt.search'] = Deprecation('0.8', '0.10', 'write new')\n"
        "DEPRECATED['mirror_rt.Client'] = Deprecation('0.8', '0.10', 'write new')\n"
        "from mirror_rt import Client\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count(f"DeprecationWarning: mirror_rt.Client {TOLD}") == 1


def test_a_command_and_its_options(monkeypatch, capsys):
    for name in ("mirror-rt recipes", "mirror-rt recipes --level", "mirror-rt recipes --lang"):
        monkeypatch.setitem(DEPRECATED, name, IN)
    assert main(["recipes", "--level", "word", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"mirror-rt: warning: mirror-rt recipes {TOLD}",
        f"mirror-rt: warning: --level {TOLD}",
    ]
    assert shown.out.startswith(("{", "["))
    with pytest.raises(SystemExit):
        main(["recipes", "--help"])
    assert "(deprecated: write new)" in " ".join(capsys.readouterr().out.split())


def test_a_variable_and_a_key_of_a_file(monkeypatch, capsys, tmp_path):
    @dataclass(frozen=True)
    class Options:
        port: int = 1

    monkeypatch.setitem(DEPRECATED, "mirror-rt serve --port", IN)
    file = tmp_path / "serve.toml"
    file.write_text("port = 2")
    for source, said in (
        (
            from_environment({"MIRROR_RT_SERVE_PORT": "2"}, "MIRROR_RT_SERVE_"),
            "MIRROR_RT_SERVE_PORT",
        ),
        (from_file(file, Options), f"port in {file}"),
    ):
        assert build(Options, announcing("mirror-rt serve", source)).port == 2
        assert capsys.readouterr().err == f"mirror-rt: warning: {said} {TOLD}\n"
    assert build(Options, announcing("mirror-rt serve", lambda _: None)).port == 1
    assert not capsys.readouterr().err


def test_a_field_of_a_request_is_logged_once(monkeypatch, caplog):
    monkeypatch.setitem(DEPRECATED, "POST /embed: old", IN)
    with caplog.at_level(logging.WARNING, "mirror_rt.server"):
        for _ in range(3):
            log_deprecated("POST /embed: old")
    assert [one.message for one in caplog.records] == [f"POST /embed: old {TOLD}"]


def test_what_stays_says_nothing(recwarn, caplog):
    warn_deprecated("mirror_rt.Encoder")
    log_deprecated("POST /embed: inputs")
    assert not recwarn.list
    assert not caplog.records
