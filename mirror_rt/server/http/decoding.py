"""Decode bodies to structs; large ones in parts and in another thread, so that nobody waits.

A decoder holds the interpreter lock as long as it runs: 16 MB of short lists take more than a
second. So the one list or text that makes a body large is cut (csrc/json_cuts.cpp). The rest of
the body is decoded first, then one part after the other.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from mirror_rt import _core
from mirror_rt.server.admission.problems import Problem, too_large
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.http.client_fields import settled
from mirror_rt.tokens.chunking import MOST_CHARACTERS

# A body of at most this many bytes is decoded at once, which takes some milliseconds.
_SMALL = 128 << 10
# Least bytes of a part, and most bytes of an item that cannot be cut (a list of token ids).
_PART, _LARGEST_ITEM = 64 << 10, 1 << 20
# Replaces the large value, or its contents, while the rest of the body is decoded. It is longer
# than any field of bounded length allows, so that such a field is refused just as its real value
# would be.
STAND_IN = "\0large" * 1000

T = TypeVar("T", bound=msgspec.Struct)


def decoders(type: type[T]) -> dict[str, msgspec.json.Decoder[T]]:
    """Return decoders of a struct, by the effect of fields that it does not have."""
    lenient = msgspec.defstruct(type.__name__, [], bases=(type,), forbid_unknown_fields=False)
    return {"refuse": msgspec.json.Decoder(type), "ignore": msgspec.json.Decoder(lenient)}


class BodyDecoder(Generic[T]):
    """A decoder of the bodies of one path to a struct.

    `field` may be large (with dots, it is that of a nested struct), and `items` is its type as a
    list; `stand_in` is an item of such a list that no request has, a text unless it takes none.
    """

    def __init__(self, type: type[T], field: str, items: Any, stand_in: object = STAND_IN) -> None:
        self._decoders = decoders(type)
        self._items = msgspec.json.Decoder(items)
        self._field, self._stand_in = field, stand_in

    async def __call__(self, body: bytes, config: ServerConfig) -> T:
        """Decode a body, with as many items and such fields as the server takes.

        A byte order mark before it is left out, as RFC 8259 allows.
        """
        body = body.removeprefix(codecs.BOM_UTF8)
        if len(body) <= _SMALL:
            return settled(self._decoders[config.unknown_fields].decode(body))
        return settled(await asyncio.to_thread(self._decode_large, body, config))

    def _decode_large(self, body: bytes, config: ServerConfig) -> T:
        start, stop, cuts = _core.find_large_json_value(body, _PART)
        if len(body) - (stop - start) > _SMALL:
            raise self._too_large()
        is_list = body[start : start + 1] == b"["
        given = [self._stand_in] if is_list else self._stand_in
        stand_in = msgspec.json.encode(given)
        decoder = self._decoders[config.unknown_fields]
        request = decoder.decode(body[:start] + stand_in + body[stop:])
        if is_list and body[stop - 1 : stop] != b"]":
            raise msgspec.DecodeError(f"JSON is malformed: expected ']' (byte {stop - 1})")
        *path, name = self._field.split(".")
        holder: Any = request
        for step in path:
            holder = getattr(holder, step)
        if getattr(holder, name) != given:
            raise self._too_large()
        # No list of token ids has as many items; the rest of a longer list is not read.
        most = max(config.max_items, _PART)
        parts = _parts(body, start + 1, stop - 1, cuts, is_text=not is_list)
        values = self._join(parts, most)
        setattr(holder, name, values if is_list else values[0])
        return request

    def _join(self, parts: Iterator[tuple[bytes, bool, bool]], most: int) -> list[Any]:
        values: list[Any] = []
        text: list[str] = []  # parts of a text whose end has not come yet
        for part, continued, continues in parts:
            if len(part) > _LARGEST_ITEM:
                raise self._too_large()
            try:
                found = self._items.decode(part)
            except msgspec.ValidationError as error:
                raise self._renumbered(error, len(values)) from None
            if continued:
                text.append(found.pop(0))
                if sum(map(len, text)) > MOST_CHARACTERS:
                    why = f"a text of more than {MOST_CHARACTERS} characters"
                    raise too_large(self._field, why)
                if not continues or found:
                    values.append("".join(text))
                    text.clear()
            if continues and (found or not continued):
                text.append(found.pop())
            values += found
            if len(values) > most:
                raise too_large(self._field, f"more than {most} items")
        return values

    def _renumbered(self, error: msgspec.ValidationError, first: int) -> msgspec.ValidationError:
        """Return a part's error, with the index of the item in the whole body."""

        def place(match: re.Match[str]) -> str:
            return f"`$.{self._field}[{first + int(match[1])}]"

        return msgspec.ValidationError(re.sub(r"`\$\[(\d+)\]", place, str(error), count=1))

    def _too_large(self) -> Problem:
        return Problem(413, f"the body has more than {_SMALL} bytes besides the texts of "
                       f"{self._field}, or token ids of more than {_LARGEST_ITEM} bytes",
                       "too_large", self._field)  # fmt: skip


def _parts(
    body: bytes, start: int, stop: int, cuts: list[tuple[int, bool]], *, is_text: bool
) -> Iterator[tuple[bytes, bool, bool]]:
    """Yield parts of a value as lists; say whether the first and the last text is incomplete."""
    continued = is_text
    for at, in_text in [*cuts, (stop, is_text)]:
        quotes = b'"' if continued else b"", b'"' if in_text else b""
        content = body[start:at]
        if cuts and not is_text and not continued and not in_text and not content.strip():
            raise msgspec.DecodeError("JSON is malformed: a comma without a value")
        yield b"[" + quotes[0] + content + quotes[1] + b"]", continued, in_text and at != stop
        start, continued = at if in_text else at + 1, in_text
