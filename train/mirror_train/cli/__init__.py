"""The list of the commands that tune, which `mirror-rt` finds by an entry point."""

from mirror_rt.cli.commands import commands_of

__all__ = ["COMMANDS"]

_HERE, _MAKE = "mirror_train.cli", "make a model"
_TORCH = (("torch", "train"), ("transformers", "train"))

COMMANDS = (
    *commands_of(
        _HERE,
        _MAKE,
        {"tune": "tune a masked language model on raw strings (Mirror-BERT)"},
        *_TORCH,
    ),
    *commands_of(
        _HERE,
        _MAKE,
        {"recipes": "show which base model and hyper-parameters a language is tuned with"},
    ),
    *commands_of(
        _HERE,
        _MAKE,
        {
            "train flow": "fit a normalising flow behind an encoder that stays as it is "
            "(BERT-flow)",
            "train cf": "tune with masked tokens, then fit a flow that keeps the loss (BERT-CF)",
            "train burt": "train one encoder for words, phrases and sentences on labelled pairs "
            "(BURT)",
            "train multitask": "fine-tune with labels: sentiment, paraphrase and similarity at "
            "once",
        },
        *_TORCH,
    ),
    *commands_of(
        _HERE,
        "measure",
        {"study": "repeat the paper's analyses on your model and data, with tables and plots"},
        *_TORCH,
    ),
)
