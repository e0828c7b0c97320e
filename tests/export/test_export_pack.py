"""Many models in one run, and what may go wrong in one."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

import mirror_export.pack.export_pack
import mirror_export.pack.staging
from command_errors import one_line_error
from mirror_export import ExportConfig, export_bundle, export_pack, find_models
from mirror_export.pack.export_pack import available_memory, jobs_that_fit
from mirror_export.pack.sources import fingerprint, name_models, weight_bytes
from mirror_export.pack.worker import ModelResult
from mirror_rt import BundleError, ConfigError, Encoder, Manifest, MirrorError, OutputExistsError
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.io.atomic import write_json
from tiers import tiers


@pytest.fixture(scope="module")
def models(tiny_bert, tmp_path_factory):
    """Folders a and b: the same but for one matrix; and junk, which is no model."""
    root = tmp_path_factory.mktemp("tuned")
    for name in ("a", "b"):
        shutil.copytree(tiny_bert, root / name)
    path = root / "b" / "model.safetensors"
    weights = load_file(path)
    weights["encoder.layer.0.output.dense.weight"] *= 0.5
    save_file(weights, path, {"format": "pt"})
    (root / "junk").mkdir()
    (root / "notes.txt").touch()
    return root


def config(out, **options):
    return ExportConfig("", out, pooling="mean", parity_texts=["the river", "a"], **options)


@pytest.fixture(scope="module")
def export_once(made_once):
    """Export a bundle, or copy that of the same model and options: these tests are of the pack."""

    def export(one):
        same = hashlib.sha256(repr(fingerprint(Path(one.model), one)).encode()).hexdigest()
        made = made_once(f"exports/{same}", lambda out: export_bundle(replace(one, out=out)))
        shutil.copytree(made, one.out)

    return export


def run_here(exported, export=export_bundle):
    """Export in this process, which is quicker by what importing torch takes."""

    def run(configs, jobs):
        for name, one in configs.items():
            error = None
            try:
                export(one)
            except (MirrorError, OSError) as problem:
                error = str(problem)
            exported.append(name)
            status = "failed" if error else "exported"
            yield ModelResult(name, one.model, status, 0.1, error=error)

    return run


@pytest.fixture
def in_process(monkeypatch, export_once):
    """Export without processes of their own; return the names of what was exported."""
    exported = []
    run = run_here(exported, export_once)
    monkeypatch.setattr(mirror_export.pack.export_pack, "run_workers", run)
    return exported


@pytest.fixture(scope="module")
def made(models, export_once, tmp_path_factory):
    """A pack of a and b, with shared files, and the report on it."""
    out = tmp_path_factory.mktemp("packs") / "pack"
    with pytest.MonkeyPatch.context() as patch:
        run = run_here([], export_once)
        patch.setattr(mirror_export.pack.export_pack, "run_workers", run)
        patch.setattr(mirror_export.pack.staging, "_SMALLEST", 1000)
        report = export_pack([str(models / name) for name in "ab"], config(out))
    return out, report


@pytest.fixture
def pack(made, tmp_path):
    """A copy of that pack, in which nothing is linked to the original."""
    return Path(shutil.copytree(made[0], tmp_path / "pack"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_pack_holds_whole_bundles(made, bundle, tmp_path):
    out, report = made
    index = PackIndex.read(out)
    assert index == report.index
    assert (list(index.bundles), index.default) == (["a", "b"], "a")
    assert names(out) == ["a", "b", "pack.json"]
    assert names(out.parent) == ["pack"]
    for entry in index.bundles.values():
        entry.verify(out)
    texts = ["the river", "人生", "word"]
    expected = Encoder.load(bundle).encode(texts)  # the model of a, exported alone
    for folder in (shutil.copytree(out / "a", tmp_path / "away"), out / "a"):
        np.testing.assert_array_equal(Encoder.load(folder).encode(texts), expected)
    assert np.abs(Encoder.load(out / "b").encode(texts) - expected).max() > 1e-3


def test_what_is_the_same_is_stored_once(made):
    out, report = made
    files = {}
    for path in out.rglob("*"):
        if path.is_file():
            files.setdefault(path.stat().st_ino, []).append(path)
    linked = [paths for paths in files.values() if len(paths) > 1]
    shared = {paths[0].name for paths in linked}
    assert shared == {"tokenizer.json"}
    assert report.saved_bytes == (out / "a" / "tokenizer.json").stat().st_size
    for name in ("a", "b"):  # onnx refuses external data with several hard links
        for graph in (out / name / "onnx").glob("*.onnx"):
            onnx.checker.check_model(str(graph))


def test_without_hard_links(models, in_process, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("not on this file system")

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr(mirror_export.pack.staging, "_SMALLEST", 1000)
    report = export_pack([str(models / name) for name in "ab"], config(tmp_path / "pack"))
    assert report.saved_bytes == 0
    assert names(tmp_path / "pack") == ["a", "b", "pack.json"]
    for entry in report.index.bundles.values():
        entry.verify(tmp_path / "pack")


def test_one_failure_does_not_stop_the_others(models, in_process, cli, tmp_path):
    out = tmp_path / "pack"
    given = [models / "junk", models / "a", tmp_path / "none" / "x"]
    arguments = ("export", *given, "--out", out, "--pooling", "mean")
    result = cli(*arguments)
    one_line_error(result, code=1, contains="2 of 3 models failed: junk, x")
    assert re.search(r"^junk +- .* failed: .*it has no config.json$", result.out, re.MULTILINE)
    assert re.search(r"^a +- +fp32 .* exported$", result.out, re.MULTILINE)
    assert "x: failed after 0.0 s" in result.err
    assert list(PackIndex.read(out).bundles) == ["a"]
    assert names(out) == ["a", "pack.json"]
    assert names(tmp_path) == ["pack"]
    one_line_error(cli(*arguments), code=1, contains="already exists")
    again = cli(*arguments, "--resume", "--json")
    values = json.loads(again.out)
    assert [model["status"] for model in values["models"]] == ["failed", "kept", "failed"]
    assert in_process == ["junk", "a", "junk"]


def test_a_pack_declares_a_fallback_and_spaces(models, in_process, tmp_path):
    given = [str(models / name) for name in ("a", "b")]
    with pytest.raises(ConfigError, match="fallback 'c' is none of the models: a, b"):
        export_pack(given, config(tmp_path / "pack"), fallback="c")
    export_pack(given, config(tmp_path / "pack"), fallback="b")
    index = PackIndex.read(tmp_path / "pack")
    assert (index.default, index.fallback) == ("a", "b")
    assert len({entry.vector_space for entry in index.bundles.values()}) == 2  # other weights
    resumed = export_pack(given[:1], config(tmp_path / "pack"), resume=True)
    assert resumed.index.fallback == "b"  # declared by the earlier run


def test_nothing_is_written_where_all_fail(models, in_process, tmp_path):
    report = export_pack([str(models / "junk"), "./none"], config(tmp_path / "pack"))
    assert report.index is None
    assert len(report.failed) == 2
    assert names(tmp_path) == []


@pytest.mark.full
def test_resume_makes_again_what_is_not_the_same(pack, models, in_process, tmp_path):
    given = [str(models / "a"), str(models / "b")]

    def resume(*models, **options):
        in_process.clear()
        report = export_pack(models or given, config(pack, **options), resume=True)
        return in_process, {result.name: result.status for result in report.models}

    assert resume() == ([], {"a": "kept", "b": "kept"})
    path = pack / "b" / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1])  # not whole
    assert resume() == (["b"], {"a": "kept", "b": "exported"})
    assert resume(given[0], force=True) == (["a"], {"a": "exported"})  # other options
    changed = Path(shutil.copytree(models / "a", tmp_path / "x" / "a"))
    (changed / "config.json").write_text((changed / "config.json").read_text() + "\n")
    assert resume(str(changed), force=True) == (["a"], {"a": "exported"})  # another model
    assert list(PackIndex.read(pack).bundles) == ["a", "b"]  # what is not named stays
    assert names(pack.parent) == ["pack", "x"]


def test_overwrite_starts_afresh(pack, models, in_process):
    report = export_pack([str(models / "b")], config(pack, overwrite=True))
    assert list(report.index.bundles) == ["b"]
    assert names(pack) == ["b", "pack.json"]
    assert names(pack.parent) == ["pack"]


def test_a_pack_that_fails_leaves_the_old_one(pack, models, in_process, monkeypatch):
    before = (pack / "pack.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirror_export.pack.export_pack, "link_identical", full)
    with pytest.raises(OSError, match="No space left"):
        export_pack([str(models / "b")], config(pack, overwrite=True))
    assert (pack / "pack.json").read_bytes() == before
    for entry in PackIndex.read(pack).bundles.values():
        entry.verify(pack)
    partial = pack.with_name("pack.partial")
    assert names(partial) == ["b", "progress.json"]
    with pytest.raises(BundleError, match=r"no pack\.json"):
        PackIndex.read(partial)


def test_what_is_left_of_a_run_is_not_ignored(models, in_process, tmp_path):
    partial = tmp_path / "pack.partial"
    (partial / ".a.tmp").mkdir(parents=True)
    arguments = [str(models / "a")], config(tmp_path / "pack")
    with pytest.raises(OutputExistsError, match="is in the way, and not of an export"):
        export_pack(*arguments, resume=True)
    (partial / "progress.json").touch()
    with pytest.raises(OutputExistsError, match="continue it with --resume"):
        export_pack(*arguments)
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(OutputExistsError, match="another process is writing"):
        export_pack(*arguments, resume=True)
    os.close(descriptor)
    export_pack(*arguments, resume=True)
    assert names(tmp_path) == ["pack"]
    assert names(tmp_path / "pack") == ["a", "pack.json"]


def wait_for(condition):
    """Wait until it is met; for ten minutes, however busy the machine is."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def workers(parent):
    """Process ids of the exports that `parent` started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if b"mirror_rt.child_process" in line and int(stat_field(folder, 1)) == parent:
                found.append(int(folder.name))
    return found


def stat_field(folder, number):
    return (folder / "stat").read_text().rpartition(") ")[2].split()[number]


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@needs_proc
def test_a_killed_worker_is_one_failure(models, tmp_path):
    out = tmp_path / "pack"

    def kill_first():
        wait_for(lambda: list(tmp_path.glob("pack.partial/.a.*")))
        os.kill(workers(os.getpid())[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_first)
    killer.start()
    report = export_pack([str(models / "a"), str(models / "b")], config(out), jobs=1)
    killer.join()
    assert [result.status for result in report.models] == ["failed", "exported"]
    assert "ended by signal 9, Killed; out of memory, most likely" in report.models[0].error
    assert report.models[1].peak_bytes > 50_000_000
    assert names(out) == ["b", "pack.json"]


@pytest.mark.full
@needs_proc
def test_interrupted_and_killed_in_the_middle(models, in_process, tmp_path):
    out, partial = tmp_path / "pack", tmp_path / "pack.partial"
    line = [sys.executable, "-m", "mirror_rt.cli", "export", models / "a", models / "b",
            "--out", out, "--pooling", "mean"]  # fmt: skip
    run = subprocess.Popen([*map(str, line)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(partial.glob(".b.*")))
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 130, errors
    assert "pack.partial holds a: continue with --resume" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert names(tmp_path) == ["pack.partial"]
    assert names(partial) == ["a", "progress.json"]
    assert Encoder.load(partial / "a").dimension == 32

    with subprocess.Popen([*map(str, line), "--resume"], stderr=subprocess.DEVNULL) as run:
        wait_for(lambda: list(partial.glob(".b.*")))
        left = workers(run.pid)
        run.kill()
    assert len(left) == 1
    wait_for(lambda: not Path(f"/proc/{left[0]}").exists() or stat_field(
        Path(f"/proc/{left[0]}"), 0) == "Z")  # fmt: skip
    assert names(tmp_path) == ["pack.partial"]
    assert not (partial / "b").exists()

    options = ExportConfig("", out, pooling="mean")
    report = export_pack([str(models / "a"), str(models / "b")], options, resume=True)
    assert [result.status for result in report.models] == ["kept", "exported"]
    assert names(tmp_path) == ["pack"]
    assert names(out) == ["a", "b", "pack.json"]


@contextlib.contextmanager
def no_file_over(size):
    """As a full disk: a write that makes a file longer fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "size", tiers([300, 10_000, 100_000], fast=[10_000])
)  # configuration, tokenizer, graph
def test_a_full_disk(models, in_process, tmp_path, size):
    one = ExportConfig(str(models / "a"), tmp_path / "bundle", pooling="mean")
    with no_file_over(size), pytest.raises(OSError, match="File too large"):
        export_bundle(one)
    assert names(tmp_path) == []


