"""List the exporting commands; `mirror-rt` finds the list by an entry point."""

from mirror_rt.cli.commands import command_of

__all__ = ["COMMANDS"]

_DEMO = (("matplotlib", "demo"), ("wordfreq", "demo"))
_EXPORT = tuple((name, "export") for name in ("torch", "transformers", "onnx", "onnxscript"))
_HELP = "turn a tuned folder into a bundle, checked against PyTorch"

COMMANDS = (
    command_of(
        "mirror_export.cli",
        "demo",
        "make a model",
        "tune, export, encode and compare, on real words",
        *_DEMO,
        *_EXPORT,
    ),
    command_of(
        "mirror_export.cli",
        "align",
        "make a model",
        "map the languages of a pack into one vector space",
        *_EXPORT,
    ),
    command_of("mirror_export.cli", "export", "make a model", _HELP, *_EXPORT),
)
