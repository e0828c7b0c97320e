"""Describe the folder of a model by the declarations in its files, read once, in one place.

sentence-transformers describes an encoder in modules.json, a list of modules, each with a folder
and a configuration, in the layout of its version 5 or an older one; transformers describes the
model and its tokenizer. Their files are followed as these libraries follow them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from mirror_rt.bundle.declarations import (
    INDEX,
    METADATA,
    MODULES,
    WEIGHTS,
    Module,
    check_modality,
    length_of,
    read_modules,
    read_poolings,
    read_prompts,
    read_text_options,
    read_truncate_dim,
    token_of,
    whole,
)
from mirror_rt.bundle.declared_keys import NOTHING, read_declared, refuse
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.bundle.manifest import BUNDLES, Layout, Manifest, PoolingMode
from mirror_rt.bundle.model_kinds import DENSE, LATE, PAIRS, WORDS, Format, ModelKind
from mirror_rt.errors import BundleError
from mirror_rt.tokens.settings import TokenizerSettings

LibraryClass = Literal["SentenceTransformer", "CrossEncoder", "SparseEncoder"]

ADAPTER = "adapter_config.json"
STORED: tuple[Format, ...] = ("mirror_rt encoder", *BUNDLES)
_MERGE = (
    "it is not applied to its base model here, so merge the two (merge_and_unload of the library "
    "peft), and save the result"
)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The declarations of a model's folder.

    Attributes:
        folder: the folder.
        manifest: the content of mirror.json, or its equivalent for files that others wrote
            (`describe_bundle` makes it); None where there is neither.
        transformer: folder of the transformer: the same, or a subfolder in an old layout.
        weights: its weights in safetensors, or the index of their files; None if there are none.
        kind: the class of sentence-transformers that saved it; None where that is not said.
        modules: the modules in their order; none where there is no modules.json.
        poolings: how token vectors become one, joined in this order; none where none is declared.
        pooling_fault: the reason why a declared pooling cannot be followed; "" if it can.
        prompts: maps a prompt's name to the text to put before an input text.
        default_prompt_name: name of the prompt used where the caller names none; None for none.
        similarity: cosine, dot, euclidean or manhattan.
        truncate_dim: number of dimensions to keep; None for all.
        active: of a sparse encoder, most words of a vector; None for all.
        activation: of a cross-encoder, the class of torch that makes scores; None for the default.
        config: the used keys of config.json.
        token_options: the settings of a late-interaction model for queries and documents, by name.
        sizes: name -> the largest integer of that name in config.json, on whatever level.
        declared_length: most tokens of a text as the module, else the tokenizer declares it; None
            for the limit of the model.
        tokenizer: the settings beside tokenizer.json.
        mask_token: the tokenizer's mask token; None if it has none.
        unknown: keys that nobody knows, each after the path of its file.
    """

    folder: Path
    manifest: Manifest | None
    transformer: Path
    weights: Path | None
    kind: str | None
    modules: tuple[Module, ...]
    poolings: tuple[PoolingMode, ...]
    pooling_fault: str
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str
    truncate_dim: int | None
    active: int | None
    activation: str | None
    config: Mapping[str, Any]
    token_options: Mapping[str, Any]
    sizes: Mapping[str, int]
    declared_length: int | None
    tokenizer: TokenizerSettings
    mask_token: str | None
    unknown: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing in it changes

    @property
    def bundle(self) -> Manifest:
        """The manifest, where it is known that there is one."""
        assert self.manifest is not None
        return self.manifest

    @property
    def pad_to(self) -> int | None:
        """The number of tokens to pad every text to; None for no padding."""
        return None if self.manifest is None else self.manifest.pad_to

    @property
    def names(self) -> list[str]:
        """The names of the modules that have an effect: a Dropout has none outside training."""
        return [one.name for one in self.modules if one.name != "Dropout"]

    @property
    def layers(self) -> list[Module]:
        """The modules behind the pooling that have an effect; BundleError if there is none."""
        names = self.names
        if names[:2] != ["Transformer", "Pooling"] or names.count("Pooling") > 1:
            raise BundleError(
                f"{self.folder / MODULES}: expected a Transformer and a Pooling, got "
                f"{', '.join(names)}"
            )
        return [one for one in self.modules if one.name != "Dropout"][2:]

    @property
    def is_static(self) -> bool:
        """Whether the vectors of tokens are looked up in a table."""
        return self.is_model2vec or self.names[:1] == ["StaticEmbedding"]

    @property
    def is_model2vec(self) -> bool:
        """Whether model2vec wrote the folder, which has no modules then."""
        of_config = self.config.get("model_type"), self.config.get("architectures")
        return of_config[0] == "model2vec" or of_config[1] == ["StaticModel"]

    @property
    def gives_tokens(self) -> bool:
        """Whether it is a late-interaction model, which gives a vector of each token."""
        return _gives_tokens(self.kind, self.config, self.names)

    @property
    def is_classifier(self) -> bool:
        """Whether the folder is that of a sequence classification, not of an encoder.

        A folder whose modules.json has a pooling is that of an encoder, whatever its architecture:
        the weights of a head are left over there.
        """
        names = self.config.get("architectures")
        first = str(names[0]) if isinstance(names, list) and names else ""
        return first.endswith("ForSequenceClassification") and len(self.modules) < 2

    @property
    def answers(self) -> bool:
        """Whether it is Qwen3-Reranker, a language model whose next word tells if a document fits.

        Nothing in its files says so, and others that have them want other texts: its name counts.
        """
        return _answers(self.folder, self.config) and not self.poolings

    @property
    def own_kind(self) -> ModelKind:
        """The kind of the model, by the declarations of others alone."""
        if self.kind == "SparseEncoder":
            return WORDS
        if self.gives_tokens:
            return LATE
        return PAIRS if self.is_classifier or self.answers else DENSE

    def with_tokenizer(self, folder: Path) -> ModelDescription:
        """Return it with the content of a folder's tokenizer.json, which is read once for all.

        That file may be larger than other documents.
        """
        path = folder / Layout.tokenizer
        content = path.read_bytes() if path.is_file() else None
        return replace(self, tokenizer=replace(self.tokenizer, content=content))

    def check_kind(self, expected: LibraryClass) -> None:
        """Raise BundleError if the folder declares another kind of model."""
        if self.kind not in (None, expected):
            said = f"{self.folder} is a {self.kind} of sentence-transformers"
            raise BundleError(f"{said}, expected a {expected}")

    def checked_poolings(self) -> tuple[PoolingMode, ...]:
        """Return the declared poolings; BundleError for one that cannot be followed."""
        if self.pooling_fault:
            raise BundleError(self.pooling_fault)
        return self.poolings


