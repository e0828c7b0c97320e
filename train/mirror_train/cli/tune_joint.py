"""The command `mirror-rt tune --lang TAG,... --joint`, which tunes one encoder for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.readers.tables import read_lexicon
from mirror_rt.io.tables import shown
from mirror_train.cli.tune_languages import find_strings, language_tags
from mirror_train.cli.tune_options import LanguageOptions
from mirror_train.compute.launch import is_first_process
from mirror_train.data.freedict import installed_dictionaries, read_freedict
from mirror_train.data.installed_thesauri import has_thesaurus
from mirror_train.data.strings import TOP, load_training_data, word_list
from mirror_train.data.thesaurus import load_thesaurus
from mirror_train.data.training_data import TrainingData, is_of
from mirror_train.recipes.base_models import load_languages
from mirror_train.systems.options import StringOptions

if TYPE_CHECKING:
    from mirror_rt.encoding.batch_encoder import EmbeddingModel
    from mirror_train.languages.joint import Entries, HeldOut
    from mirror_train.model.pretrained import Pretrained
    from mirror_train.training.run_config import TrainConfig

JOINT_BASE = "multilingual-e5-small"  # knows all languages of the table

logger = logging.getLogger("mirror_train")


@dataclass(slots=True)
class JointRun:
    """The strings of all languages, and held-out entries to measure the result with."""

    data: TrainingData
    held: list[HeldOut]
    before: list[float] = field(default_factory=list)

    def measure_base(self, base: Pretrained, config: TrainConfig) -> None:
        """Measure the base model, with the pooling that it declares, else the mean."""
        from mirror_train.compute.precision import resolve_device
        from mirror_train.model.torch_encoder import TorchEncoder

        self.before = self._ranks(TorchEncoder(base, device=resolve_device(config.device)))

    def print_result(self, config: TrainConfig, *, as_json: bool) -> None:
        """Measure the tuned encoder, and print the table."""
        from mirror_train.model.torch_encoder import TorchEncoder

        after = self._ranks(TorchEncoder.load(config.out, device=config.device))
        rows = [
            {"source": one.name, "held_out": len(one.entries), "before": before, "after": rank}
            for one, before, rank in zip(self.held, self.before, after, strict=True)
        ]
        if rows or as_json:
            header = ["held out of", "entries", "reciprocal rank before", "after"]
            print(shown(rows, header, _cells, as_json))

    def _ranks(self, model: EmbeddingModel) -> list[float]:
        return [one.reciprocal_rank(model) for one in self.held]


def _cells(row: dict[str, str | int | float]) -> list[str]:
    return [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]


def joint_run(
    strings: StringOptions,
    languages: LanguageOptions,
    *,
    seed: int,
    synonyms: bool,
    known: Callable[[], Collection[str]],
    contrast_words: bool = True,
) -> JointRun:
    """Read and join the strings of the languages, and the entries of the dictionaries.

    Synonyms of the installed thesauri are among the pairs where they are asked for. `known` returns
    the languages that a teacher knows (see `joint_data`). Without `contrast_words` the words of all
    other languages are left out, because beside a teacher they take more than they give.
    """
    if strings.language is None or strings.data is not None:
        raise ConfigError("--joint goes with --lang TAG,TAG, without --data")
    tags = language_tags(strings.language, load_languages(languages.recipes))
    if len(tags) < 2:
        raise ConfigError("--joint needs two languages: --lang en,fr for example")
    if strings.words is not None and strings.top is not None:
        raise ConfigError("--top goes with the words of wordfreq, not with --words DIR")
    sources: dict[str, TrainingData | Entries] = {tag: _words(strings, tag) for tag in tags}
    from mirror_train.languages.joint import hold_out, joint_data  # takes long, after all checks

    held = []
    for name, entries in _dictionaries(languages, tags).items():
        sources[name], out = hold_out(name, entries, seed=seed)
        held.append(out)
    thesauri = _thesauri(tags) if languages.installed or synonyms else {}
    if synonyms and not thesauri:
        raise ConfigError("--thesaurus: no thesaurus of these languages is installed")
    for name, entries in thesauri.items():
        kept, out = hold_out(name, entries, seed=seed)
        held.append(out)
        if synonyms:
            tag = name.partition(" ")[0]
            sources[name] = TrainingData.of_pairs(kept, name, language=tag)
    taught, left_out = known(), ""
    if taught and not contrast_words:
        left_out = _leave_out_words(sources, [tag for tag in tags if not is_of(tag, taught)])
    data = joint_data(
        sources,
        temperature=languages.share_temperature,
        seed=seed,
        pairs=languages.pairs,
        known=taught,
    )
    if is_first_process() and not languages.json:
        print(f"{len(data)} pairs: {data.source}{left_out}")
    return JointRun(data, held)


def _leave_out_words(sources: dict[str, TrainingData | Entries], tags: list[str]) -> str:
    """Leave the words of languages out, unless nothing else would be left; say which."""
    if not tags or len(tags) == len(sources):
        return ""
    for tag in tags:
        del sources[tag]
    return (
        f"\nthe words of {', '.join(tags)} are left out, because they gain nothing beside a "
        "teacher (--recipe joint-teacher keeps them)"
    )


def _words(strings: StringOptions, tag: str) -> TrainingData:
    if strings.words is None:
        return word_list(tag, top=TOP if strings.top is None else strings.top)
    return load_training_data(find_strings(Path(strings.words), tag), language=tag)


def _dictionaries(languages: LanguageOptions, tags: list[str]) -> dict[str, Entries]:
    """Return the entries of the dictionaries given, and with --installed of those installed."""
    found: dict[str, Entries] = {path.name: read_lexicon(path) for path in languages.dictionary}
    if not languages.installed:
        return found
    readers = {}
    for name, path in installed_dictionaries(tags).items():
        source, target = name.split("-")
        readers[f"{name} FreeDict"] = partial(read_freedict, path, (source, target))
    return found | _usable(readers)


def _thesauri(tags: list[str]) -> dict[str, Entries]:
    """Return the synonyms of the installed thesauri.

    By default they measure the run: without a teacher, synonyms among the pairs lowered the
    similarity of words on the development halves.
    """
    return _usable(
        {f"{tag} synonyms": partial(_synonyms, tag) for tag in tags if has_thesaurus(tag)}
    )


def _usable(readers: Mapping[str, Callable[[], Entries]]) -> dict[str, Entries]:
    """Read all sources that can be read, and warn of the others."""
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except DataError as error:
            logger.warning("%s left out: %s", name, error)
    return found


def _synonyms(tag: str) -> Entries:
    data = load_thesaurus(tag)
    return list(zip(data.first, data.second, strict=True))
