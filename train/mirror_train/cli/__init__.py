"""The list of the commands that tune, which `mirror-rt` finds by an entry point."""

from mirror_rt.cli.commands import command_of

__all__ = ["COMMANDS"]

_TORCH = (("torch", "train"), ("transformers", "train"))
_MAKE = {
    "tune": "tune a masked language model on raw strings (Mirror-BERT)",
    "train flow": "fit a normalising flow behind an encoder that stays as it is (BERT-flow)",
    "train cf": "tune with masked tokens, then fit a flow that keeps the loss (BERT-CF)",
    "train burt": "train one encoder for texts of all lengths on labelled pairs (BURT)",
    "finetune": "fine-tune with a decoding layer on any labelled texts or pairs",
    "train multitask": "fine-tune on labels of sentiment, paraphrase and similarity at once",
}
_SAMPLE = "draw raw strings to tune on from SNLI, QNLI, UMLS, WikiMatrix and others"
_RECIPES = "show which base model and hyper-parameters a language is tuned with"
_STUDY = "repeat the paper's analyses on your model and data, with tables and plots"

COMMANDS = (
    *(
        command_of("mirror_train.cli", name, "make a model", text, *_TORCH)
        for name, text in _MAKE.items()
    ),
    command_of("mirror_train.cli", "sample", "make a model", _SAMPLE),
    command_of("mirror_train.cli", "recipes", "make a model", _RECIPES),
    command_of("mirror_train.cli", "study", "measure", _STUDY, *_TORCH),
)
