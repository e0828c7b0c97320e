"""Define the options that the commands of systems share, and print the result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mirror_rt.cli.common import HubOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.cli.parsing.parser import UsageError
from mirror_rt.errors import ConfigError
from mirror_train.compute.launch import is_first_process
from mirror_train.data.strings import TOP, DataFormat, load_training_data, longer_than, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.model.model_folder import DEFAULT_MODEL
from mirror_train.training.run_config import TrainConfig, beside

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

MODEL = (
    f"folder or hub name (default: {DEFAULT_MODEL.partition('/')[2]}, fetched once, checked and "
    "cached"
)
_ENDS = {
    "steps": "the steps of the recipe",
    "epochs": "its epochs",
    "movement": "the movement of the recipe",
    "neighbours": "the neighbours that would be lost",
}
_RUN = ("device", "seed", "overwrite", "checkpoint_every", "resume", "select", "evaluate_every")


def run_options(*own: str) -> Group:
    """Return the group of the settings that every system takes, and of its `own`."""
    return Group("run", only=(*_RUN, *own))


@dataclass(frozen=True, kw_only=True)
class Training(Invocation):
    """The options that every command has which trains a model."""

    model: Annotated[str | None, Help(f"base model: {MODEL})", "MODEL", word=True)] = None
    out: Annotated[Path, Help("folder to write", "DIR")]
    hub: HubOptions
    trust_remote_code: Annotated[
        bool, Help("run the Python code that comes with the model, if it needs any: read it first")
    ] = False
    quiet: Annotated[bool, Help("show no progress")] = False

    def settings(self, system: str, config: Given[TrainConfig], recipe: Any) -> TrainConfig:
        """Make the settings of a system's run.

        Those that it does not take keep their defaults: an option of their name is the recipe's.
        """
        from mirror_train.systems import SYSTEMS

        others = SYSTEMS[system].not_taken()
        return config.make(recipe=recipe, show_progress_bar=not self.quiet, **others)

    def kept(self) -> str:
        """Say what an interrupted run has left, if the run itself has not said so."""
        for name, what in (("checkpoints", "a checkpoint"), ("cycles", "finished models")):
            if (kept := beside(self.out, name)).is_dir():
                return f"{kept} holds {what}, continue with --resume"
        return "nothing was saved yet, start the same command again"


@dataclass(frozen=True, kw_only=True)
class StringOptions:
    """The strings to tune on."""

    data: Annotated[
        Path | None,
        Help("UTF-8 text, one string a line; or pairs: text1||text2, or two-column TSV; or the "
             "form of --data-format"),
    ] = None  # fmt: skip
    words: Annotated[str | None, Help("the most frequent words of a language", "LANG")] = None
    top: Annotated[int | None, Help(f"with --words: how many (default {TOP})", "TOP")] = None
    longer_than: Annotated[
        int | None, Help("with --data, strings: those of more than N words alone", "N")
    ] = None
    data_format: Annotated[
        DataFormat | None,
        Help("form of --data (default auto: text or pairs, by name and content). triplets: a table "
             "with columns anchor, positive, negative; nli: SNLI or MultiNLI, JSONL or TSV, made "
             "into triplets; synonyms: concept id TAB name"),
    ] = None  # fmt: skip
    lang: Annotated[
        tuple[str, ...],
        Help("with a file as --data or --thesaurus: its language; otherwise tune for each of these "
             "languages, into OUT/TAG (see below)", "TAG[,TAG]"),
    ] = ()  # fmt: skip

    @property
    def language(self) -> str | None:
        """Return the value of --lang, joined by commas where it was given again."""
        return ",".join(self.lang) if self.lang else None

    def read(self) -> TrainingData:
        """Read the strings of --data or --words, and print how many there are."""
        if self.data is None and self.words is not None:
            if self.data_format or self.lang or self.longer_than is not None:
                raise ConfigError(
                    "--data-format, --longer-than and --lang go with --data, not with --words LANG"
                )
            return word_list(self.words, top=TOP if self.top is None else self.top)
        if self.data is None or self.words is not None:
            raise UsageError("pass one of --data FILE and --words LANG")
        if self.top is not None:
            raise ConfigError("--top goes with --words, not with --data")
        data = load_training_data(
            self.data, data_format=self.data_format or "auto", language=self.language
        )
        if is_first_process():
            print(
                f"{self.data}: {len(data)} strings ({data.blank} blank and {data.duplicates} "
                "repeated lines dropped)"
            )
        if self.longer_than is not None:
            kept = longer_than(data, self.longer_than)
            if is_first_process():
                print(f"{len(kept)} of them have more than {self.longer_than} words")
            return kept
        return data


def print_result(report: TuneReport, more: str = "") -> None:
    """Print the folder of a run, its speed, how its loss changed, and what to do next.

    Of several processes, the first prints.
    """
    if not is_first_process():
        return
    made = report.manifest.training or {}
    speed = f"{made['strings_per_second']} strings/s, " if "strings_per_second" in made else ""
    waste = f", padding {made['padding_percent']} %" if "padding_percent" in made else ""
    if made.get("cut_percent"):
        limit = (report.manifest.recipe or {})["max_length"]
        more = f", {made['cut_percent']:g} % of the texts cut at {limit} tokens{more}"
    if "spearman" in made:
        more = f"; rho {made['spearman']:.4f} after step {made['best_step']}, the best{more}"
    if "kept_neighbours" in made:
        more = f", {made['kept_neighbours']:.0%} of the base model's neighbours kept{more}"
    if "isotropy_after" in made:
        more = f", isotropy {made['isotropy_before']:g} -> {made['isotropy_after']:g}{more}"
    strings = (report.manifest.data or {}).get("strings")
    seen, end = "", ""
    if "strings_seen" in made:
        seen = f"{made['strings_seen']} of {strings} strings, "
        end = f", ended by {_ENDS[made['ended_by']]}"
    print(
        f"{report.out}: {seen}{made['steps']} steps{end}, learning rates adding up to "
        f"{made['movement']:g}, in {made['seconds']} s ({speed}{made['precision']}{waste}), loss "
        f"{made['loss_first']:.4f} -> {made['loss_last']:.4f}{more}"
    )
    print(f"next: mirror-rt export {report.out} --out BUNDLE")
