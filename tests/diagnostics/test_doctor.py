import errno
import json
import os

import pytest

from fake_cuda import make_onnxruntime
from mirror_rt import MissingDependencyError
from mirror_rt.cpus import CpuBudget
from mirror_rt.diagnostics import doctor
from mirror_rt.diagnostics.doctor import examine
from mirror_rt.inference.shared_libraries import missing_libraries, nvidia_cards

MISSING = ["libcublas_none.so.12", "libcudnn_none.so.9"]


def finding(name, model=None):
    (found,) = [f for f in examine(model) if f.name == name]
    return found


@pytest.fixture
def gpu_wheel(tmp_path, monkeypatch):
    """Let doctor meet an onnxruntime-gpu without its libraries, and `cards` NVIDIA cards."""

    def make(cards, missing):
        fake = make_onnxruntime(tmp_path, missing=missing)
        monkeypatch.setattr(doctor, "import_onnxruntime", lambda: fake)
        monkeypatch.setattr(doctor, "nvidia_cards", lambda: cards)

    return make


@pytest.fixture
def plain_machine(monkeypatch):
    """Eight processors, no card, and an onnxruntime without CUDA, wherever the tests run."""
    import onnxruntime

    monkeypatch.setattr(doctor, "cpu_budget", lambda: CpuBudget(8))
    monkeypatch.setattr(doctor, "nvidia_cards", lambda: 0)
    monkeypatch.setattr(doctor, "driver_fault", lambda: None)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


def test_a_healthy_installation(cli, bundle, plain_machine):
    done = cli("doctor", "--model", bundle)
    assert done.code == 0, done.out
    for expected in (
        "mirror-rt 0", "onnxruntime 1", "CPUExecutionProvider", "no NVIDIA card",
        "threads (", "instruction set", "GB free", "6 texts, alone and in a batch, differ by",
    ):  # fmt: skip
        assert expected in done.out
    assert "FAULT" not in done.out
    assert "to mend" not in done.out


def test_json(cli, bundle):
    done = cli("doctor", "--model", bundle, "--json")
    values = json.loads(done.out)
    assert (done.code, values["faults"]) == (0, 0)
    names = [f["name"] for f in values["findings"]]
    assert names == ["python", "versions", "optional", "onnxruntime", "providers", "cuda",
                     "openvino", "threads", "extension", "engine", "processor", "cache",
                     "model"]  # fmt: skip
    assert set(values["findings"][0]) == {"name", "status", "detail", "remedy"}


def test_a_damaged_bundle_is_a_fault(cli, bundle_copy):
    (bundle_copy / "tokenizer.json").write_bytes(b"{}")
    done = cli("doctor", "--model", bundle_copy)
    assert done.code == 1
    assert "FAULT: " in done.out
    assert "tokenizer.json has 2 bytes" in done.out


def test_a_bundle_that_may_not_be_read_is_a_fault(cli, bundle, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "b/mirror.json")

    monkeypatch.setattr(doctor.Encoder, "load", refused)
    done = cli("doctor", "--model", bundle)
    assert done.code == 1
    assert "FAULT: b/mirror.json: Permission denied: run as a user" in " ".join(done.out.split())


def test_no_bundle_at_all(cli, tmp_path):
    done = cli("doctor", "--model", tmp_path / "nowhere", "--json")
    assert (done.code, json.loads(done.out)["faults"]) == (1, 1)


def test_vectors_that_differ_in_a_batch_are_a_fault(bundle, monkeypatch):
    from mirror_rt.inference.bundle_model import BundleModel

    run = BundleModel.run_batch

    def wrong(self, batch, *, normalize):
        vectors = run(self, batch, normalize=normalize)
        return vectors if len(vectors) == 1 else vectors[::-1]

    monkeypatch.setattr(BundleModel, "run_batch", wrong)
    found = finding("model", bundle)
    assert found.status == "fault"
    assert found.remedy


def test_both_wheels(cli, monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: name.startswith("onnxruntime"))
    monkeypatch.setattr(doctor, "_version", lambda name: "1.2.3")
    found = finding("onnxruntime")
    assert found.status == "fault"
    assert found.detail.startswith("onnxruntime 1.2.3, onnxruntime-gpu 1.2.3, ")
    assert found.remedy.startswith("pip uninstall -y onnxruntime onnxruntime-gpu ")
    assert found.remedy.endswith("&& pip install 'mirror-rt[cpu]'")
    assert cli("doctor").code == 1