def test_a_full_disk_is_a_failure_of_a_pack(models, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_export.pack.export_pack, "run_workers", run_here([]))
    with no_file_over(10_000):
        report = export_pack([str(models / "a")], config(tmp_path / "pack"))
    assert "File too large" in report.models[0].error
    assert names(tmp_path) == []


def test_models_of_a_folder(models, made, cli, tmp_path):
    found, skipped = find_models(models)
    assert found == [str(models / "a"), str(models / "b")]
    assert skipped == ["junk", "notes.txt"]
    out = ("--out", tmp_path / "out")
    empty = cli("export", "--all", models / "junk", *out)
    one_line_error(empty, code=2, contains="none of its sub-folders is a model")
    one_line_error(cli("export", "--all", made[0], *out), code=2, contains="is a model")
    one_line_error(cli("export", "--all", tmp_path / "no", *out), code=2, contains="no such folder")
    one_line_error(cli("export", "x", "--all", models, *out), code=2, contains="not both")
    one_line_error(cli("export", *out), code=2, contains="nothing to export")
    one_line_error(cli("export", "x", "--resume", *out), code=2, contains="go with several models")
    assert "--jobs must be an integer or auto" in cli("export", "x", "y", "--jobs", "two", *out).err


def test_refusals_before_any_work(models, in_process, tmp_path):
    def refused(message, given, out=tmp_path / "pack", **options):
        with pytest.raises(ConfigError, match=message):
            export_pack([str(model) for model in given], config(out), **options)

    a = models / "a"
    refused("a is given twice", [a, models / "b" / ".." / "a"])
    refused("is inside the model", [a, models / "b"], a / "pack")
    refused("is inside the model", [a], a)
    refused("would replace the model", [a], models)
    refused("jobs must be at least 1", [a], jobs=0)
    refused("would both be 'A' in the pack", [a, shutil.copytree(a, tmp_path / "A")])
    assert in_process == []
    assert names(tmp_path) == ["A"]


