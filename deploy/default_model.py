"""Build the data wheel from which `Encoder.load("all-MiniLM-L6-v2")` takes its bundle.

It exports the model from its original weights, whose hash is checked, as fp32 and int8, and packs
the bundle into a wheel without code. A folder with that wheel is an index for pip:

    python deploy/default_model.py --out index
    PIP_FIND_LINKS=index python -c 'from mirror_rt import Encoder; Encoder.load("all-MiniLM-L6-v2")'

The wheel has the version of the release if the bundle has the pin in
mirror_rt/bundle/ready_models.py. Otherwise (another version of torch, another model) it has a local
version, 1.0.0+local, and the pin to enter there is printed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.ready_models import READY_MODELS, ReadyModel, pin_of
from mirror_rt.errors import MirrorError
from mirror_rt.io.atomic import new_file

_ROOT = Path(__file__).resolve().parent.parent
_DATE = (2026, 1, 1, 0, 0, 0)  # one for all files, so that the same bundle gives the same wheel
_INIT = '"""A bundle of mirror_rt, as data: `mirror_rt.Encoder.load` finds it by its model."""\n'
_METADATA = """\
Metadata-Version: 2.4
Name: {package}
Version: {version}
Summary: A ready bundle of {source} (ONNX, fp32 and int8) for mirror-rt.
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Requires-Python: >=3.11
Description-Content-Type: text/markdown

"""
_NOTICE = """\
The weights are those of https://huggingface.co/{source}, published under the Apache License 2.0 by
the authors of sentence-transformers, and exported to ONNX by mirror-rt. The int8 graph is a
quantised form of them.
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: mirror-rt\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def main() -> int:
    """Export the model, unless a bundle is given, and write the wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("index"), help="folder of the wheel")
    parser.add_argument("--bundle", type=Path, help="pack this bundle instead of exporting one")
    arguments = parser.parse_args()
    model = READY_MODELS[0]
    try:
        with tempfile.TemporaryDirectory() as temporary:
            bundle = arguments.bundle or _export(model, Path(temporary) / "bundle")
            wheel = write_wheel(model, bundle, arguments.out)
    except MirrorError as error:
        sys.exit(f"{parser.prog}: error: {error}")
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


def write_wheel(model: ReadyModel, bundle: Path, folder: Path) -> Path:
    """Write a bundle as a data wheel into a folder, and return its path.

    Raises:
        BundleError: the bundle is none, or a file of it differs from its manifest.
    """
    manifest = Manifest.read(bundle)
    manifest.verify(bundle)
    pin = pin_of(manifest)
    if pin != model.pin:
        print(f"not the bundle of the release: its pin is {pin}", file=sys.stderr)
    version = model.version if pin == model.pin else f"{model.version}+local"
    info = f"{model.module}-{version}.dist-info"
    card = (bundle / Layout.card).read_text(encoding="utf-8")
    contents: dict[str, bytes | Path] = {
        f"{model.module}/__init__.py": _INIT.encode(),
        **{f"{model.module}/{name}": bundle / name for name in (Layout.manifest, *manifest.files)},
        f"{info}/licenses/LICENSE": _ROOT / "LICENSE",
        f"{info}/licenses/NOTICE": _NOTICE.format(source=model.source).encode(),
        f"{info}/METADATA": _describe(model, version, card),
        f"{info}/WHEEL": _WHEEL.encode(),
    }
    path = folder / f"{model.module}-{version}-py3-none-any.whl"
    with new_file(path, overwrite=True) as file:
        _write(file, contents, f"{info}/RECORD")
    return path


def _export(model: ReadyModel, out: Path) -> Path:
    from mirror_export import ExportConfig, export_bundle

    config = ExportConfig(model.source, out, precisions=("fp32", "int8"))
    export_bundle(config, show_progress_bar=True)
    return out


def _describe(model: ReadyModel, version: str, card: str) -> bytes:
    body = card.split("---\n", 2)[-1]  # without the front matter of model hubs
    head = _METADATA.format(package=model.package, version=version, source=model.source)
    return (head + body).encode()


def _write(file: IO[bytes], contents: dict[str, bytes | Path], record: str) -> None:
    lines = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in contents.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(_entry(name), data)
        archive.writestr(_entry(record), "\n".join([*lines, f"{record},,", ""]))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return entry


if __name__ == "__main__":
    sys.exit(main())