def test_no_onnxruntime(monkeypatch):
    def absent():
        raise MissingDependencyError("no onnxruntime")

    monkeypatch.setattr(doctor, "import_onnxruntime", absent)
    found = finding("onnxruntime")
    assert (found.status, found.remedy) == ("ok", None)
    assert found.detail.startswith("not installed: the native engine runs the BERT family")
    assert "pip install 'mirror-rt[cpu]'" in found.detail
    monkeypatch.setattr(doctor, "card_files", lambda: ["/dev/nvidia0"])
    found = finding("cuda")
    assert (found.status, found.remedy) == ("warning", "pip install 'mirror-rt[gpu]'")


def test_an_onnxruntime_that_does_not_load(monkeypatch):
    def broken():
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.99' not found")

    monkeypatch.setattr(doctor, "import_onnxruntime", broken)
    found = finding("onnxruntime")
    assert found.status == "fault"
    assert "GLIBCXX_3.4.99" in found.detail


@pytest.mark.parametrize(
    ("cards", "missing", "status", "detail", "remedy"),
    [
        (1, MISSING, "fault", "CUDAExecutionProvider cannot start: missing libcublas_none.so.12, "
         "libcudnn_none.so.9", "pip install 'onnxruntime-gpu[cuda,cudnn]==1.99.0'"),
        # It is no package that is missing.
        (0, ["libcuda.so.1"], "warning", "", "install the NVIDIA driver"),
        (0, [], "warning", "", ""),
        (1, [], "ok", "1 NVIDIA card, and every library", ""),
    ],
)  # fmt: skip
def test_what_cuda_lacks_is_named(gpu_wheel, cards, missing, status, detail, remedy):
    if missing == ["libcuda.so.1"] and nvidia_cards():
        pytest.skip("this machine has a driver")
    gpu_wheel(cards, missing)
    found = finding("cuda")
    assert (found.status, found.detail[: len(detail)]) == (status, detail)
    assert not remedy or found.remedy == remedy


def test_a_card_that_onnxruntime_cannot_use(monkeypatch):
    monkeypatch.setattr(doctor, "nvidia_cards", lambda: 2)
    found = finding("cuda")
    assert found.status == "warning"
    assert found.detail.startswith("2 NVIDIA cards, and this onnxruntime has no CUDA")
    assert found.remedy == "pip uninstall -y onnxruntime && pip install 'mirror-rt[gpu]'"


@pytest.mark.parametrize("wheel", ["gpu", "cpu"])
def test_a_driver_that_fails_is_no_missing_card(gpu_wheel, monkeypatch, wheel):
    if wheel == "gpu":
        gpu_wheel(cards=0, missing=[])
    monkeypatch.setattr(doctor, "driver_fault", lambda: "the NVIDIA driver does not start")
    found = finding("cuda")
    assert found.status == ("fault" if wheel == "gpu" else "warning")
    assert "the NVIDIA driver does not start" in found.detail
    assert "install the NVIDIA driver again" in found.remedy


def test_libraries_are_found_missing_with_and_without_ldd(tmp_path, monkeypatch):
    fake = make_onnxruntime(tmp_path, missing=MISSING)
    library = tmp_path / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    assert fake.__version__
    assert missing_libraries(library) == MISSING
    monkeypatch.setenv("PATH", "")
    assert missing_libraries(library) == MISSING[:1]  # the loader stops at the first


def test_a_starved_container(monkeypatch):
    monkeypatch.setattr(doctor, "cpu_budget", lambda: CpuBudget(8, 0.5, "/sys/fs/cgroup/cpu.max"))
    found = finding("threads")
    assert found.status == "warning"
    assert "quota of 0.5 processors in /sys/fs/cgroup/cpu.max" in found.detail


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "file" / "cache"))
    found = finding("cache")
    assert found.status == "fault"
    assert "MIRROR_RT_CACHE" in found.remedy
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "new"))
    assert finding("cache").status == "ok"
    assert not os.path.lexists(tmp_path / "new")
