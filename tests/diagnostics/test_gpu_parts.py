"""The two boxes of benchmarks/gpu.sh: how they are made, and what becomes of them on arrival."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from gpu import install, pack
from gpu.steps import commit


def test_a_machine_without_git_or_card(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() == "unknown"
    assert install.architecture("cpu") == "90"
    with pytest.raises(SystemExit, match="nvidia-smi does not answer"):
        install.architecture("cuda")


@pytest.mark.parametrize(
    ("about", "loads", "compiles"),
    [
        ({}, True, False),
        ({"sources": "others"}, True, True),
        ({"architecture": "89"}, True, True),
        ({}, False, True),
        (None, True, True),
    ],
)
def test_the_wheel_is_taken_where_it_fits(tmp_path, monkeypatch, about, loads, compiles):
    box, calls = tmp_path / "1", []
    box.mkdir()
    if about is not None:
        (box / "mirror_rt-1-cp312-cp312-linux_x86_64.whl").touch()
        (box / install.ABOUT).write_text(json.dumps(install.about("90") | about))
    failures = iter([None if loads else "GLIBC_2.99 not found", None])
    monkeypatch.setattr(
        install, "succeeds", lambda command, *_, **__: calls.append(command) or True
    )
    monkeypatch.setattr(install, "environment", lambda work: None)
    monkeypatch.setattr(install, "loading_failure", lambda *_: next(failures))
    install.product(tmp_path, tmp_path, "cpu", 60)
    assert any(str(ROOT) in command for command in calls) == compiles


def test_an_environment_has_the_built_packages_and_those_of_the_machine(tmp_path, monkeypatch):
    """Even where the machine's Python has an editable install, whose finder would come first."""
    machine, work = tmp_path / "site-packages", tmp_path / "work"
    ours, gpu = work / install.PRODUCT, work / "site-onnxruntime"
    for folder in (machine / "torch", machine / "mirror_rt", machine / "onnxruntime",
                   ours / "mirror_rt", gpu / "onnxruntime"):  # fmt: skip
        folder.mkdir(parents=True)
    for name in ("_editable_skbc_mirror_rt.pth", "_editable_skbc_mirror_rt.py"):
        (machine / name).touch()
    monkeypatch.setattr(sys, "path", [str(machine)])
    install.environment(work)
    (site,) = work.glob("env/lib/python*/site-packages")
    assert {path.name: path.resolve() for path in site.iterdir()} == {
        "torch": machine / "torch", "mirror_rt": ours / "mirror_rt",
        "onnxruntime": gpu / "onnxruntime",
    }  # fmt: skip


def image(kind, architecture, size):
    data = bytearray(64 + size)
    data[:2], data[4:8] = kind.to_bytes(2, "little"), (64).to_bytes(4, "little")
    data[8:16], data[28:32] = size.to_bytes(8, "little"), architecture.to_bytes(4, "little")
    data[64:] = bytes([architecture]) * size
    return bytes(data)


@pytest.fixture
def library(tmp_path):
    """A shared library with the device code of three containers; and their images."""
    images = [
        [image(2, 80, 30), image(2, 90, 16), image(1, 90, 8)],
        [image(2, 90, 40)],
        [image(2, 80, 8)],
    ]
    data = b""
    for several in images:
        whole = b"".join(several)
        data += pack._MAGIC.to_bytes(4, "little") + bytes([1, 0, 16, 0])
        data += len(whole).to_bytes(8, "little") + whole
        data += bytes(-len(data) % 8)
    (tmp_path / "code").write_bytes(data)
    (tmp_path / "x.s").write_text('.section .nv_fatbin,"a"\n.incbin "code"\n')
    command = ["gcc", "-shared", "-nostdlib", "-o", "lib.so", "x.s"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return (tmp_path / "lib.so").read_bytes(), images


def test_only_the_code_of_one_architecture_is_packed(library, tmp_path, monkeypatch):
    data, images = library
    monkeypatch.setitem(pack._FILTERS[1], "dict_size", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr(f"onnxruntime/capi/{pack.CUDA}", data)
        wheel.writestr(f"onnxruntime/capi/{pack.LEFT_OUT}", data)
        wheel.writestr("onnxruntime/__init__.py", "x = 1\n")
    pack.pack(tmp_path / "x.whl", 90, tmp_path / "x.tar.xz")
    with tarfile.open(tmp_path / "x.tar.xz") as archive:
        names = archive.getnames()
        packed = archive.extractfile(f"onnxruntime/capi/{pack.CUDA}").read()
    assert sorted(names) == ["onnxruntime/__init__.py", f"onnxruntime/capi/{pack.CUDA}"]
    assert len(packed) == len(data)
    assert [[found.data for found in of.images] for of in pack.containers(packed)] == [
        [images[0][1]],
        [images[0][1]],  # it was for 90 alone
        [],
    ]
    with pytest.raises(SystemExit, match="no machine code for sm_75"):
        pack.pruned(data, 75)
