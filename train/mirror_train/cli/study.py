"""The command `mirror-rt study`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.cli.common import HubOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.evaluation.suites import EvaluationSet, SuiteOptions
from mirror_rt.evaluation.suites.base import scored_set
from mirror_rt.evaluation.suites.geometry import geometry_set
from mirror_rt.evaluation.suites.sentences import AVERAGED, find_sentences
from mirror_rt.io.tables import text_fields
from mirror_rt.plugins import load_plugin
from mirror_train.cli.study_run import run_and_report
from mirror_train.data.strings import load_training_data, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.mirror_studies import STUDIES
from mirror_train.experiments.setups import MirrorStudy
from mirror_train.experiments.study import StudyConfig, sets_of, static_rows
from mirror_train.experiments.systems_study import ENTRIES, SystemsConfig, plan_systems
from mirror_train.recipes.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from mirror_train.cli.study_run import Plan

_SYSTEMS = "systems"
_REPRODUCE = {"reproduce": ("reproduce-words", "reproduce-sts")}
_TITLES = {name: f"{study.title} ({study.source})" for name, study in STUDIES.items()} | {
    "reproduce": "both of these, with the paper's numbers beside those of the same base model",
    _SYSTEMS: "every system of the papers from one base model, on the same sets "
    "('Other systems' in the documentation)",
}

# The files below --data for each level: strings to tune on, pairs to evaluate on.
_FILES = {
    "word": ("words/{}.txt", "multisimlex/{}.tsv"),
    "phrase": ("phrases/{}.txt", "multisimlex/{}.tsv"),
    "sentence": ("sentences/{}.txt", "sts/stsb-{}-test.tsv"),
}
_SMALL_TOP, _SMALL_SEEDS = 1000, 2
_WORDS = 100_000  # number of words that --words takes in these studies
_OF_MANY_WORDS = ("data-size", "frequency")


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The data to tune on and to evaluate on."""

    data: Annotated[
        Path | None,
        Help("folder with words/LANG.txt and multisimlex/LANG.tsv, or for sentences "
             "sentences/LANG.txt and sts/stsb-LANG-test.tsv", "DIR"),
    ] = None  # fmt: skip
    lang: Annotated[str, Help("LANG in those names")] = "en"
    strings: Annotated[Path | None, Help("tune on these lines instead")] = None
    words: Annotated[
        str | None,
        Help("tune on the most frequent words of a language instead (for all but data-size and "
             "frequency, 10000 unless --top says otherwise)", "LANG"),
    ] = None  # fmt: skip
    pairs: Annotated[
        Path | None,
        Help("evaluate on these instead: a header, two text columns and score", "FILE.tsv"),
    ] = None
    evaluate: Annotated[
        tuple[str, ...],
        Help("evaluate on these sets of --data instead (see 'mirror-rt evaluate'; default: for "
             "sentences the seven of the paper where --data has them all)", "SUITE[/SET]",
             many=True),
    ] = ()  # fmt: skip
    static: Annotated[
        tuple[str, ...],
        Help("word vectors (.vec, .txt, word2vec's .bin) as further rows", "LABEL=FILE", many=True),
    ] = ()
    top: Annotated[int | None, Help("tune on the first N strings alone")] = None


@dataclass(frozen=True, kw_only=True)
class _Setups:
    """The run of a study of setups."""

    recipe: Annotated[
        str | None,
        Help("the recipe that is changed (default: that of the paper's table, word or sentence)",
             "NAME|FILE.toml"),
    ] = None  # fmt: skip
    small: Annotated[
        bool, Help(f"a first look: --top {_SMALL_TOP} --seeds {_SMALL_SEEDS} unless given")
    ] = False
    config: Annotated[Given[StudyConfig], Group(only=("pooling", "seeds", "precision", "device"))]


