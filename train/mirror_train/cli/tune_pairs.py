"""The command `mirror-rt tune --objective`: a cross-encoder from pairs, with or without labels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, Setting
from mirror_train.cli.training_options import print_result
from mirror_train.compute.launch import is_first_process
from mirror_train.data.labelled_examples import Examples
from mirror_train.pairs.multitask_data import names_in
from mirror_train.pairs.pair_data import read_labelled_pairs, read_unlabelled_pairs
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe, TransEncoderRecipe
from mirror_train.training.run_config import CrossEncoderConfig, TransEncoderConfig

if TYPE_CHECKING:
    from mirror_train.cli.tune import Tune

_ENCODER = ("encoder_epochs", "encoder_steps", "encoder_batch_size", "encoder_learning_rate")


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What a model of pairs learns from, in the place of Mirror-BERT."""

    objective: Annotated[
        Literal["mirror-bert", "cross-encoder", "trans-encoder"],
        Help("what to train: an encoder by Mirror-BERT; a cross-encoder on the labelled pairs of "
             "--data, a table with a header; or both kinds without labels (Trans-Encoder) on the "
             "pairs of --data, as OUT/cross-encoder and OUT/encoder"),
    ] = "mirror-bert"  # fmt: skip
    fields: Annotated[
        str | None,
        Help("the columns of the two texts (default: text1 and text2, sentence1 and sentence2, and "
             "other usual names); numbers from 1 on for a table without a header", "A,B"),
    ] = None  # fmt: skip
    label_field: Annotated[
        str | None, Help("the column of the label (default: score, label and other usual names)")
    ] = None
    labels: Annotated[
        str | None,
        Help("the classes in order, for labels that are numbers but no scores", "NAME,NAME"),
    ] = None
    labelled: Annotated[Given[CrossEncoderRecipe], Group(only=("both_orders", "lowest", "highest"))]
    unlabelled: Annotated[Given[TransEncoderRecipe], Group(only=("cycles", *_ENCODER))]
    cross_config: Given[CrossEncoderConfig]
    trans_config: Annotated[Given[TransEncoderConfig], Group(only=("teacher",))]

    def check_unused(self) -> None:
        """Raise ConfigError for an option that Mirror-BERT would ignore."""
        own = {name: getattr(self, name) for name in ("fields", "label_field", "labels")}
        options = {
            "cross-encoder": own | self.labelled.values(),
            "trans-encoder": self.of_trans_encoder(),
        }
        for objective, given in options.items():
            if used := [name for name, value in given.items() if value is not None]:
                raise ConfigError(Setting(used[0]), " goes with ", Setting("objective", objective))

    def of_trans_encoder(self) -> dict[str, Any]:
        """Return what was given for options of Trans-Encoder alone."""
        return self.unlabelled.values() | self.trans_config.values()


def run_pairs(call: Tune) -> None:
    """Train as the objective of the command line says, and print what was written."""
    options, data = call.pairs, call.strings.data
    _check_options(call)
    if data is None:
        raise ConfigError(Setting("objective", options.objective), " takes pairs: pass --data FILE")
    columns = names_in(options.fields)
    bars = {"show_progress_bar": not call.quiet}
    if options.objective == "cross-encoder":
        from mirror_train.pairs.cross_encoder import tune_cross_encoder

        pairs = read_labelled_pairs(
            data, fields=columns, label_field=options.label_field, labels=names_in(options.labels)
        )
        kind = f"classes {', '.join(pairs.labels)}" if pairs.labels else "scores"
        _print_rows(pairs, f"with {kind} ({pairs.left_out} without a label or a text left out)")
        config = options.cross_config.make(recipe=options.labelled.make(), **bars)
        reports = [tune_cross_encoder(pairs, config)]
    else:
        from mirror_train.pairs.trans_encoder import tune_trans_encoder

        pairs = read_unlabelled_pairs(data, fields=columns)
        _print_rows(pairs, "without labels")
        trans = options.trans_config.make(recipe=options.unlabelled.make(), **bars)
        reports = [one for one in tune_trans_encoder(pairs, trans) if one is not None]
    for report in reports if is_first_process() else ():
        print_result(report)


def _print_rows(pairs: Examples, what: str) -> None:
    if is_first_process():
        print(f"{pairs.source}: {len(pairs)} pairs {what}")


def _check_options(call: Tune) -> None:
    """Raise ConfigError for an option that goes with another objective."""
    options = call.pairs
    if options.objective == "cross-encoder":
        recipe: type[Any] = CrossEncoderRecipe
        given = options.of_trans_encoder()
    else:
        recipe, given = TransEncoderRecipe, options.labelled.values()
        given |= {"label_field": options.label_field, "labels": options.labels}
    known = {field.name for type_ in (recipe, CrossEncoderConfig) for field in fields(type_)}
    others = call.changes.values() | call.config.values()
    given |= {name: value for name, value in others.items() if name not in known}
    given |= {"recipe": call.recipe, "thesaurus": call.synonyms.thesaurus}
    for group in (call.strings, call.languages):
        mine = {one.name: getattr(group, one.name) for one in fields(group) if one.name != "data"}
        default = {one.name: one.default for one in fields(group)}
        given |= {name: value for name, value in mine.items() if value != default[name]}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            Setting(wrong[0]), " does not go with ", Setting("objective", options.objective)
        )
