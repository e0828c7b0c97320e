"""Read the strings of `mirror-rt tune --lang TAG,... --joint`, which tunes one encoder for all."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirror_rt.errors import ConfigError
from mirror_rt.evaluation.readers.lexicon import read_lexicon
from mirror_train.cli.tune_languages import find_strings, language_tags
from mirror_train.data.strings import load_training_data, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.base_models import load_languages

# A model of the table that knows all of its languages, and the share of the sources by default.
JOINT_BASE, SHARE_TEMPERATURE = "multilingual-e5-small", 2.0


def joint_strings(arguments: argparse.Namespace) -> TrainingData:
    """Read and join the strings of the languages, and the entries of the dictionaries.

    Raises:
        ConfigError: fewer than two languages are named, one is unknown or has no strings, or
            options do not go together.
        DataError: a file cannot be used.
    """
    from mirror_train.compute.processes import is_first_process
    from mirror_train.languages.joint import Entries, joint_data

    if arguments.lang is None or arguments.data is not None or arguments.json:
        raise ConfigError("--joint goes with --lang TAG,TAG, without --data and --json")
    tags = language_tags(arguments.lang, load_languages(arguments.recipes).find)
    if len(tags) < 2:
        raise ConfigError("--joint needs two languages: --lang en,fr for example")
    if arguments.words is not None and arguments.top is not None:
        raise ConfigError("--top goes with the words of wordfreq, not with --words DIR")
    sources: dict[str, TrainingData | Entries] = {}
    for tag in tags:
        if arguments.words is None:
            top = 10_000 if arguments.top is None else arguments.top
            sources[tag] = word_list(tag, top=top)
        else:
            path = find_strings(Path(arguments.words), tag)
            sources[tag] = load_training_data(path, language=tag)
    for path in arguments.dictionary or []:
        sources[path.name] = read_lexicon(path)
    data = joint_data(sources, temperature=arguments.share_temperature, seed=arguments.seed)
    if is_first_process():
        print(f"{len(data)} pairs: {data.source}")
    return data