@dataclass(frozen=True, kw_only=True)
class _Systems:
    """The options that only the study of systems has."""

    systems: Annotated[
        str | None, Help("these alone (default: all that --data is enough for)", "NAME,...")
    ] = None
    config: Annotated[
        Given[SystemsConfig],
        Group(only=("seed", "max_steps", "learning_rate", "samples", "select", "evaluate_every",
                    "supervised")),
    ]  # fmt: skip
    no_export: Annotated[bool, Help("evaluate with PyTorch, not through bundles")] = False


def _listed(titles: dict[str, str]) -> str:
    return "\n".join(f"  {line}" for line in text_fields(list(titles.items())).splitlines())


_OF_SYSTEMS = Group(
    "systems",
    "only with 'systems'. It takes --data, --lang, --top and the model's options.\n"
    + _listed({name: f"{one.title} ({one.source})" for name, (_, one) in ENTRIES.items()}),
)


@dataclass(frozen=True, kw_only=True)
class Study(Invocation):
    """Tune and evaluate the setups of an analysis of the Mirror-BERT paper, and compare them.

    Each is tuned with several seeds; NAME.md, NAME.json and NAME.png come into the output folder.
    Every run is kept there: the same command goes on after an interruption.

    Examples:
        mirror-rt study ablation --data data --out study
        mirror-rt study drophead --data data --out study --top 2000 --seeds 5
        mirror-rt study data-size --words en --pairs multisimlex/en.tsv --out study
        mirror-rt study reproduce --model bert-base-uncased --data data --out study
        mirror-rt study systems --data data --out study
        mirror-rt study systems --data data --systems mirror,simcse,flow --top 2000 --out study
    """

    name: Annotated[
        Literal[tuple(_TITLES)],  # type: ignore[valid-type]
        Help("one of those above", "NAME", word=True, flag=None),
    ]
    model: Annotated[
        str | None,
        Help("base model: folder or hub name (default: all-MiniLM-L6-v2)", "MODEL", word=True),
    ] = None
    out: Annotated[Path, Help("folder to write", "STUDY")]
    hub: HubOptions
    data: Annotated[_Data, Group("data")]
    setups: Annotated[_Setups, Group("run")]
    systems: Annotated[_Systems, _OF_SYSTEMS]

    @classmethod
    def listed(cls) -> str:
        """Return the studies with their titles."""
        return f"studies:\n{_listed(_TITLES)}"

    def run(self) -> int:
        """Run the command; return 1 where a row failed."""
        self._check()
        parts = [dataclasses.replace(self, name=one) for one in _REPRODUCE.get(self.name, ())]
        return max(run_and_report(one.name, one.out, one._plan) for one in parts or [self])

    def _plan(self) -> Plan:
        planned, config, opener = (self._systems if self.name == _SYSTEMS else self._setups)()
        rows = [*static_rows(self.data.static), *planned.rows]
        return dataclasses.replace(planned, rows=rows), config, opener

    def _check(self) -> None:
        """Refuse options that do not belong to the study that was named."""
        data, setups, systems = self.data, self.setups, self.systems
        if data.strings is not None and data.words is not None:
            raise ConfigError("pass one of --strings FILE and --words LANG")
        of_setups = {name: getattr(data, name) for name in ("strings", "words", "pairs")}
        of_setups |= {"recipe": setups.recipe, "small": setups.small or None}
        of_systems = systems.config.values() | {"systems": systems.systems}
        of_systems |= {"no_export": systems.no_export or None}
        for name, value in (of_setups if self.name == _SYSTEMS else of_systems).items():
            if value is not None:
                raise ConfigError(Setting(name), f" does not go with the study {self.name!r}")

    def _setups(self) -> Plan:
        plan = STUDIES[self.name]
        recipe = load_recipe(self.setups.recipe or plan.level)
        changed = (self.setups.recipe, self.data.strings, self.data.top, self.setups.small or None)
        if any(one is not None for one in changed):
            plan = dataclasses.replace(plan, paper={})  # the paper's numbers are of its own setup
        seeds = {"seeds": _SMALL_SEEDS} if self.setups.small else {}
        # The intervals are over the seeds.
        config = self.setups.config.make(samples=0, **seeds | self.setups.config.values())
        data = self._strings(plan, recipe)
        sets, about = self._sets(plan, recipe, data)
        shown = ", ".join(f"{one.suite}/{one.name}" for one in sets)
        print(
            f"{plan.name}: {plan.title} (Mirror-BERT, {plan.source}); recipe {recipe.level}, "
            f"{len(data):,} strings, {shown}"
        )
        return plan.plan(recipe, data, sets, config, **about), config, None

    def _sets(
        self, plan: MirrorStudy, recipe: Recipe, data: TrainingData
    ) -> tuple[list[EvaluationSet], dict[str, str]]:
        """Return the sets to evaluate on, and notes on them for the report.

        Scored pairs are read here, so that a file that cannot be used ends the command at once.
        """
        folder, lang = self.data.data, self.data.lang
        wanted = self.data.evaluate
        if plan.geometry and self.data.pairs is None and not wanted:
            path = self.data.strings or self._in_data(recipe, 0, "--strings FILE")
            name = f"{recipe.level}s-{lang}, {len(data):,}"  # runs on other strings are not shared
            return [geometry_set(name, path, lang, data.first)], {}
        if self.data.pairs is None and not wanted:
            wanted = tuple(one.format(level=recipe.level, lang=lang) for one in plan.evaluate)
        if wanted:
            if folder is None or self.data.pairs is not None:
                raise ConfigError("--evaluate takes sets of --data DIR, in the place of --pairs")
            return sets_of(folder, wanted, lang, SuiteOptions(geometry_texts=0))[0], {}
        few = {}
        if self.data.pairs is None and folder and recipe.level == "sentence" and lang == "en":
            found = find_sentences(folder, SuiteOptions()).sets
            seven = {one.name: one for one in found if one.name in AVERAGED}
            lacking = ", ".join(name for name in AVERAGED if name not in seven)
            if lacking:
                few = {"note": f"of the seven sets that the paper averages, --data lacks {lacking}"}
            if seven:
                return list(seven.values()), few
        path = self.data.pairs or self._in_data(recipe, 1, "--pairs FILE.tsv")
        pairs = read_scored_pairs(path)
        return [scored_set("pairs", path.stem, path, (lang,), lambda _: pairs)], few

    def _systems(self) -> Plan:
        if self.data.data is None:
            raise ConfigError(
                "study systems needs --data DIR: the page 'Other systems' of the documentation "
                "describes its files"
            )
        own = self.systems
        config = own.config.make(
            systems=None if own.systems is None else own.systems.split(","),
            language=self.data.lang,
            export=not own.no_export,
            **{"evaluate": self.data.evaluate} if self.data.evaluate else {},
        )
        open_model = None
        if config.export:
            purpose = "mirror-rt study systems"
            open_model = load_plugin("mirror_train.openers", "bundle", purpose=purpose)(config)
        return plan_systems(config), config, open_model

    def _strings(self, plan: MirrorStudy, recipe: Recipe) -> TrainingData:
        top = self.data.top
        if top is None and self.setups.small:
            top = _SMALL_TOP
        if top is not None and top < 1:
            raise ConfigError(field="top", expected="at least 1", value=top)
        if self.data.words is not None:
            most = _WORDS if plan.name in _OF_MANY_WORDS else 10_000
            return word_list(self.data.words, top=most if top is None else top)
        path = self.data.strings or self._in_data(recipe, 0, "--strings FILE")
        data = load_training_data(path, data_format="text", language=self.data.lang)
        strings = data.first[:top]
        return dataclasses.replace(data, first=strings, second=strings)

    def _in_data(self, recipe: Recipe, which: int, instead: str) -> Path:
        if self.data.data is None:
            raise ConfigError(f"nothing to use: pass --data DIR, or {instead}")
        path = self.data.data / _FILES[recipe.level][which].format(self.data.lang)
        if not path.is_file():
            raise ConfigError(
                f"{path} does not exist, and the recipe of level {recipe.level!r} needs it: pass "
                f"{instead}, or another --data, --lang or --recipe"
            )
        return path
