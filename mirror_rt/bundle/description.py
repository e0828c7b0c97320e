"""Describe the folder of a model by what its files declare, read once, in one place.

sentence-transformers describes an encoder in modules.json, a list of modules, each with a folder
and a configuration, in the layout of its version 5 or an older one; transformers describes the
model and its tokenizer. What their files say is followed as these libraries follow it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from mirror_rt.bundle.declared_keys import (
    NOTHING,
    POOLING_FLAGS,
    DeclaredFile,
    read_declared,
    refuse,
)
from mirror_rt.bundle.json_document import naming, parse_json
from mirror_rt.bundle.manifest import BUNDLES, Format, Layout, Manifest, PoolingMode
from mirror_rt.errors import BundleError
from mirror_rt.io.limits import DECLARED
from mirror_rt.schema import InnerFolder, build
from mirror_rt.tokens.settings import TokenizerSettings

ModelKind = Literal["SentenceTransformer", "CrossEncoder"]

MODULES = "modules.json"
ADAPTER = "adapter_config.json"
_LIBRARY = "sentence_transformers."
# Early versions had a file name for each family; the first of them that is there counts.
_TEXT_OPTIONS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The modules whose configuration is read: by their names, and that of the ledger's table.
_CONFIGURED = {"Pooling": "Pooling", "Dense": "Dense", "mirror_train.glow.Flow": "Flow"}
STORED: tuple[Format, ...] = ("mirror_rt encoder", *BUNDLES)
_MERGE = (
    "it is not applied to its base model here, so merge the two (merge_and_unload of the library "
    "peft), and save the result"
)
NO_LIMIT = 1_000_000  # transformers writes larger numbers where a tokenizer has no limit
POOLING_NAMES = {mode for modes in get_args(PoolingMode) for mode in get_args(modes)} - {
    "mean-with-padding"  # which only mirror.json declares
}


class Module(NamedTuple):
    """A module: its name, in full where it is none of the library, and what its folder declares."""

    name: str
    folder: Path
    declared: DeclaredFile


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of modules.json; the first module of a folder is often the folder itself."""

    type: str
    path: InnerFolder


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The declarations of a model's folder.

    Attributes:
        folder: the folder.
        manifest: the content of mirror.json, or what takes its place for files that others wrote
            (`describe_bundle` makes it); None where there is neither.
        transformer: folder of the transformer: the same, or a subfolder in an old layout.
        kind: what sentence-transformers saved it as; None where that is not said.
        modules: the modules in their order; none where there is no modules.json.
        poolings: how token vectors become one, joined in this order; none where none is declared.
        pooling_fault: the reason why a declared pooling cannot be followed; "" if it can.
        prompts: maps a prompt's name to the text to put before an input text.
        default_prompt_name: name of the prompt used where the caller names none; None for none.
        similarity: cosine, dot, euclidean or manhattan.
        truncate_dim: number of dimensions to keep; None for all.
        activation: of a cross-encoder, the class of torch that makes scores; None for the default.
        config: the used keys of config.json.
        sizes: name -> the largest integer of that name in config.json, on whatever level.
        declared_length: most tokens of a text as the module, else the tokenizer declares it; None
            for as many as the model takes.
        tokenizer: the settings beside tokenizer.json.
        mask_token: the tokenizer's mask token; None if it has none.
        unknown: keys that nobody knows, each after the path of its file.
    """

    folder: Path
    manifest: Manifest | None
    transformer: Path
    kind: str | None
    modules: tuple[Module, ...]
    poolings: tuple[PoolingMode, ...]
    pooling_fault: str
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str
    truncate_dim: int | None
    activation: str | None
    config: Mapping[str, Any]
    sizes: Mapping[str, int]
    declared_length: int | None
    tokenizer: TokenizerSettings
    mask_token: str | None
    unknown: tuple[str, ...]

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
    def is_static(self) -> bool:
        """Whether the vectors of tokens are looked up in a table."""
        return self.is_model2vec or self.names[:1] == ["StaticEmbedding"]

    @property
    def is_model2vec(self) -> bool:
        """Whether model2vec wrote the folder, which has no modules then."""
        of_config = self.config.get("model_type"), self.config.get("architectures")
        return of_config[0] == "model2vec" or of_config[1] == ["StaticModel"]

    @property
    def is_classifier(self) -> bool:
        """Whether the folder is that of a sequence classification, not of an encoder.

        A folder whose modules.json has a pooling is that of an encoder, whatever its architecture:
        the weights of a head are left over there.
        """
        names = self.config.get("architectures") or [""]
        return str(names[0]).endswith("ForSequenceClassification") and len(self.modules) < 2

    def check_kind(self, expected: ModelKind) -> None:
        """Raise BundleError if the folder declares another kind of model."""
        if self.kind not in (None, expected):
            what = (
                "gives no text vectors" if expected == "SentenceTransformer" else "scores no pairs"
            )
            raise BundleError(f"{self.folder} is a {self.kind} of sentence-transformers: it {what}")

    def checked_poolings(self) -> tuple[PoolingMode, ...]:
        """Return the declared poolings; BundleError for one that cannot be followed."""
        if self.pooling_fault:
            raise BundleError(self.pooling_fault)
        return self.poolings


def describe_folder(
    folder: Path,
    *,
    manifest: Manifest | None = None,
    formats: tuple[Format, ...] = STORED,
    allowed: Collection[str] = (),
) -> ModelDescription:
    """Read what a model's folder declares, each file once.

    Args:
        folder: the folder, of any layout.
        manifest: the content of mirror.json where it was read, or is to be written; None to read
            it if there is one.
        formats: the formats that mirror.json may have.
        allowed: refused keys that the caller may follow, such as `auto_map`. Nothing is refused in
            a bundle, whose graph and tokenizer.json are all that counts.

    Raises:
        BundleError: a file is damaged, or has a key that is refused.
    """
    if manifest is None and (folder / Layout.manifest).exists():
        manifest = Manifest.read(folder, formats)
    modules = _modules(folder)
    nested = modules and not (folder / "config.json").is_file()
    place = modules[0].folder if nested else folder
    settings = read_declared(folder / "config_sentence_transformers.json")
    config = read_declared(place / "config.json")
    tokenizer = read_declared(place / "tokenizer_config.json")
    # Without modules, sentence-transformers looks at the files of transformers alone.
    texts = read_declared(_text_options(place), _TEXT_OPTIONS[0]) if modules else NOTHING
    files = (settings, config, tokenizer, texts, *(one.declared for one in modules))
    in_bundle = manifest is not None and manifest.format in BUNDLES
    if not in_bundle:
        _refuse_adapters(place, folder)
        refuse(files, allowed)
    poolings, fault = _poolings(modules)
    prompts, default = _prompts(settings)
    return ModelDescription(
        folder=folder,
        manifest=manifest,
        transformer=place,
        kind=_text(settings.values.get("model_type")),
        modules=tuple(modules),
        poolings=poolings,
        pooling_fault=fault,
        prompts=prompts,
        default_prompt_name=default,
        similarity=str(settings.values.get("similarity_fn_name") or "cosine"),
        truncate_dim=_truncate_dim(settings),
        activation=_text(settings.values.get("activation_fn")),
        config=config.values,
        sizes=config.sizes,
        declared_length=_length(texts, tokenizer, config),
        tokenizer=TokenizerSettings(left=tokenizer.values.get("truncation_side") == "left")
        if in_bundle  # the other settings are in its tokenizer.json already
        else TokenizerSettings.of(
            config.values, tokenizer.values, lowercase=bool(texts.values.get("do_lower_case"))
        ),
        mask_token=_token(tokenizer.values.get("mask_token")),
        unknown=tuple(f"{file.path}: {key}" for file in files for key in file.unknown),
    )


def _refuse_adapters(*folders: Path) -> None:
    for folder in folders:
        if (folder / ADAPTER).is_file():
            raise BundleError(f"{folder / ADAPTER} declares an adapter: {_MERGE}")


def derived_manifest(described: ModelDescription, values: dict[str, Any]) -> Manifest:
    """Make the manifest of files of others, of the values that their kind decides, and the rest."""
    rest = {
        "base_model": {"name": described.folder.resolve().name},
        "prompts": dict(described.prompts),
        "default_prompt_name": described.default_prompt_name,
    }
    with naming(described.folder):
        return Manifest.of_values(rest | values)


def whole(value: Any) -> int | None:
    """Return a value that is an integer from 0 on; else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if fits else None


