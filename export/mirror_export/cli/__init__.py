"""List the exporting commands; `mirror-rt` finds the list by an entry point."""

from mirror_rt.cli.commands import commands_of

__all__ = ["COMMANDS"]

_EXPORT = tuple((name, "export") for name in ("torch", "transformers", "onnx", "onnxscript"))

COMMANDS = (
    *commands_of(
        "mirror_export.cli",
        "make a model",
        {"export": "turn a tuned folder into a bundle, checked against PyTorch"},
        *_EXPORT,
    ),
    *commands_of(
        "mirror_export.cli",
        "make a model",
        {"demo": "tune, export, encode and compare, on real words"},
        ("matplotlib", "demo"),
        ("wordfreq", "demo"),
        *_EXPORT,
    ),
)
