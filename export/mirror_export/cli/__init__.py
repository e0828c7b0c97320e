"""List the exporting commands; `mirror-rt` finds the list by an entry point."""

from mirror_rt.cli.commands import command_of

__all__ = ["COMMANDS"]

_DEMO = (("matplotlib", "demo"), ("wordfreq", "demo"))
_EXPORT = tuple((name, "export") for name in ("torch", "transformers", "onnx", "onnxscript"))
_MAKE = {
    "demo": ("tune, export, encode and compare, on real words", (*_DEMO, *_EXPORT)),
    "align": ("map the languages of a pack into one vector space", _EXPORT),
    "export": ("turn a tuned folder into a bundle, checked against PyTorch", _EXPORT),
}

COMMANDS = tuple(
    command_of("mirror_export.cli", name, "make a model", text, *needed)
    for name, (text, needed) in _MAKE.items()
)
