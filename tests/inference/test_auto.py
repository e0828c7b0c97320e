"""Which engine `providers="auto"` takes without a card, and what it says about it."""

import dataclasses
import json
import logging
import sys

import numpy as np
import pytest

from damage import add_variant
from mirror_rt import BundleError, BundleIntegrityError, Encoder, MissingDependencyError
from mirror_rt.bulk import plan
from mirror_rt.diagnostics.doctor import examine
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.providers import CPU, NATIVE
from mirror_rt.inference.shared_libraries import nvidia_cards
from mirror_rt.pipeline.options import EncodeOptions
from rounding import RUN_ERROR

pytestmark = [
    pytest.mark.skipif(nvidia_cards() > 0, reason="auto takes the card"),
    pytest.mark.usefixtures("engine_is_fast"),
]

TEXTS = ["the river", "a", "the old town hall by the river " * 3, "word"]
# For each option of `Encoder.load` a value other than the default, and what runs then; None for an
# option that says where a bundle is from, or is refused without a card.
OPTIONS = {
    "variant": ("fp32", NATIVE),
    "revision": ("main", None),
    "offline": (True, NATIVE),
    "verify": (False, NATIVE),
    "pooling": ("cls", None),
    "providers": ("cpu", CPU),
    "allow_fallback": (True, NATIVE),
    "threads": (3, NATIVE),
    "spinning": ("always", CPU),
    "devices": ([0], None),
    "cuda_graphs": (True, None),
    "provider_options": ({"use_tf32": 1}, None),
    "cache": ("vectors.cache", NATIVE),
    "cache_bytes": (1 << 25, NATIVE),
}


@pytest.fixture
def no_onnxruntime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def test_a_provider_without_its_package_is_named(bundle, no_onnxruntime):
    with pytest.raises(MissingDependencyError, match=r"a bundle under cpu needs .*onnxruntime"):
        Encoder.load(bundle, providers="cpu")


def test_cuda_without_its_package_names_the_extra_with_cuda(bundle, no_onnxruntime):
    with pytest.raises(MissingDependencyError, match=r"installed: pip install 'mirror-rt\[gpu\]'$"):
        Encoder.load(bundle, providers="cuda")


@pytest.fixture
def int8_bundle(all_variants):
    return all_variants("bert")


def edit_manifest(folder, change):
    path = folder / "mirror.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_engine_runs_by_default_and_says_so(bundle, caplog, cli):
    with caplog.at_level(logging.INFO, "mirror_rt"):
        encoder = Encoder.load(bundle)
    assert (encoder.providers, encoder.devices) == ([NATIVE], ["cpu"])
    assert encoder.provider_reason == "auto takes the native engine where no card is used"
    assert f"model.onnx runs under native on cpu: {encoder.provider_reason}" in caplog.text
    assert examine(bundle)[-1].detail.count(f"fp32 on native ({encoder.provider_reason})") == 1
    done = cli("benchmark", bundle, "--seconds", "0.2", "--lengths", "8", "--batches", "1")
    assert f"native: {encoder.provider_reason}" in done.out
    expected = Encoder.load(bundle, providers="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=RUN_ERROR)


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(LoadOptions)])
def test_every_option_is_honoured_by_what_runs(bundle, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the cache
    value, expected = OPTIONS[option]
    if expected is None:
        with pytest.raises(Exception, match=option):  # of the same class as under "cpu"
            Encoder.load(bundle, **{option: value})
    else:
        assert Encoder.load(bundle, **{option: value}).providers == [expected]


def test_int8_is_int8(int8_bundle):
    encoder = Encoder.load(int8_bundle, variant="int8")
    assert (encoder.providers, encoder.variant.precision) == ([NATIVE], "int8")
    exact = Encoder.load(int8_bundle).encode(TEXTS)
    assert 0.99 < (encoder.encode(TEXTS) * exact).sum(1).min() < 1 - 1e-6
    assert Encoder.load(int8_bundle, variant="int8", providers="cpu").providers == [CPU]


def test_int8_that_keeps_layers_in_float32_stays_with_onnxruntime(int8_bundle, tmp_path):
    import shutil

    copy = shutil.copytree(int8_bundle, tmp_path / "copy")
    edit_manifest(copy, lambda m: m["variants"]["int8"]["graph"].update(float32_layers=["out"]))
    encoder = Encoder.load(copy, variant="int8")
    assert encoder.providers == [CPU]
    assert "keeps 1 layers in float32" in encoder.provider_reason


@pytest.mark.parametrize("installed", [True, False])
def test_a_processor_without_the_instructions_of_the_kernels(bundle, monkeypatch, installed):
    """What is slow there runs only where nothing else can."""
    from mirror_rt import _core
    from mirror_rt.inference import engines
    from mirror_rt.inference.native.kernel_choice import has_quick_kernels

    monkeypatch.setattr(engines, "has_quick_kernels", has_quick_kernels)
    monkeypatch.setattr(_core, "engine_instruction_sets", lambda: ["portable"])
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if installed else None)
    encoder = Encoder.load(bundle)
    assert encoder.providers == ([CPU] if installed else [NATIVE])
    assert ("none of the instructions" in encoder.provider_reason) == installed