def _modules(folder: Path) -> list[Module]:
    path = folder / MODULES
    if not path.exists():
        return []
    with naming(path):
        entries: list[_Entry] = build(list[_Entry], parse_json(path, most=DECLARED, large=True))
    if not entries:
        raise BundleError(f"{path} is not a list of modules: it is empty")
    kinds = [one.type for one in entries]
    names = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
    places = [folder / one.path for one in entries]
    return [Module(name, place, _configuration(name, place))
            for name, place in zip(names, places, strict=True)]  # fmt: skip


def _configuration(name: str, place: Path) -> DeclaredFile:
    kind = _CONFIGURED.get(name)
    return NOTHING if kind is None else read_declared(place / "config.json", kind)


def _text_options(folder: Path) -> Path:
    """Return the file that says how texts are tokenised, whether it is there or not."""
    files = [folder / name for name in _TEXT_OPTIONS]
    return next(filter(Path.is_file, files), files[0])


def _poolings(modules: list[Module]) -> tuple[tuple[PoolingMode, ...], str]:
    """Return the poolings of the Pooling module, and the reason why they cannot be followed."""
    file = next((one.declared for one in modules if one.name == "Pooling"), None)
    if file is None:
        return (), ""
    given = file.values.get("pooling_mode")  # since version 5
    if given is None:
        found: list[Any] = [
            mode for key, mode in POOLING_FLAGS.items() if file.values.get(key) is True
        ]
        unknown = [key for key in file.set_flags if key.startswith("pooling_")]
    else:
        found = given if isinstance(given, list) else [given]
        unknown = [str(mode) for mode in found if mode not in POOLING_NAMES]
    advice = "is not supported: choose another by --pooling (pooling=)"
    if unknown or not found:
        what = "+".join(unknown) or "none"
        return (), f"{file.path} declares the pooling {what}, which {advice}"
    if file.values.get("include_prompt") is False:
        return tuple(found), (
            f"{file.path}: include_prompt is false, and to leave the prompt out of the pooling "
            f"{advice}"
        )
    return tuple(found), ""