def _of_texts(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the sizes of the part for texts, of a model that takes images, too.

    A family that is known here has no parts.
    """
    part = config.get("text_config")
    if str(config.get("model_type")) in FAMILIES or not isinstance(part, dict):
        return config
    return config | part | {name: config.get(name) for name in ("model_type", "architectures")}


def _gives_tokens(kind: str | None, config: Mapping[str, Any], modules: list[str]) -> bool:
    if modules:  # earlier versions of PyLate did not say the kind
        of_tokens = modules[:2] == ["Transformer", "Dense"] and kind is None
        return of_tokens or kind in ("ColBERT", "MultiVectorEncoder")
    return config.get("architectures") == ["HF_ColBERT"]


def _answers(folder: Path, config: Mapping[str, Any]) -> bool:
    causal = config.get("architectures") == ["Qwen3ForCausalLM"]
    return causal and "qwen3-reranker" in str(folder.resolve()).lower()


def describe_folder(
    folder: Path,
    *,
    manifest: Manifest | None = None,
    formats: tuple[Format, ...] = STORED,
    allowed: Collection[str] = (),
    route: str | None = None,
) -> ModelDescription:
    """Read the declarations in a model's folder, each file once.

    Args:
        folder: the folder, of any layout.
        manifest: the content of mirror.json where it was read, or is to be written; None to read
            it if there is one.
        formats: the formats that mirror.json may have.
        allowed: refused keys that the caller may follow, such as `auto_map`. Nothing is refused in
            a bundle, whose graph and tokenizer.json are all that counts.
        route: of a Router, the route that is described: `query` or `document`.

    Raises:
        BundleError: a file is damaged, or has a key that is refused.
    """
    if manifest is None and (folder / Layout.manifest).exists():
        manifest = Manifest.read(folder, formats)
    modules = read_modules(folder, route)
    nested = modules and not (folder / "config.json").is_file()
    place = modules[0].folder if nested else folder
    settings = read_declared(folder / "config_sentence_transformers.json")
    config = read_declared(place / "config.json")
    tokenizer = read_declared(place / "tokenizer_config.json")
    # Without modules, sentence-transformers looks at the files of transformers alone.
    late = _gives_tokens(settings.text("model_type"), config.values, [m.name for m in modules])
    texts = read_text_options(place, tokens=late) if modules else NOTHING
    metadata = read_declared(folder / METADATA) if late and not modules else NOTHING
    files = (settings, config, tokenizer, texts, metadata, *(one.declared for one in modules))
    in_bundle = manifest is not None and manifest.format in BUNDLES
    if not in_bundle:
        for adapter in (place / ADAPTER, folder / ADAPTER):
            if adapter.is_file():
                raise BundleError(f"{adapter} declares an adapter: {_MERGE}")
        refuse(files, allowed)
        check_modality(texts, message=_answers(folder, config.values))
    poolings, fault = read_poolings(modules)
    prompts, default = read_prompts(settings)
    return ModelDescription(
        folder=folder,
        manifest=manifest,
        transformer=place,
        weights=next(filter(Path.is_file, (place / WEIGHTS, place / INDEX)), None),
        kind=settings.text("model_type"),
        modules=tuple(modules),
        poolings=poolings,
        pooling_fault=fault,
        prompts=prompts,
        default_prompt_name=default,
        similarity=settings.text("similarity_fn_name")
        or ("dot" if settings.text("model_type") == "SparseEncoder" else "cosine"),
        truncate_dim=read_truncate_dim(settings),
        active=whole(settings.values.get("max_active_dims")),
        activation=settings.text("activation_fn"),
        config=_of_texts(config.values),
        token_options=settings.values | texts.values | metadata.values if late else {},
        sizes=config.sizes,
        declared_length=length_of(texts, tokenizer, config),
        tokenizer=TokenizerSettings(left=tokenizer.values.get("truncation_side") == "left")
        if in_bundle  # the other settings are in its tokenizer.json already
        else TokenizerSettings.of(
            config.values, tokenizer.values, lowercase=bool(texts.values.get("do_lower_case"))
        ),
        mask_token=token_of(tokenizer.values.get("mask_token")),
        unknown=tuple(f"{file.path}: {key}" for file in files for key in file.unknown),
    )
