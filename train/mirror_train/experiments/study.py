"""Define a study as data: its settings, its rows, its sets, and the result of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.run import Result
from mirror_rt.evaluation.static_vectors import is_static
from mirror_rt.evaluation.suites import EvaluationSet, SuiteOptions, find_sets
from mirror_rt.io.atomic import path_sha256
from mirror_rt.schema import least
from mirror_train.compute.launch import check_one_process
from mirror_train.compute.precision import Precision
from mirror_train.systems.system import Claim
from mirror_train.training.run_config import RunConfig, TunedPooling

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig(RunConfig):
    """The settings that all studies share; see `RunConfig`.

    Attributes:
        out: of RunConfig: results go to `out/runs`, models in training to `out/work`.
        seed: of RunConfig: the first seed, and that of the bootstrap.
        seeds: the number of runs of every tuned setup, with the seeds `seed`, `seed` + 1, ...
        samples: the number of samples of the bootstrap.
        pooling: the pooling of rows that do not set one; `auto` takes the one that the base model
            declares, else that of `TrainConfig.pooling` for tuned rows, and the mean for the base
            model. `paper` passes over the declaration of the base model.
        precision: auto, fp32, bf16 or fp16.
    """

    seeds: Annotated[int, least(1)] = 3
    samples: Annotated[int, least(0)] = 1000
    pooling: TunedPooling = "auto"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        check_one_process("a study")

    @property
    def untuned_pooling(self) -> Pooling | Literal["auto"]:
        """The pooling of the base model: the mean in the papers (EMNLP 2021, footnote 5)."""
        return "mean" if self.pooling == "paper" else self.pooling


# The difference up to which two rows are on par. EMNLP 2021, footnote 2, allows "slight gains of
# one variant in some tasks" and names no number; this one is ours.
SLIGHT = 0.01

PaperNumbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """The training of one row of a study."""

    label: str  # its name in the table and the plot
    # Trains with the settings of a run, which say where to write and give the seed. It is pickled
    # where the study is `isolated`. None for the base model.
    train: Callable[[RunConfig], TuneReport] | None = None
    # Everything that decides its result beside the setting of the study and the seed, as JSON
    # values. Rows of the same identity, also of other studies, share their runs.
    identity: dict[str, Any] = field(default_factory=dict)
    # How much there is to train in relation to other rows, to estimate the time left.
    work: float = 1.0
    x: float | None = None  # its position on the axis of a study of rates or sizes
    pooling: Pooling | Literal["auto"] = "auto"  # of a row without training
    # A file of word vectors in the place of the base model, averaged for each text.
    vectors: Path | None = None
    claims: tuple[Claim, ...] = ()  # the claims of its paper


def static_rows(given: Sequence[str]) -> list[Row]:
    """Return the rows of word vectors, each given as LABEL=FILE; others are refused."""
    rows = []
    for entry in given:
        label, _, name = entry.partition("=")
        path = Path(name)
        if not label or not is_static(path) or not path.is_file():
            raise ConfigError(f"--static {entry}: expected LABEL=FILE, a .vec, .txt or .bin file")
        rows.append(Row(label, identity={"vectors": path_sha256(path)}, vectors=path))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: the runs to train, the figures to measure, and the words of its report."""

    name: str  # name of the files of the report
    title: str  # the comparison, in a line
    rows: list[Row]  # in the order of the table
    sets: list[EvaluationSet]  # each gives columns
    source: str = ""  # the table or figure of the paper; "" for none
    # Label of the row that the others are compared with; None to compare none.
    reference: str | None = None
    axis: str = ""  # label of the axis of a study of rates or sizes; "" where rows only have names
    log: bool = False  # whether that axis is logarithmic
    # Whether each row is trained in a process of its own, so that its time and memory are its own.
    # Then its model stays in `out/models`, and a row that fails stops no other.
    isolated: bool = False
    # The values that decide the results of all rows, beside base model, sets and bootstrap.
    setting: dict[str, Any] = field(default_factory=dict)
    # The measures of geometry that the table shows, of all sets; () for those that compare models
    # of any scale, of sentences.
    geometry: tuple[str, ...] = ()
    # The paper's numbers for this base model, by set and label of a row.
    paper: PaperNumbers = field(default_factory=dict)
    deviation: float = 0.0  # the standard deviation that the paper gives for its numbers over seeds
    average: bool = False  # whether the average of all sets is a measure, too
    # The notes of the report on the data and the options.
    about: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # the parts left out, and why


def sets_of(
    data: Path, wanted: Sequence[str], language: str, options: SuiteOptions | None = None
) -> tuple[list[EvaluationSet], dict[str, str]]:
    """Return the sets of suites in a language, and new names for files whose names have none.

    A set that is named (SUITE/SET) is taken whatever its language is. Nothing to evaluate on but
    geometry is a DataError, unless that was all that was asked for.
    """
    found = find_sets(data, list(wanted), options or SuiteOptions()).sets
    sets, untagged = [], {}
    for one in found:
        if one.languages == (language,) or f"{one.suite}/{one.name}" in wanted:
            sets.append(one)
        elif one.languages == (None,):
            untagged[f"{one.suite}/{one.name}"] = (
                f"no language in its name; if it is in {language}, call "
                f"it {one.path.stem}-{language}{one.path.suffix}"
            )
    asked = [one for one in wanted if one.partition("/")[0] != "geometry"]
    if not any(one.suite != "geometry" for one in sets) and (asked or not sets):
        raise DataError(
            f"{data} has no set in {language!r} to evaluate on: "
            "the page 'Evaluate' of the documentation says under which names they are looked for"
        )
    return sets, untagged


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one row with one seed, None for a base model, which has no randomness.

    `failures` names the sets without a figure, and why; `about` remarks on the opened model.
    The seconds are those of training, with reading and writing. The memory is the peak of the
    process (physical) and of the GPU; None where it is not known. A run is `kept` whose result an
    earlier command had found.
    """

    label: str
    seed: int | None
    results: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0
    data: str = ""
    memory_mb: float | None = None
    device_mb: float | None = None
    about: str = ""
    kept: bool = False

    def to_json(self, *, replicates: bool = False) -> dict[str, Any]:
        """Return plain JSON values, with the replicates that comparisons need or without."""
        results = [result.to_json(replicates=replicates) for result in self.results]
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return fields | {"results": results}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Run:
        """Return the run of the values of `to_json`; others raise KeyError or TypeError."""
        return cls(**found | {"results": [Result.from_json(one) for one in found["results"]]})
