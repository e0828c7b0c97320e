"""mirror_export: tuned encoders to ONNX bundles, checked against PyTorch. Extra `export`."""

from mirror_rt.errors import require as _require

for _module in ("torch", "transformers", "onnx", "onnxscript"):
    _require(_module, extra="export", purpose="exporting")

from mirror_export.config import ExportConfig  # noqa: E402
from mirror_export.export import export_bundle  # noqa: E402
from mirror_export.pack.export_pack import ModelResult, PackReport, export_pack  # noqa: E402
from mirror_export.pack.sources import find_models  # noqa: E402
from mirror_export.parity import ParityReport, check_parity  # noqa: E402

__all__ = [
    "ExportConfig",
    "ModelResult",
    "PackReport",
    "ParityReport",
    "check_parity",
    "export_bundle",
    "export_pack",
    "find_models",
]
