"""The command `mirror-rt tune --lang`: the jobs of the languages, and the table of results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_rt.errors import ConfigError, ModelError, require
from mirror_rt.io.tables import shown
from mirror_rt.languages.tags import lookup_chain, normalize_tag
from mirror_train.cli.tune_options import LanguageOptions, TuneOptions
from mirror_train.compute.launch import check_one_process
from mirror_train.data.installed_thesauri import find_thesaurus, has_thesaurus
from mirror_train.data.strings import listed_languages, load_training_data, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.base_models import LanguageRecipe, LanguageTable, load_languages
from mirror_train.systems.options import StringOptions
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from mirror_train.languages.language_job import LanguageJob, LanguageResult

_HEADER = ["language", "base", "strings", "steps", "seconds", "isotropy", "mean cosine",
           "uniformity", "synonyms", "score", "result"]  # fmt: skip
_REVISION = "--revision goes with --model: languages have base models of their own"
# The files of a language's scored pairs below --data, by level.
_PAIRS = {
    "word": ("multisimlex/{}.tsv", "{}.tsv"),
    "phrase": ("multisimlex/{}.tsv", "{}.tsv"),
    "sentence": ("sts/stsb-{}-test.tsv", "{}.tsv"),
}


def run_languages(call: TuneOptions, recipe: str, template: TrainConfig) -> None:
    """Tune for the languages of the command line.

    They share the settings of `template`, whose recipe gives the level. Nothing is done where an
    option cannot be used; where tuning fails for some languages, the others are written before the
    ModelError.
    """
    _check_options(call, template)
    if template.recipe.level == "word" and not (call.strings.words or call.synonyms.thesaurus):
        # Before the imports of torch, which take long.
        require("wordfreq", extra="demo", purpose="--lang without --words")
    from mirror_train.languages.tune_languages import tune_languages

    jobs = _jobs(call, recipe, template)
    results = tune_languages(jobs, cluster=call.languages, on_result=_tell)
    print(shown(results, _HEADER, _row, call.languages.json))
    if failed := [result.language for result in results if result.status == "failed"]:
        raise ModelError(f"{len(failed)} of {len(results)} languages failed: {', '.join(failed)}")
    if not call.languages.json:
        print(f"next: mirror-rt export --all {call.out} --out PACK")


def first_strings(strings: StringOptions, languages: LanguageOptions) -> TrainingData | None:
    """Return the strings of the first language; None for frequent words."""
    if strings.words is None:
        return None
    tag = language_tags(str(strings.language), load_languages(languages.recipes))[0]
    path = _find(Path(strings.words), ("{}.txt",), tag)
    return None if path is None else load_training_data(path)


def _check_options(call: TuneOptions, template: TrainConfig) -> None:
    strings = call.strings
    if strings.data_format:
        raise ConfigError("--data-format goes with a file as --data, not with --lang alone")
    if template.revision and not call.model:
        raise ConfigError(_REVISION)
    if call.synonyms.thesaurus is not None and strings.words is not None:
        raise ConfigError("--thesaurus takes the place of --words: pass one of them")
    if strings.top is not None and strings.words is not None:
        raise ConfigError("--top goes with the words of wordfreq, not with --words DIR")
    for option, folder in (("--words", strings.words), ("--data", strings.data)):
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(f"{option} {folder}: with --lang TAG alone, a folder is expected")
    check_one_process("--lang TAG,...")


def _jobs(call: TuneOptions, recipe: str, template: TrainConfig) -> list[LanguageJob]:
    table, data = load_languages(call.languages.recipes), call.strings.data
    tags = language_tags(
        str(call.strings.language), table, synonyms=call.synonyms.thesaurus is not None
    )
    rows = [table.recipe(tag, template.recipe.level, base=call.model) for tag in tags]
    if recipe != template.recipe.level:  # --recipe overrides the table
        changed: dict[str, Any] = {"recipe": template.recipe, "level_pooling": None}
        rows = [dataclasses.replace(row, **changed) for row in rows]
    jobs = [_job(row, template, call, table) for row in rows]
    if data is not None and not any(job.pairs for job in jobs):
        files = " or ".join(_PAIRS[template.recipe.level]).format(*["TAG"] * 2)
        raise ConfigError(f"--data {data} has no scored pairs: expected {files}")
    return jobs


def _job(
    row: LanguageRecipe, template: TrainConfig, call: TuneOptions, table: LanguageTable
) -> LanguageJob:
    from mirror_train.languages.language_job import LanguageJob

    config = dataclasses.replace(
        _with_base(row, template, table),
        recipe=row.recipe.replace(**call.changes.values()),
        out=template.out / row.language,
    )
    given, synonyms = call.strings, call.synonyms.thesaurus is not None
    strings = find_thesaurus(row.language) if synonyms else _strings(row, given.words)
    patterns = _PAIRS[row.recipe.level]
    pairs = None if given.data is None else _find(given.data, patterns, row.language)
    return LanguageJob(row.language, config, strings, given.top, pairs, table, synonyms)


def with_base(config: TrainConfig, model: str | None, language: str | None) -> TrainConfig:
    """Return the settings of one run with its base model, chosen as for `--lang` alone.

    That is the model given, by its name in the table or any other, else the one that the table has
    for the language; without either, the default model.
    """
    table = load_languages()
    if model is not None:
        row = LanguageRecipe(language or "", "", (), table.base(model), config.recipe)
    elif language is None:
        return config
    elif config.revision:
        raise ConfigError(_REVISION)
    else:
        row = table.recipe(language, config.recipe.level)
    return _with_base(dataclasses.replace(row, recipe=config.recipe), config, table)


def _with_base(row: LanguageRecipe, template: TrainConfig, table: LanguageTable) -> TrainConfig:
    base, pooling = row.base, row.level_pooling
    if pooling is None and base in table.bases.values():
        pooling = base.pooling
    named = template.pooling != "auto" or row.recipe.pooling == "mean-without-special"
    chosen: dict[str, Any] = {}
    if pooling is not None and pooling != "auto" and not named:
        of = row.language if row.level_pooling else base.name
        chosen = {"pooling": pooling, "pooling_from": f"by the row {of} of the table"}
    revision = template.revision or base.revision
    return dataclasses.replace(template, model=base.model, revision=revision, **chosen)


def language_tags(text: str, table: LanguageTable, *, synonyms: bool = False) -> list[str]:
    """Return the languages of the command line; refuse unknown ones and repetitions.

    `all` means every language of the table that wordfreq has a list of words of its own for, or
    those whose thesaurus is installed, to tune on `synonyms`.
    """
    if text.strip() == "all":
        if not synonyms:
            return [tag for tag in listed_languages() if tag in table.languages]
        installed = [tag for tag in sorted(table.languages) if has_thesaurus(tag)]
        if not installed:
            raise ConfigError("no thesaurus is installed: install Debian's mythes-fr, for example")
        # nb and no have one thesaurus.
        return [*{find_thesaurus(tag): tag for tag in reversed(installed)}.values()][::-1]
    given = [tag.strip() for tag in text.split(",") if tag.strip()]
    if not given:
        raise ConfigError("--lang names no language: expected en,fr for example, or all")
    for tag in given:
        table.find(tag)
    tags = [normalize_tag(tag) for tag in given]
    if repeated := [tag for tag in tags if tags.count(tag) > 1]:
        raise ConfigError(f"--lang has {repeated[0]} more than once")
    return tags


def _strings(row: LanguageRecipe, words: str | None) -> Path | None:
    """Return the file of a language's strings; None for the words of wordfreq."""
    if words is not None:
        return find_strings(Path(words), row.language)
    if row.recipe.level != "word":
        raise ConfigError(
            f"recipe {row.recipe.level} needs strings: pass --words DIR, a folder with "
            f"{row.language}.txt"
        )
    try:
        word_list(row.language, top=1)
    except ConfigError as error:
        advice = f"for your own, pass --words DIR with {row.language}.txt"
        raise ConfigError(f"{error}; {advice}") from error
    return None


