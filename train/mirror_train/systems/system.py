"""Describe a training system as data, which help, studies, model cards and tests read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from mirror_train.data.inputs import Inputs
from mirror_train.recipes.recipe import Hyperparameters
from mirror_train.training.run_config import TrainConfig, TunedPooling

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

BASE = "untuned"
_STS = ("sentences",)


@dataclass(frozen=True, slots=True)
class Claim:
    """An improvement over another row that a paper claims, on the sets of some suites."""

    against: str = BASE  # label of the other row
    suites: tuple[str, ...] = _STS  # suites of the sets that the claim is about
    # `higher`, or `on par` for a small difference (see `SLIGHT` of the studies).
    wanted: Literal["higher", "on par"] = "higher"

    def __str__(self) -> str:
        """Return the claim in words, for the table."""
        return f"{self.wanted} {'than' if self.wanted == 'higher' else 'with'} {self.against}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the study of systems: a system with the hyper-parameters and the data of a paper."""

    name: str  # its label
    title: str  # description in a line
    source: str  # the paper
    inputs: tuple[str, ...]  # names in `mirror_train.data.inputs.INPUTS`; all are required
    recipe: Callable[[], Any]  # returns its hyper-parameters
    read: Callable[[Inputs, int], Any]  # reads its data, which the seed may divide
    claims: tuple[Claim, ...] = ()  # the improvements that its paper claims
    # Inputs that are not required: further training data, or the evaluated pairs, which are left
    # out of the training data.
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A training system. A module of this folder that has one as `SYSTEM` adds it everywhere.

    Attributes:
        name: its name in `mirror-rt train NAME`, in `train` and in mirror.json.
        title: its purpose, for the list of commands.
        paper: who it is by, in Markdown, for model cards; "" where the run time's own name is used.
        recipe: the class of its hyper-parameters; where they train the encoder they have a
            `max_length`, by which the study knows which learning rates its option replaces.
        run: trains on the system's data by a `Run`, and writes `TrainConfig.out`. It imports torch
            when it is called, so that help and recipes need none, and leaves torch's global random
            state alone: new layers are made within `torch.random.fork_rng(devices=[])`.
        command: `module:class` of its command.
        settings: the fields of `TrainConfig` that it takes, of those from `pooling` on.
        labelled: whether it learns from labels, for model cards.
        entries: its rows in the study of systems.
        fitted: changes a recipe for the data and the pooling of a study.
    """

    name: str
    title: str
    paper: str
    recipe: type[Hyperparameters]
    run: Callable[[Any, TrainConfig], TuneReport]
    command: str
    settings: tuple[str, ...] = ("precision",)
    labelled: bool = False
    entries: tuple[Entry, ...] = ()
    fitted: Callable[[Any, Any, TunedPooling], Any] = lambda recipe, data, pooling: recipe

    def not_taken(self) -> dict[str, Any]:
        """Return the settings that this system does not take, with their defaults."""
        defaults = {field.name: field.default for field in fields(TrainConfig)}
        chosen = [*defaults][[*defaults].index("pooling") :]
        taken = (*self.settings, "pooling_from")
        return {name: defaults[name] for name in chosen if name not in taken}