def _prompts(file: DeclaredFile) -> tuple[dict[str, str], str | None]:
    prompts = file.values.get("prompts") or {}
    name = file.values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise BundleError(f"{file.path}: prompts is {prompts!r}, expected names and texts")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise BundleError(f"{file.path}: default_prompt_name {name!r} is not one of the prompts")
    return {key: prompt or "" for key, prompt in prompts.items()}, name


def _truncate_dim(file: DeclaredFile) -> int | None:
    cut = file.values.get("truncate_dim")
    if cut is not None and not whole(cut):
        raise BundleError(f"{file.path}: truncate_dim is {cut!r}, expected a number of dimensions")
    return cut


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _length(texts: DeclaredFile, tokenizer: DeclaredFile, config: DeclaredFile) -> int | None:
    """Return the limit of tokens: the module's comes before that of the tokenizer.

    That of the tokenizer is at most the number of positions.
    """
    limit = texts.values.get("max_seq_length")
    if limit is not None and not whole(limit):
        raise BundleError(f"{texts.path}: max_seq_length is {limit!r}, expected a number of tokens")
    given: list[Any] = [limit]
    if limit is None:
        given = [tokenizer.values.get("model_max_length", tokenizer.values.get("max_len")),
                 config.values.get("max_position_embeddings")]  # fmt: skip
    known = [one for one in map(whole, given) if one and one < NO_LIMIT]
    return min(known, default=None)


def _token(value: Any) -> str | None:
    """Return a token that is given as a string, or as an object with its content."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None
