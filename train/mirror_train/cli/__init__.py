"""The list of the commands that tune, which `mirror-rt` finds by an entry point."""

from mirror_rt.cli.commands import Command, command_of
from mirror_train.systems import SYSTEMS

__all__ = ["COMMANDS"]

_TORCH = (("torch", "train"), ("transformers", "train"))
_MAKE = "make a model"
_SAMPLE = "draw raw strings to tune on from SNLI, QNLI, UMLS, WikiMatrix and others"
_RECIPES = "show which base model and hyper-parameters a language is tuned with"
_STUDY = "repeat the paper's analyses on your model and data, with tables and plots"
_SYSTEMS = [
    Command(f"train {one.name}", _MAKE, one.title, one.command, _TORCH) for one in SYSTEMS.values()
]

COMMANDS = (
    # A short name of `train mirror`.
    Command("tune", _MAKE, SYSTEMS["mirror"].title, SYSTEMS["mirror"].command, _TORCH),
    *_SYSTEMS,
    command_of("mirror_train.cli", "sample", _MAKE, _SAMPLE),
    command_of("mirror_train.cli", "recipes", _MAKE, _RECIPES),
    command_of("mirror_train.cli", "study", "measure", _STUDY, *_TORCH),
)