def find_strings(words: Path, tag: str) -> Path:
    """Return the file of a language's strings in a folder; ConfigError where there is none."""
    if (path := _find(words, ("{}.txt",), tag)) is None:
        raise ConfigError(f"--words {words} has no {tag}.txt")
    return path


def _find(folder: Path, patterns: Sequence[str], tag: str) -> Path | None:
    """Return the first file that exists for the tag or a more general one; None for no file."""
    names = [pattern.format(t) for t in lookup_chain(tag) for pattern in patterns]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _tell(result: LanguageResult) -> None:
    text = {
        "tuned": f"{result.strings} strings in {result.seconds} s, pooling {result.pooling}",
        "kept": "kept, finished earlier",
        "failed": f"failed: {result.error}",
    }[result.status]
    print(f"{result.language}: {text}", file=sys.stderr, flush=True)


def _row(result: LanguageResult) -> list[str]:
    def both(name: str, digits: int) -> str:
        figures = [attrgetter(name)(one) for one in (result.before, result.after) if one]
        known = len(figures) == 2 and None not in figures
        return " -> ".join(f"{figure:.{digits}f}" for figure in figures) if known else "-"

    names = ("isotropy_score_normalized", "mean_cosine", "uniformity")
    return [
        result.language,
        result.model,
        *("-" if count is None else str(count) for count in (result.strings, result.steps)),
        "-" if result.seconds is None else f"{result.seconds:.1f}",
        *(both(f"geometry.{name}", 2) for name in names),
        *(both(name, 3) for name in ("synonyms", "score")),
        result.status if result.error is None else f"failed: {result.error}",
    ]
