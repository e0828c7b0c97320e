"""Read what a folder of sentence-transformers declares: its modules, their pooling, its settings.

sentence-transformers describes an encoder in modules.json, a list of modules, each with a folder
and a configuration, in the layout of its version 5 or an older one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from mirror_rt.bundle.json_document import naming, read_json
from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import BundleError
from mirror_rt.schema import InnerFolder, build

ModelKind = Literal["SentenceTransformer", "CrossEncoder"]

MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_LIBRARY = "sentence_transformers."
# Keys of the older layout, in the order in which that layout joins several poolings.
POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class Module(NamedTuple):
    """A module: its name, in full where it is none of the library, and its folder."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of modules.json; the first module of a folder is often the folder itself."""

    type: str
    path: InnerFolder


@dataclass(frozen=True, slots=True)
class Declared:
    """The settings of a whole model.

    Attributes:
        prompts: maps a prompt's name to the text to put before an input text.
        default_prompt_name: name of the prompt used where the caller names none; None for none.
        similarity: cosine, dot, euclidean or manhattan.
        truncate_dim: number of dimensions to keep; None for all.
        activation: of a cross-encoder, the class of torch that makes scores; None for the default.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    activation: str | None = None


def read_modules(folder: Path) -> list[Module]:
    """Return the modules in their order; none where there is no modules.json."""
    path = folder / MODULES
    if not path.is_file():
        return []
    with naming(path):
        entries: list[_Entry] = build(list[_Entry], read_json(path, "model"))
    if not entries:
        raise BundleError(f"{path} is not a list of modules: it is empty")
    kinds = [one.type for one in entries]
    names = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
    return [Module(name, folder / one.path) for name, one in zip(names, entries, strict=True)]


def read_poolings(
    folder: Path, known: Collection[str] = tuple(POOLING_FLAGS.values())
) -> tuple[PoolingMode, ...]:
    """Return the poolings of a Pooling module, joined in this order; refuse any that is unknown."""
    path = folder / "config.json"
    config = read_object(path)
    given = config.get("pooling_mode")  # since version 5
    if given is None:
        flags = {
            key for key, value in config.items() if key.startswith("pooling_") and value is True
        }
        found = [mode for key, mode in POOLING_FLAGS.items() if key in flags]
        unknown = sorted(flags - set(POOLING_FLAGS))
    else:
        found = given if isinstance(given, list) else [given]
        unknown = [str(mode) for mode in found if mode not in known]
    advice = "is not supported: choose another by --pooling (pooling=)"
    if unknown or not found:
        raise BundleError(
            f"{path} declares the pooling {'+'.join(unknown) or 'none'}, which {advice}"
        )
    if config.get("include_prompt") is False:
        raise BundleError(
            f"{path}: include_prompt is false, and to leave the prompt out of the pooling {advice}"
        )
    return tuple(found)


def read_settings(folder: Path, expected: ModelKind = "SentenceTransformer") -> Declared:
    """Return the settings of a folder of the `expected` kind; the defaults where it has none."""
    path = folder / _SETTINGS
    values = read_object(path)
    if (kind := values.get("model_type", expected)) != expected:
        what = "gives no text vectors" if expected == "SentenceTransformer" else "scores no pairs"
        raise BundleError(f"{folder} is a {kind} of sentence-transformers: it {what}")
    prompts = values.get("prompts") or {}
    name, cut = values.get("default_prompt_name"), values.get("truncate_dim")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise BundleError(f"{path}: prompts is {prompts!r}, expected names and texts")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        raise BundleError(f"{path}: default_prompt_name {name!r} is not one of the prompts")
    if cut is not None and (not isinstance(cut, int) or cut < 1):
        raise BundleError(f"{path}: truncate_dim is {cut!r}, expected a number of dimensions")
    return Declared(
        prompts={key: prompt or "" for key, prompt in prompts.items()},
        default_prompt_name=name,
        similarity=str(values.get("similarity_fn_name") or "cosine"),
        truncate_dim=cut,
        activation=None if (made := values.get("activation_fn")) is None else str(made),
    )


def read_text_options(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that says how texts are tokenised, and its values; none without the file."""
    # Early versions had a file name for each family.
    files = (folder / "sentence_bert_config.json", *sorted(folder.glob("sentence_*_config.json")))
    path = next(filter(Path.is_file, files), files[0])
    values = read_object(path)
    limit = values.get("max_seq_length")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BundleError(f"{path}: max_seq_length is {limit!r}, expected a number of tokens")
    return path, values


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if there is no such file."""
    values = read_json(path, "model") if path.is_file() else {}
    if not isinstance(values, dict):
        raise BundleError(f"{path} is damaged: it is {type(values).__name__}, expected an object")
    return cast(dict[str, Any], values)
