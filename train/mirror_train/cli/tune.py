"""The command `mirror-rt tune`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from mirror_rt.cli.parsing.parser import UsageError
from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import check_free
from mirror_train.cli.tune_joint import JOINT_BASE, JointRun, joint_run
from mirror_train.cli.tune_languages import first_strings, run_languages, with_base
from mirror_train.cli.tune_options import INSTALLED, TuneOptions
from mirror_train.compute.launch import is_first_process
from mirror_train.data.thesaurus import load_thesaurus
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import load_recipe
from mirror_train.systems.options import print_result
from mirror_train.training.fit import UNSPACED, letters_by_script
from mirror_train.training.run_config import TrainConfig
from mirror_train.training.teacher_model import AUTO, known_languages

if TYPE_CHECKING:
    from mirror_train.model.pretrained import Pretrained

logger = logging.getLogger("mirror_train")

_MOST_WORDS = 5  # of a phrase; a longer string is a sentence
_LETTERS = 2  # of a word in scripts without spaces, about
_SAMPLE = 1000


@dataclass(frozen=True, kw_only=True)
class Tune(TuneOptions):
    """Tune a masked language model on raw strings, without labels, by Mirror-BERT.

    Writes an ordinary Hugging Face folder plus mirror.json; one for each language of --lang en,fr.

    Examples:
        mirror-rt tune --words en --out tuned
        mirror-rt tune bert-base-uncased --data lines.txt --out tuned
        mirror-rt train mirror --words en --out tuned
        mirror-rt tune --thesaurus en --out tuned
        mirror-rt tune --words en --out tuned --checkpoint-every 20
        mirror-rt tune --words en --out tuned --resume
        mirror-rt tune --words en --out tuned --loss-batch 2000
        mirror-rt tune multilingual-e5-small --words en --teacher tuned --out taught
        mirror-rt tune --lang en,fr --joint --thesaurus --teacher tuned --out taught
        mirror-rt tune --lang all --teacher auto --out taught
        mirror-rt tune --recipe simcse --data lines.txt --out tuned
        mirror-rt tune --recipe simcse-nli --data snli_1.0_train.jsonl --data-format nli --out tuned
        mirror-rt tune --recipe mirror-ms --data synonyms.tsv --data-format synonyms --out tuned
        mirror-rt tune --lang en,fr,ru --out TUNED
        mirror-rt tune --lang en,fr,ru --engine ray --worker-cpus 4 --out /shared/TUNED
        mirror-rt tune --thesaurus --lang en,fr,ru --out TUNED
        mirror-rt tune --lang en,fr,ru --joint --dictionary en-fr.tsv --out tuned
        mirror-rt tune mbert --recipe sentence --lang en,ru --words sentences --data DIR --out TUNED
        torchrun --nproc-per-node 4 -m mirror_rt.cli tune --words en --out tuned
    """

    def run(self) -> None:
        """Run the command, in the way that its options ask for."""
        languages, data = self.languages, self.strings.data
        file = self.synonyms.thesaurus or (data is not None and not data.is_dir())
        if self.strings.longer_than is not None and (data is None or data.is_dir()):
            raise ConfigError("--longer-than goes with a file as --data")
        ready = self.config.values().get("teacher") == Path(AUTO) and not file
        if languages.joint or (ready and self.strings.lang):
            self._tune_joint()
        elif languages.dictionary or languages.installed:
            raise ConfigError("--dictionary and --installed go with --joint")
        elif self.strings.lang and not file:
            data_of_first = None if self.recipe else first_strings(self.strings, languages)
            name = self._recipe_for(data_of_first)
            run_languages(self, name, self._config(name))
        else:
            self._tune_one()

    def _tune_one(self) -> None:
        self._check_one_language()
        # The run checks this, too, but seconds later: it imports torch.
        check_free(self.out, overwrite=self.config.values().get("overwrite", False))
        data = None if self.recipe else self._strings()
        config = self._config(self._recipe_for(data))
        self._tune(data or self._strings(), config, self.model)

    def _tune_joint(self) -> None:
        self._check_no_engine()
        if self.synonyms.thesaurus:
            raise ConfigError(
                "--joint takes the thesauri that are installed for its languages: pass --thesaurus "
                "without a value"
            )
        taught, synonyms = self._follows(), self.synonyms.thesaurus is not None
        # The pairs say which recipe it is; mistakes in the options are found before they are read.
        config = self._config(self.recipe or ("teacher" if taught else "word-plus"))
        joint = joint_run(
            self.strings,
            self.languages,
            seed=config.seed,
            synonyms=synonyms,
            known=partial(known_languages, config) if taught else tuple,
            contrast_words=self.recipe is not None,
        )
        if self.recipe is None:
            pairs = joint.data.first != joint.data.second
            config = self._config(self._joint_recipe(taught=taught, pairs=pairs))
        self._tune(joint.data, config, self.model or JOINT_BASE, joint)

    def _config(self, recipe: str) -> TrainConfig:
        changed = load_recipe(recipe).replace(**self.changes.values())
        return self.config.make(recipe=changed, show_progress_bar=not self.quiet)

    def _tune(
        self,
        data: TrainingData,
        config: TrainConfig,
        model: str | None,
        joint: JointRun | None = None,
    ) -> None:
        from mirror_train.training.tune import tune

        config = with_base(config, model, data.language)
        if model is None and data.language is not None and is_first_process():
            print(f"base model {config.model}, for {data.language} (--model names another)")
        report = tune(
            data, config, on_base=partial(_look_at, data, config, joint, not self.languages.json)
        )
        if not is_first_process():
            return
        if joint is not None:
            joint.print_result(config, as_json=self.languages.json)
        if not self.languages.json:
            print_result(report)

    def _recipe_for(self, data: TrainingData | None) -> str:
        """Return the recipe that is named, or else the one for the strings."""
        if self.recipe is not None:
            return self.recipe
        if self._follows():
            return self._say("teacher", "to follow a teacher")
        if self.synonyms.thesaurus is not None:
            return self._say("synonyms", "for the synonyms of a thesaurus")
        if data is None:
            return self._say("word", "for words")
        return self._say(*default_recipe(data, self.strings.data_format))

    def _joint_recipe(self, *, taught: bool, pairs: bool) -> str:
        """Return the recipe for strings of many languages, or pairs of different ones."""
        chosen = {
            (False, False): ("word-plus", "for strings of many languages"),
            (False, True): ("joint", "for pairs of many languages"),
            (True, False): ("teacher", "to follow a teacher"),
            (True, True): (
                "joint-teacher",
                "to follow a teacher, and contrast pairs of all languages",
            ),
        }
        return self._say(*chosen[taught, pairs])

    def _follows(self) -> bool:
        """Tell whether there is a teacher that is followed, and not a guide."""
        return "teacher" in self.config.values() and "guide_margin" not in self.changes.values()

    def _say(self, recipe: str, reason: str) -> str:
        if is_first_process() and not self.languages.json:
            print(f"recipe {recipe}, {reason} (--recipe names another)")
        return recipe

    def _check_no_engine(self) -> None:
        if self.languages.engine:
            raise ConfigError("--engine goes with --lang alone: its languages are the tasks")

    def _check_one_language(self) -> None:
        self._check_no_engine()
        thesaurus, lang = self.synonyms.thesaurus, self.strings.language
        given = [self.strings.data, self.strings.words, thesaurus]
        if len(given) - given.count(None) != 1:
            raise UsageError(
                "pass one of --data FILE, --words LANG and --thesaurus LANG, or --lang TAG,... "
                "alone"
            )
        if thesaurus == INSTALLED:
            raise ConfigError(
                "--thesaurus names no language: pass --thesaurus LANG, or --lang TAG,..."
            )
        if lang is not None and "," in lang:
            raise ConfigError(
                f"--lang {lang}: the file {self.strings.data or thesaurus} has one language "
                "(--thesaurus without a value takes the one that is installed for each)"
            )
        if self.languages.json or self.languages.recipes is not None:
            raise ConfigError("--json and --recipes go with --lang alone")

    def _strings(self) -> TrainingData:
        strings, thesaurus = self.strings, self.synonyms.thesaurus
        if thesaurus is None:
            return strings.read()
        if strings.data_format:
            raise ConfigError("--data-format goes with --data, not with --thesaurus")
        data = load_thesaurus(thesaurus, language=strings.language, top=strings.top)
        if is_first_process():
            licence = (data.origin or {})["license"]
            print(f"{data.source}: {len(data)} pairs of synonyms (licence: {licence})")
        return data


def _look_at(
    data: TrainingData, config: TrainConfig, joint: JointRun | None, say: bool, base: Pretrained
) -> None:
    from mirror_train.training.fit import warn_of_run
    from mirror_train.training.pooling import describe_vectors

    warn_of_run(data, base, config)
    if say:
        print(describe_vectors(base, config))
    if joint is not None:
        joint.measure_base(base, config)


def default_recipe(data: TrainingData, data_format: str | None) -> tuple[str, str]:
    """Return the name of the recipe for strings to tune on, and the reason for it."""
    if data_format == "synonyms":
        return "mirror-ms", "for concepts with several names"
    if data.hard_negatives is not None:
        return "simcse-nli", "for strings with negatives of their own"
    sample = data.first[:_SAMPLE]
    scripts = letters_by_script(sample)
    if 2 * sum(scripts[one] for one in UNSPACED) > scripts.total():
        size = median(len(text) / _LETTERS for text in sample)
    else:
        size = median(len(text.split()) for text in sample)
    if size > _MOST_WORDS:
        return "sentence", f"for sentences: half of the strings have {size:g} words or more"
    return "word", f"for words and phrases: half of the strings have {size:g} or fewer words"
