"""List the fields that clients of other servers send: who sends each, and its effect.

A field that would change the result is used or refused, and never ignored. This table is the
source of the fields of bodies, of the OpenAPI document and of the list in docs/reference/http.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from mirror_rt.server.admission.problems import unusable

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, slots=True)
class ClientField:
    """A field that a request may have besides those of its Struct."""

    requests: str  # the kinds of requests that may have it
    name: str
    type: Any  # as msgspec takes it; null is always taken
    senders: str  # whose clients send it
    sets: str | None = None  # the field of the Struct that it sets; None if it has no effect
    # Its values, each with the one that it sets; others are refused. None: any is taken as it is.
    values: Mapping[Any, Any] | None = None

    @property
    def effect(self) -> str:
        """Describe its effect in a sentence."""
        if self.values is None:
            return f"The same as `{self.sets}`." if self.sets else "Without effect."
        if not self.values:
            return "Refused: it would change the result."
        kind = f"As `{self.sets}`" if self.sets else "Without effect"
        words = (json.dumps(one) + (f" is {json.dumps(to)}" if self.sets else "")
                 for one, to in self.values.items())  # fmt: skip
        return f"{kind}: {', '.join(words)}; others are refused."

    @property
    def annotation(self) -> Any:
        """Return its type, with its sentence for the OpenAPI document."""
        allowed = None if self.values is None else {"enum": [*self.values, None]}
        about = f"{self.effect} Sent by clients of {self.senders}."
        return Annotated[self.type | None, Meta(description=about, extra_json_schema=allowed)]

    def apply(self, request: Any) -> None:
        """Set the field that it stands for; Problem 422 for a value that changes the result."""
        value, why = getattr(request, self.name), None
        if value is None:
            return
        if self.values is not None and value not in self.values:
            why = self.effect
        else:
            value = value if self.values is None else self.values[value]
            if self.sets and getattr(request, self.sets) not in (None, value):
                why = f"`{self.sets}` says something else"
        if why is not None:
            raise unusable(self.name, why)
        if self.sets:
            setattr(request, self.sets, value)


_Number = Annotated[int, Meta(ge=1, le=1 << 20)]
_CUT = {True: "truncate", False: "error", "NONE": "error", "START": "truncate-left",
        "END": "truncate"}  # fmt: skip
_TASKS = {"retrieval.query": "query", "retrieval.passage": "document"}
_SAME = dict.fromkeys
# Kinds of requests: `openai` is /v1/embeddings, `cohere` /v2/embed, `tei` /embed, `all` /embed_all,
# `infer` the parameters of /v2/models/NAME/infer, `tensor` those of a tensor; `documents` are of
# rerankers with documents, `input` is /v1/reranking, `pairs` /score, `labels` /classify.
_VECTORS, _SCORES = "openai tei all cohere", "documents input pairs labels"
CLIENT_FIELDS = (
    ClientField("openai documents labels", "user", str, "OpenAI, vLLM, Infinity"),
    ClientField("openai tei cohere", "output_dimension", _Number, "Voyage, Cohere, LiteLLM",
                "dimensions"),
    ClientField("openai tei all", "output_dtype", str, "Voyage", None, _SAME(["float"])),
    ClientField("openai", "embedding_type", str, "Jina", "encoding_format",
                {"float": "float", "base64": "base64"}),
    ClientField("openai", "encoding_type", str, "LlamaIndex", "encoding_format",
                {"float": "float", "base64": "base64"}),
    ClientField("tei all", "embedding_type", str, "Jina", None, _SAME(["float"])),
    ClientField(_VECTORS, "embedding_types", tuple[str, ...], "Cohere", None,
                _SAME([("float",)])),
    ClientField("openai tei all", "late_chunking", bool, "Jina", None, _SAME([False])),
    ClientField("openai", "task", str, "Jina", "input_type", _TASKS),
    ClientField("tei all", "task", str, "Jina", None, {}),
    ClientField("openai tei all", "task_type", str, "Google", None, {}),
    ClientField("openai", "normalized", bool, "Jina, Mixedbread", "normalize"),
    ClientField("openai cohere", "truncate", bool | str, "Jina, Cohere, NIM", "on_too_long", _CUT),
    ClientField("openai", "truncation", bool, "Voyage", "on_too_long",
                {True: "truncate", False: "error"}),
    ClientField("openai", "truncate_prompt_tokens", int, "vLLM", "on_too_long", {-1: "truncate"}),
    ClientField("openai", "modality", str, "Infinity, NIM", None, _SAME(["text"])),
    ClientField("openai", "embed_dtype", str, "vLLM", None, _SAME(["float32"])),
    ClientField("openai", "endianness", str, "vLLM", None, _SAME(["native", "little"])),
    ClientField("openai", "add_special_tokens", bool, "vLLM", None, _SAME([True])),
    ClientField("openai", "drop_params", bool, "RAGFlow"),
    ClientField(f"openai {_SCORES} infer cohere", "priority", int, "vLLM, Cohere, Triton"),
    ClientField("documents", "top_k", _Number, "Voyage, Mixedbread, NIM", "top_n"),
    ClientField("documents", "truncation", bool, "Voyage", "truncate"),
    ClientField("documents pairs labels", "truncate_prompt_tokens", int, "vLLM", "truncate",
                {-1: True}),
    ClientField("documents pairs labels", "truncation_side", str, "vLLM", None, _SAME(["right"])),
    ClientField("documents pairs labels", "use_activation", bool, "vLLM", None, _SAME([True])),
    ClientField("documents", "max_chunks_per_doc", int, "Cohere"),
    ClientField("documents input", "rank_fields", tuple[str, ...], "Cohere, Mixedbread", None,
                _SAME([("text",)])),
    ClientField("documents", "return_len", bool | Literal["true"], "Xinference, RAGFlow"),
    ClientField("documents", "kwargs", str, "Xinference", None, _SAME(["{}"])),
    ClientField("documents", "return_embeddings", bool, "Jina", None, _SAME([False])),
    ClientField("documents pairs", "instruction", str, "vLLM", None, {}),
    ClientField("input", "rewrite_query", bool, "Mixedbread", None, _SAME([False])),
    ClientField("pairs", "queries", str | list[str], "vLLM", "text_1"),
    ClientField("pairs", "documents", str | list[str], "vLLM", "text_2"),
    ClientField("tensor", "content_type", str, "MLServer"),
    ClientField("infer", "sequence_id", int | str, "Triton"),
    ClientField("infer", "sequence_start", bool, "Triton"),
    ClientField("infer", "sequence_end", bool, "Triton"),
    ClientField("request", "model_name", str, "MLServer"),
)  # fmt: skip


def of_clients(kind: str) -> Callable[[type[T]], type[T]]:
    """Let a Struct have the fields of one kind of requests, besides its own."""

    def add(struct: type[T]) -> type[T]:
        own = [one for one in CLIENT_FIELDS if kind in one.requests.split()]
        every = (*getattr(struct, "client_fields", ()), *own)
        made = msgspec.defstruct(
            struct.__name__, [(one.name, one.annotation, None) for one in own], bases=(struct,),
            module=struct.__module__, kw_only=True, forbid_unknown_fields=True,
            namespace={"__doc__": struct.__doc__, "client_fields": every},
        )  # fmt: skip
        return cast("type[T]", made)

    return add


def settled(request: T) -> T:
    """Return a request in which the fields of clients have set those for which they stand."""
    for one in getattr(request, "client_fields", ()):
        one.apply(request)
    return request
