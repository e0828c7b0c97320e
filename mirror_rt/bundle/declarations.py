"""Read the declarations in a model's folder: modules, poolings, prompts and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mirror_rt.bundle.declared_keys import NOTHING, POOLING_FLAGS, DeclaredFile, read_declared
from mirror_rt.bundle.json_document import naming, parse_json
from mirror_rt.bundle.manifest import POOLING_MODES, PoolingMode
from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import write_json
from mirror_rt.io.limits import DECLARED
from mirror_rt.schema import InnerFolder, InnerPath, build

MODULES = "modules.json"
METADATA = "artifact.metadata"  # of Stanford's ColBERT
ROUTER = "router_config.json"
QUERY, DOCUMENT = "query", "document"  # its routes
_LIBRARY = "sentence_transformers."
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
# Early versions had a file name for each family; the first of them that is there counts.
_TEXT_OPTIONS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The modules whose configuration is read: by their names, and that of the ledger's table.
_CONFIGURED = {"Pooling": "Pooling", "Dense": "Dense", "LogitScore": "LogitScore",
               "MultiVectorMask": "MultiVectorMask", "SpladePooling": "SpladePooling",
               "SparseStaticEmbedding": "SparseStaticEmbedding",
               "mirror_train.glow.Flow": "Flow"}  # fmt: skip
# Modules of other libraries that are the same as one of it.
_ALIASES = {"pylate.models.Dense.Dense": f"{_LIBRARY}models.Dense"}
_WAYS = (("forward", "last_hidden_state"), ("forward", "logits"))
_NO_LIMIT = 1_000_000  # transformers writes larger numbers where a tokenizer has no limit
_KNOWN_POOLINGS = POOLING_MODES - {"mean-with-padding"}  # which only mirror.json declares


class Module(NamedTuple):
    """A module: its name, in full where it is none of the library, its folder and its settings."""

    name: str
    folder: Path
    declared: DeclaredFile


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of modules.json; the first module of a folder is often the folder itself."""

    type: str
    path: InnerFolder


def whole(value: Any) -> int | None:
    """Return a value that is an integer from 0 on; else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if fits else None


@dataclass(frozen=True, slots=True)
class Routes:
    """The content of router_config.json: the modules of queries and of documents.

    Attributes:
        types: maps the folder of each module to its class.
        structure: maps a route to the folders of its modules.
        parameters: of the library; `default_route` is the one of texts of neither kind.
    """

    types: dict[InnerPath, str]
    structure: dict[str, list[InnerPath]]
    parameters: dict[str, Any] = field(default_factory=dict)


def read_routes(folder: Path) -> Routes | None:
    """Read router_config.json of sentence-transformers' Router; None without it."""
    path = folder / ROUTER
    if not path.exists():
        return None
    with naming(path):
        routes: Routes = build(Routes, read_declared(path).values)
        for route, names in routes.structure.items():
            if not names or not {*names} <= routes.types.keys():
                raise ValueError(f"structure has the route {route!r} of modules without types")
    return routes


def read_modules(folder: Path, route: str | None = None) -> list[Module]:
    """Read modules.json, and the configurations of its modules; there are none without it.

    With a `route`, a Router that is alone stands for the modules of that route.
    """
    path = folder / MODULES
    if not path.exists():
        return []
    values = parse_json(path, most=DECLARED, large=True)
    with naming(path):
        entries: list[_Entry] = build(list[_Entry], values)
    if not entries:
        raise BundleError(f"{path} is not a list of modules: it is empty")
    if route is not None and len(entries) == 1 and (routes := read_routes(folder)) is not None:
        entries = [_Entry(routes.types[name], name) for name in routes.structure.get(route, ())]
    kinds = [_ALIASES.get(one.type, one.type) for one in entries]
    names = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
    places = [folder / one.path for one in entries]
    return [
        Module(
            name,
            place,
            read_declared(place / "config.json", _CONFIGURED[name])
            if name in _CONFIGURED
            else NOTHING,
        )
        for name, place in zip(names, places, strict=True)
    ]


def write_modules(folder: Path, kinds: Mapping[str, str]) -> None:
    """Write modules.json: maps the folder of each module to its name, or to that of its class."""
    entries = [
        # The names from before version 5, which every version of the library resolves.
        {"idx": i, "name": str(i), "path": path,
         "type": kind if "." in kind else f"{_LIBRARY}models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]  # fmt: skip
    write_json(folder / MODULES, entries)


def read_text_options(folder: Path, *, tokens: bool = False) -> DeclaredFile:
    """Read the file that says how texts are tokenised; `tokens` by a late-interaction model."""
    files = [folder / name for name in _TEXT_OPTIONS]
    kind = f"{_TEXT_OPTIONS[0]} of tokens" if tokens else _TEXT_OPTIONS[0]
    return read_declared(next(filter(Path.is_file, files), files[0]), kind)


def read_poolings(modules: list[Module]) -> tuple[tuple[PoolingMode, ...], str]:
    """Return the poolings of the Pooling module, and the reason why they cannot be followed."""
    file = next((one.declared for one in modules if one.name == "Pooling"), None)
    if file is None:
        return (), ""
    given = file.values.get("pooling_mode")  # since version 5
    if given is None:
        found: list[Any] = [
            mode for key, mode in POOLING_FLAGS.items() if file.values.get(key) is True
        ]
        unknown = [key for key, on in file.unknown.items()
                   if on is True and key.startswith("pooling_")]  # fmt: skip
    else:
        found = given if isinstance(given, list) else [given]
        unknown = [str(mode) for mode in found if mode not in _KNOWN_POOLINGS]
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


def check_modality(file: DeclaredFile, *, message: bool) -> None:
    """Refuse a module that makes texts messages of a chat, unless `message` says that they may be.

    One that takes another output of the model than a vector of each token, or logits, is refused.
    """
    declared = file.values.get("modality_config")
    if declared is None:
        return
    text = declared.get("text") if isinstance(declared, dict) else None
    way = (text.get("method"), text.get("method_output_name")) if isinstance(text, dict) else ()
    if way not in _WAYS or ("message" in declared and not message):
        raise BundleError(
            f"{file.path}: modality_config passes texts through {sorted(map(str, declared))}, "
            f"{way}, expected text alone, through one of {_WAYS}"
        )


def read_prompts(file: DeclaredFile) -> tuple[dict[str, str], str | None]:
    """Return the prompts by their names, and the name of the default one."""
    prompts = file.values.get("prompts") or {}
    name = file.values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise BundleError(f"{file.path}: prompts is {prompts!r}, expected names and texts")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise BundleError(f"{file.path}: default_prompt_name {name!r} is not one of the prompts")
    return {key: prompt or "" for key, prompt in prompts.items()}, name


def read_truncate_dim(file: DeclaredFile) -> int | None:
    """Return the number of dimensions to keep; None for all."""
    cut = file.values.get("truncate_dim")
    if cut is not None and not whole(cut):
        raise BundleError(f"{file.path}: truncate_dim is {cut!r}, expected a number of dimensions")
    return cut


def length_of(texts: DeclaredFile, tokenizer: DeclaredFile, config: DeclaredFile) -> int | None:
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
    known = [one for one in map(whole, given) if one and one < _NO_LIMIT]
    return min(known, default=None)


def token_of(value: Any) -> str | None:
    """Return a token that is given as a string, or as an object with its content."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None
