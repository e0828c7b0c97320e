"""Export tuned encoders as ONNX bundles, checked against PyTorch; needs the extra `export`."""

from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from mirror_export.config import ExportConfig
    from mirror_export.export import export_bundle
    from mirror_export.pack.align import Alignment, align_pack
    from mirror_export.pack.export_pack import ModelResult, PackReport, export_pack
    from mirror_export.pack.sources import find_models
    from mirror_export.parity import ParityReport, check_parity

__all__ = [
    "Alignment",
    "ExportConfig",
    "ModelResult",
    "PackReport",
    "ParityReport",
    "align_pack",
    "check_parity",
    "export_bundle",
    "export_pack",
    "find_models",
]

__getattr__ = lazy_exports(
    __name__,
    __all__,
    ("config", "pack.sources", "parity", "pack.align", "pack.export_pack", "export"),
    extra="export",
)
