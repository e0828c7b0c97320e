"""The command `mirror-rt tune --objective`: a cross-encoder from pairs, with or without labels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mirror_rt.errors import ConfigError, Setting
from mirror_train.cli.training_options import print_result
from mirror_train.cli.tune_options import TuneOptions
from mirror_train.compute.launch import is_first_process
from mirror_train.data.labelled_examples import Examples
from mirror_train.pairs.multitask_data import names_in
from mirror_train.pairs.pair_data import read_labelled_pairs, read_unlabelled_pairs
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe, TransEncoderRecipe
from mirror_train.training.run_config import CrossEncoderConfig


def run_pairs(call: TuneOptions) -> None:
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


def _check_options(call: TuneOptions) -> None:
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
