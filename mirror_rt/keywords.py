"""Show options in the signatures of functions that take them as keywords, and refuse unknown ones.

`Encoder.encode_query(texts, **options)` takes the fields of `EncodeOptions`. `help`, editors and
the reference see a signature; this module writes the fields into it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from mirror_rt.errors import UnknownOptionError

C = TypeVar("C", bound=type[Any])

# A name of sentence-transformers or fastembed -> the line to write here.
_HINTS = {
    "cache_folder": "set MIRROR_RT_CACHE",
    "cache_dir": "set MIRROR_RT_CACHE",
    "chunk_size": "leave it out",
    "convert_to_numpy": "leave it out: the result is a numpy array",
    "convert_to_tensor": "write torch.from_numpy(encoder.encode(texts))",
    "cuda": "write Encoder.load(path, providers='cuda')",
    "device": "write Encoder.load(path, providers='cuda', devices=[0]), or providers='cpu'",
    "device_ids": "write Encoder.load(path, providers='cuda', devices=[0, 1])",
    "local_files_only": "write Encoder.load(path, offline=True)",
    "model_kwargs": "give the options of Encoder.load themselves",
    "output_value": "write encoder.encode_tokens(texts) for a vector of each token",
    "parallel": "leave it out: a call uses all processors",
    "pool": "leave it out: a call uses all processors",
    "trust_remote_code": "leave it out: a bundle has no code",
}
ATTRIBUTES = {
    "device": "encoder.devices",
    "embed": "encoder.encode_iter(texts)",
    "embedding_size": "encoder.dimension",
    "get_embedding_dimension": "encoder.dimension",
    "get_sentence_embedding_dimension": "encoder.dimension",
    "max_seq_length": "encoder.max_length",
    "passage_embed": "encoder.encode_document(texts)",
    "query_embed": "encoder.encode_query(texts)",
    "similarity_pairwise": "(a * b).sum(1), for unit vectors",
}


def refuse_unknown(owner: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise UnknownOptionError for the first keyword of `given` that is not `known`."""
    for name in given:
        if name not in known:
            hint = _HINTS.get(name, f"it takes {', '.join(known)}")
            raise UnknownOptionError(f"{owner} takes no argument {name!r}: {hint}")


def with_visible_options(*kinds: type[Any]) -> Callable[[C], C]:
    """Return a class decorator that puts the fields of option dataclasses into signatures.

    A method's `**options: Unpack[EncodeKeywords]` is shown as the fields of `EncodeOptions`.
    """
    by_annotation = {f"Unpack[{k.__name__.replace('Options', 'Keywords')}]": k for k in kinds}

    def decorate(cls: C) -> C:
        for member in vars(cls).values():
            function = getattr(member, "__func__", member)  # of a class method
            annotations = getattr(function, "__annotations__", {}).values()
            for kind in {by_annotation[a] for a in annotations if a in by_annotation}:
                function.__signature__ = _with_fields(inspect.signature(function), kind)
        return cls

    return decorate


def _with_fields(signature: inspect.Signature, kind: type[Any]) -> inspect.Signature:
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    defaults = kind()
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(defaults, field.name),
            annotation=field.type,
        )
        for field in fields(kind)
        if field.name not in signature.parameters
    ]
    return signature.replace(parameters=[*own, *added])


def take_paths(config: Any) -> None:
    """Make paths of the texts in those fields of a dataclass that hold paths."""
    for one in fields(config):
        if "Path" in str(one.type) and isinstance(given := getattr(config, one.name), str):
            object.__setattr__(config, one.name, Path(given))