def test_names_are_languages_where_those_are_unique(tmp_path):
    def folder(name, language):
        manifest = Manifest(dimension=1, max_length=1, pad_id=0, pooling="cls", language=language,
                            format="mirror_rt encoder")  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
        write_json(tmp_path / name / "mirror.json", manifest.to_dict())
        return str(tmp_path / name)

    fr, en, en2 = folder("run1", "fr"), folder("run2", "en"), folder("run3", "en")
    plain, odd = folder("run4", None), folder("run5", "../up")
    given = [fr, en, en2, plain, odd, "owner/name"]
    assert list(name_models(given)) == ["fr", "run2", "run3", "run4", "run5", "name"]
    assert list(name_models(given).values()) == given
    with pytest.raises(ConfigError, match="would both be 'fr'"):
        name_models([fr, folder("fr", "zh-Hant"), folder("x/fr", None)])


def test_the_fingerprint_follows_files_and_options(models, tmp_path):
    one = config(tmp_path)
    model = Path(shutil.copytree(models / "a", tmp_path / "a"))
    before = fingerprint(model, one)
    assert json.loads(json.dumps(before)) == before
    assert fingerprint(model, config(tmp_path / "x", offline=True, overwrite=True)) == before
    assert fingerprint(model, config(tmp_path, precisions=("fp32", "int8"))) != before
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    assert fingerprint(model, one) != before


