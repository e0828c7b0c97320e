"""Turn a call of `encode` into requests to a server, and their answers into vectors."""

from __future__ import annotations

import base64
import binascii
import json
import operator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.client.attempts import Reply, Settings
from mirror_rt.encoding.batch_encoder import as_list
from mirror_rt.errors import ConfigError, InvalidTextError
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.options import OnTooLong
from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.pipeline.prompts import check_text
from mirror_rt.tokens.validity import why_invalid
from mirror_rt.tokens.windows import cut_ranges
from mirror_rt.vectors.quantization import EmbeddingPrecision, Embeddings, quantize_embeddings

InputType = Literal["query", "document"]
# Limit for the texts of one request: far below the server's, even if every character is escaped.
_MOST_CHARACTERS = 1 << 20


class RemoteOptions(TypedDict, total=False):
    """The options of a client's `encode`, which documents them."""

    normalize_embeddings: bool | None
    truncate_dim: int | None
    precision: EmbeddingPrecision
    ranges: npt.ArrayLike | None
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnTooLong | None
    model: str | None
    lang: str | None


_OF_THE_SERVER = {
    "batch_size": "the server makes its own batches; Client(batch_size=) is the texts of a request",
    "errors": "a server answers for all texts of a request or for none",
    "show_progress_bar": "a client shows none",
}


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """One call of `encode`: the fields of its requests, and the form of the result."""

    texts: list[str]  # checked, in the caller's order
    single: bool  # whether the caller gave a single string
    model: str | None
    lang: str | None
    fields: dict[str, Any]  # of every body, besides the texts
    precision: EmbeddingPrecision
    ranges: npt.ArrayLike | None

    @classmethod
    def make(
        cls,
        inputs: Texts,
        options: RemoteOptions,
        settings: Settings,
        input_type: InputType | None,
    ) -> EncodeRequest:
        """Check a call before any of it is sent."""
        _check(options)
        single = isinstance(inputs, str)
        texts = as_list(inputs)
        invalid = [(i, why) for i, text in enumerate(texts) if (why := why_invalid(text))]
        if invalid:
            raise InvalidTextError(invalid)
        model, lang = options.get("model", settings.model), options.get("lang", settings.lang)
        kept = options.get("truncate_dim")
        fields = {
            "encoding_format": "base64",
            "model": model,
            "lang": lang,
            "input_type": input_type,
            "dimensions": None if kept is None else operator.index(kept),
            "normalize": options.get("normalize_embeddings"),
            "prompt_name": options.get("prompt_name"),
            "prompt": options.get("prompt"),
            "on_too_long": options.get("on_too_long", "truncate"),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        precision: EmbeddingPrecision = options.get("precision", "float32")
        return cls(texts, single, model, lang, fields, precision, options.get("ranges"))

    def pieces(self, most: int) -> list[range]:
        """Cut the texts into consecutive ranges, one per request, of at most `most` texts."""
        return cut_ranges([len(text) for text in self.texts], most, _MOST_CHARACTERS)

    def body(self, piece: range) -> bytes:
        """Return the body of the request for some of the texts."""
        texts = self.texts[piece.start : piece.stop]
        return json.dumps(self.fields | {"input": texts}, ensure_ascii=False).encode()

    def vectors(self, piece: range, reply: Reply) -> Vectors:
        """Return the vectors of an answer, float32 [len(piece), D]."""
        content = reply.json()
        try:
            rows = sorted(content["data"], key=lambda row: operator.index(row["index"]))
            data = [base64.b64decode(row["embedding"], validate=True) for row in rows]
            found = [row["index"] for row in rows]
            if found != list(range(len(piece))) or len(set(map(len, data))) != 1:
                raise ValueError("other rows than were asked for")
            return np.frombuffer(b"".join(data), dtype="<f4").reshape(len(piece), -1)
        except (LookupError, TypeError, ValueError, binascii.Error) as error:
            why = f"the server's answer is not the vectors of {len(piece)} texts ({error})"
            raise reply.strange(why) from error

    def result(self, parts: list[Vectors]) -> Embeddings:
        """Join the vectors of all pieces, in order, in the form that the caller asked for."""
        vectors = np.concatenate(parts).astype(np.float32, copy=False)
        embeddings: Embeddings = vectors
        if self.precision != "float32" or self.ranges is not None:
            embeddings = quantize_embeddings(vectors, self.precision, self.ranges)
        return embeddings[0] if self.single else embeddings

    def nothing(self, dimension: int) -> Embeddings:
        """Return the result for no texts, from a model of that dimension."""
        return self.result([np.empty((0, self.fields.get("dimensions", dimension)), np.float32)])


def _check(options: RemoteOptions) -> None:
    known = RemoteOptions.__annotations__
    for name in options:
        if name not in known:
            why = _OF_THE_SERVER.get(name, f"there are {', '.join(known)}")
            raise ConfigError(f"{name}: a client has no such option: {why}")
    kept = options.get("truncate_dim")
    if kept is not None and (not hasattr(kept, "__index__") or operator.index(kept) < 1):
        raise ConfigError(field="truncate_dim", expected="an integer of at least 1", value=kept)
    for name in ("prompt_name", "prompt", "on_too_long", "model", "lang"):
        check_text(name, options.get(name))
    if (precision := options.get("precision", "float32")) not in get_args(EmbeddingPrecision):
        names = ", ".join(get_args(EmbeddingPrecision))
        raise ConfigError(field="precision", expected=f"one of {names}", value=precision)
