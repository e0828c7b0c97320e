"""Hold the models that are served, by the names and languages that clients ask for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.model_kinds import Gives
from mirror_rt.bundle.resolve import FileStates
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.languages.tags import find_language, language_key, need_language
from mirror_rt.reranking.reranker import Reranker
from mirror_rt.server.admission.problems import Problem, unusable
from mirror_rt.server.config import ServerConfig
from mirror_rt.sparse.sparse_encoder import SparseEncoder

Loaded = Encoder | Reranker | SparseEncoder


class Served(NamedTuple):
    """One kind of answers: the class that makes them, and the advice to who asks for others."""

    loader: type[Loaded]
    is_one: str
    asks: str


SERVED: dict[Gives, Served] = {
    "vectors": Served(Encoder, "gives vectors, no scores", "/embed, /v1/embeddings"),
    "scores": Served(Reranker, "is a reranker, and gives no vectors", "/rerank, /predict"),
    "words": Served(
        SparseEncoder, "is a sparse encoder, and gives weights of words", "/embed_sparse"
    ),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A bundle or a pack to serve, and how: with the names that it alone has."""

    path: str | Path
    config: ServerConfig

    def find(self) -> Path:
        """Return its folder, which is downloaded if need be."""
        return self.config.load.find(self.path)

    def digest(self, folder: Path) -> str:
        """Return the identity of the current contents of its folder."""
        return digest_of(folder, verified=self.config.load.verify)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NamedEncoder:
    """An encoder, and the name by which clients ask for it.

    Attributes:
        name: its name.
        encoder: the loaded encoder; None for one that `load` loads when a request needs it.
        language: its language tag; None if it declares none.
        created: when it was first there, in seconds since the epoch.
        load: loads the encoder.
        bytes: about how much memory it takes then.
        gives: its answers to texts.
    """

    name: str
    encoder: Loaded | None
    language: str | None
    created: int = field(default_factory=lambda: int(time.time()))
    load: Callable[[], Loaded] | None = None
    bytes: int = 0
    gives: Gives = "vectors"

    def open(self) -> Loaded:
        """Return the encoder; load it if it is not loaded."""
        if self.encoder is not None:
            return self.encoder
        assert self.load is not None
        return self.load()

    def __str__(self) -> str:
        return self.name


class Models:
    """The models of one bundle or pack: a request names one, or the family and a language.

    Args:
        encoders: models in order; their names differ.
        default: name of the model for requests that name none.
        family: common name of all models, of which `lang` chooses one; None for no such name.
        aliases: more names like that of the family, or a mapping of more names to names of models
            and to that of the family; ConfigError for the name of a model.
        fallback: name of the model for languages that none has; None to refuse them.
        digest: identity of the files that they were loaded from (see `digest_of`).
        files: the states of their files before they were loaded.
        source: the bundle or pack that they are of; None if they were made otherwise.
    """

    def __init__(
        self,
        encoders: list[NamedEncoder],
        default: str,
        family: str | None = None,
        digest: str | None = None,
        aliases: Sequence[str] | Mapping[str, str] = (),
        fallback: str | None = None,
        files: FileStates | None = None,
        source: Source | None = None,
    ) -> None:
        self.by_name = {model.name: model for model in encoders}
        self.default = self.by_name[default]
        self.family, self.source = family, source
        named = aliases if isinstance(aliases, Mapping) else dict.fromkeys(aliases, family)
        own = {alias: name for alias, name in named.items() if name in self.by_name}
        self.names_of_default = {*(named.keys() - own.keys()), *([family] if family else [])}
        if taken := (named.keys() | self.names_of_default) & self.by_name.keys():
            raise ConfigError(
                Setting("model_aliases"), f": {min(taken)} is the name of a model already"
            )
        others = dict.fromkeys(sorted(self.names_of_default), self.default)
        others |= {alias: self.by_name[name] for alias, name in own.items()}
        self.names = self.by_name | others
        """The models by all their names, their own ones first."""
        self.digest, self.files = digest, files or {}
        self._by_language: dict[str, NamedEncoder] = {}
        for model in encoders:
            if model.language is not None:
                self._by_language.setdefault(language_key(model.language), model)
        self._fallback = None if fallback is None else self.by_name[fallback]

    def speaks(self, lang: str | None) -> bool:
        """Return whether one of the models is of a language."""
        with contextlib.suppress(ConfigError):
            return lang is not None and find_language(lang, self._by_language) is not None
        return False

    def find(self, model: str | None, lang: str | None) -> NamedEncoder:
        """Return the model that a request asks for."""
        if model is None or model in self.names_of_default:
            return self.default if lang is None else self._of_language(lang)
        found = self.names.get(model)
        if found is None:
            raise _no_model([*sorted(self.names_of_default), *self.by_name])
        if lang is not None and found is not self._of_language(lang):
            raise unusable("lang", f"{found.name} is not of that language")
        return found

    def _of_language(self, lang: str) -> NamedEncoder:
        """Find the model of a tag or of a more general one, `pt` for `pt-BR`, or the fallback."""
        try:
            return need_language(lang, self._by_language, "this server", self._fallback)
        except ConfigError as error:
            raise unusable("lang", str(error)) from None


# The alias that stands for every name that no model has.
ANY = "*"


class Catalog:
    """The models of all sources, the default one's first: a request names one of any source.

    Raises:
        ConfigError: two models have one name.
    """

    def __init__(self, sources: Sequence[Models]) -> None:
        self.sources = list(sources)
        self.default = self.sources[0].default
        self.by_name: dict[str, NamedEncoder] = {}
        self.names: dict[str, NamedEncoder] = {}
        for one in self.sources:
            if taken := one.names.keys() & self.names.keys():
                raise ConfigError(
                    f"two models are called {min(taken)!r}: give {one.source} another name, ",
                    Setting("model_aliases", f"NAME={one.source}"),
                )
            self.by_name |= one.by_name
            self.names |= one.names

    def find(
        self, model: str | None, lang: str | None, gives: Gives | None = "vectors"
    ) -> NamedEncoder:
        """Return the model that a request asks for; without a name the first that `gives` this.

        None for `gives` takes any; Problem 422 if a named one gives something else.
        """
        found = self._find(model, lang, gives)
        if gives not in (None, found.gives):
            _, is_one, asks = SERVED[found.gives]
            why = f"{found.name} {is_one}: ask {asks} ..., or name another model"
            raise Problem(422, why, "wrong_model", "model")
        return found

    def _find(self, model: str | None, lang: str | None, gives: Gives | None) -> NamedEncoder:
        if model is not None and model not in self.names and ANY in self.names:
            model = ANY if gives in (None, self.names[ANY].gives) else None
        if model is None:
            kind = [one for one in self.sources if gives in (None, one.default.gives)]
            speaking = [one for one in kind if one.speaks(lang)]
            return (speaking or kind or self.sources)[0].find(None, lang)
        for one in self.sources:
            if model in one.names:
                return one.find(model, lang)
        raise _no_model(list(self.names))

    def replaced(self, old: Models, new: Models) -> Catalog:
        """Return the same models, but for those of one source."""
        return Catalog([new if one is old else one for one in self.sources])


def _no_model(names: Sequence[str]) -> Problem:
    has = ", ".join(names)
    return Problem(404, f"no such model: this server has {has}", "model_not_found", "model")