def test_jobs_that_fit(models, monkeypatch):
    monkeypatch.setattr("mirror_export.pack.export_pack.available_cpus", lambda: 4)
    gigabyte = 10**9
    assert jobs_that_fit([gigabyte] * 8, 3 * gigabyte) == 1
    assert jobs_that_fit([gigabyte] * 8, 8 * gigabyte) == 2
    assert jobs_that_fit([gigabyte] * 8, 10**12) == 4
    assert jobs_that_fit([gigabyte, 1, 1], 6 * gigabyte) == 3
    assert jobs_that_fit([], gigabyte) == 1
    size = (models / "a" / "model.safetensors").stat().st_size
    assert weight_bytes(models / "a") == size
    assert weight_bytes(models / "junk") == 0


@pytest.mark.parametrize("version", [1, 2])
def test_memory_that_is_left(tmp_path, version):
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    controllers = "4:memory" if version == 1 else "0:"
    (proc / "self" / "cgroup").write_text(f"9:cpu:/else\n{controllers}:/outer/inner\n")
    kind, root = ("cgroup", "/groups/memory") if version == 1 else ("cgroup2", "/groups")
    mount = f"9 1 0:9 / {root} rw - {kind} {kind} rw,memory\n"
    (proc / "self" / "mountinfo").write_text(mount)
    assert available_memory(tmp_path) == 4_096_000
    limit, usage, stat = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    inner = tmp_path / root[1:] / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, value in ((inner, "max" if version == 2 else str(2**62)), (inner.parent, "3000")):
        (folder / limit).write_text(value)
        (folder / usage).write_text("1000\n")
        (folder / "memory.stat").write_text(f"cache 1\n{stat} 200\n")
    assert available_memory(tmp_path) == 2200
    assert available_memory(tmp_path / "absent") == 0