def test_int8_without_the_fp32_graph_stays_with_onnxruntime(int8_bundle, tmp_path):
    """As a hub has it in its cache that was asked for int8 alone."""
    import shutil

    ignore = shutil.ignore_patterns("model.onnx", "model_mapped.onnx")
    copy = shutil.copytree(int8_bundle, tmp_path / "copy", ignore=ignore)
    encoder = Encoder.load(copy, variant="int8")
    assert encoder.providers == [CPU]
    assert "model.onnx is not there" in encoder.provider_reason


def test_rows_of_int8_that_are_not_finite_run_again_in_fp32(int8_bundle, caplog):
    encoder, expected = Encoder.load(int8_bundle, variant="int8"), Encoder.load(int8_bundle)
    model = encoder.pipeline.model
    run = model.runner.run
    model.runner.run = lambda batch, output: run(batch, output) * np.float32(np.nan)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected.encode(TEXTS))
    assert model._exact.providers == [NATIVE]
    assert "such texts run again in fp32" in caplog.text


def test_what_the_engine_cannot_run_onnxruntime_runs(tiny_bundle, bundle):
    encoder = Encoder.load(tiny_bundle("rembert"))
    assert encoder.providers == [CPU]
    assert "onnxruntime where nothing else runs the bundle; native" in encoder.provider_reason
    assert "is of the family rembert, and the native engine computes" in encoder.provider_reason
    assert encoder.encode(TEXTS).shape[0] == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("native"),
        lambda m: m["native"].pop("sha256"),
        lambda m: m["native"].update(sha256="0" * 64),  # of another file, in which all sizes fit
    ],
)
def test_a_bundle_without_the_table_of_its_file_is_to_be_exported_again(bundle_copy, change):
    edit_manifest(bundle_copy, change)
    encoder = Encoder.load(bundle_copy, verify=False)
    assert encoder.providers == [CPU]
    assert "has no table of the weights in its graph as it is" in encoder.provider_reason
    with pytest.raises(BundleError, match=r"export it again; .*onnxruntime can"):
        Encoder.load(bundle_copy, providers="native")


def test_fp16_and_plain_files_stay_with_onnxruntime(bundle_copy, bundle):
    add_variant(bundle_copy, "fp16", "onnx/model.onnx", precision="fp16")
    encoder = Encoder.load(bundle_copy, variant="fp16", verify=False)
    assert (encoder.providers, "fp16" in encoder.provider_reason) == ([CPU], True)
    (bundle_copy / "mirror.json").unlink()
    encoder = Encoder.load(bundle_copy, pooling="mean")
    assert (encoder.providers, "plain ONNX" in encoder.provider_reason) == ([CPU], True)


def test_without_onnxruntime_an_error_says_what_each_lacks(tiny_bundle, bundle, no_onnxruntime):
    assert Encoder.load(bundle).encode(TEXTS).shape == (4, 32)
    with pytest.raises(MissingDependencyError) as refused:
        Encoder.load(tiny_bundle("rembert"))
    message = str(refused.value)
    assert "pip install 'mirror-rt[cpu]'" in message
    assert "native does not run it: " in message
    with pytest.raises(MissingDependencyError, match="threads do not spin after a run"):
        Encoder.load(bundle, spinning="always")
    findings = {finding.name: finding for finding in examine(bundle)}
    assert {finding.status for finding in findings.values()} == {"ok"}
    assert "pip install 'mirror-rt[cpu]'" in findings["onnxruntime"].detail


def test_without_onnxruntime_a_changed_file_is_still_named(bundle_copy, no_onnxruntime):
    path = bundle_copy / "onnx" / "model.onnx"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + b"\1" * 5)
    with pytest.raises(BundleIntegrityError, match=r"model\.onnx has SHA-256"):
        Encoder.load(bundle_copy)
    path.write_bytes(whole[:5000])
    with pytest.raises(BundleIntegrityError, match=r"model\.onnx has 5000 bytes"):
        Encoder.load(bundle_copy)
    with pytest.raises(MissingDependencyError, match="does not hold the weights of its table"):
        Encoder.load(bundle_copy, verify=False)
    with pytest.raises(BundleError, match="no variant 'int8'"):
        Encoder.load(bundle_copy, variant="int8")


def test_onnxruntime_is_not_imported(bundle, command_in_child):
    out = command_in_child(
        "import sys; from mirror_rt import Encoder\n"
        f"encoder = Encoder.load({str(bundle)!r}, providers='native')\n"
        "print(encoder.encode('a').shape, 'onnxruntime' in sys.modules)"
    )
    assert out.strip() == "(32,) False"


def vector_plan(folder, options):
    return plan._vector_plan(options.describe(folder), "digest", options, EncodeOptions())


def test_the_plan_of_a_job_names_the_engine(bundle, tiny_bundle, no_onnxruntime):
    """A job that another engine began is another job."""
    of_job = vector_plan(bundle, LoadOptions())
    assert of_job["providers"] == [NATIVE]
    assert "onnxruntime" not in of_job
    with pytest.raises(MissingDependencyError):
        vector_plan(tiny_bundle("rembert"), LoadOptions())


def test_the_plan_of_a_job_for_onnxruntime(bundle, tiny_bundle):
    for folder, options in (
        (bundle, LoadOptions(providers="cpu")),
        (bundle, LoadOptions(spinning="always")),
        (tiny_bundle("rembert"), LoadOptions()),
    ):
        of_job = vector_plan(folder, options)
        assert of_job["providers"] == [CPU]
        assert of_job["onnxruntime"]
