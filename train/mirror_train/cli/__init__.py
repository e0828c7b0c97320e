"""The list of the commands that tune, which `mirror-rt` finds by an entry point."""

from mirror_rt.cli.commands import commands_of

__all__ = ["COMMANDS"]

COMMANDS = (
    *commands_of(
        "mirror_train.cli",
        {
            "tune": "tune a masked language model on raw strings (Mirror-BERT)",
            "flow": "fit a normalising flow behind an encoder that stays as it is (BERT-flow)",
            "cf": "Mirror-BERT with masked tokens, then a flow that keeps its loss (BERT-CF)",
            "burt": "one encoder for words, phrases and sentences, from labelled pairs (BURT)",
            "multitask": "fine-tune with labels: sentiment, paraphrase and similarity at once",
            "study": "the paper's analyses, on your model and data: tables and plots over seeds",
        },
        ("torch", "train"),
        ("transformers", "train"),
    ),
    *commands_of(
        "mirror_train.cli",
        {"recipes": "which base model and hyper-parameters a language is tuned with"},
    ),
)
