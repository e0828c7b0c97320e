"""List the exporting commands; `mirror-rt` finds the list by an entry point."""

from mirror_rt.cli.commands import commands_of

__all__ = ["COMMANDS"]

_EXPORT = tuple((name, "export") for name in ("torch", "transformers", "onnx", "onnxscript"))

COMMANDS = (
    *commands_of(
        "mirror_export.cli",
        {"export": "turn a tuned folder into a bundle, checked against PyTorch"},
        *_EXPORT,
    ),
    *commands_of(
        "mirror_export.cli",
        {"demo": "the whole main job: tune, export, encode, compare"},
        ("matplotlib", "demo"),
        ("wordfreq", "demo"),
        *_EXPORT,
    ),
)
