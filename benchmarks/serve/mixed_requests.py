"""Requests of every path of the server, each with a check of its answer.

A model may be replaced while requests are under way, so an answer is right if it is wholly that of
one of the versions.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt import LanguagePack

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Request:
    """A path, its body (None for GET), and what raises AssertionError on a wrong answer."""

    path: str
    body: bytes | None
    check: Callable[[bytes], None]


class MixedRequests:
    """Requests drawn at random: most embed a few texts, some do the rest, as traffic has it.

    Args:
        packs: the versions of a pack that may answer, with the same languages.
        texts: texts to draw from.
        seed: seed of the choice.
    """

    def __init__(self, packs: Sequence[LanguagePack], texts: Sequence[str], *, seed: int = 0):
        self._packs, self._texts, self._rng = packs, texts, random.Random(seed)
        kinds = {self._embed: 8, self._openai: 8, self._infer: 2, self._similarity: 2,
                 self._embed_all: 1, self._tokenize: 1, self._decode: 1, self._get: 1}  # fmt: skip
        self._requests = {kind: [kind() for _ in range(40)] for kind in kinds}
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def draw(self) -> Request:
        """Return one of the requests."""
        return self._rng.choice(self._requests[self._rng.choices(self._kinds, self._weights)[0]])

    def _some(self, most: int = 8) -> tuple[str, list[str]]:
        texts = self._rng.sample(self._texts, self._rng.randint(1, most))
        return self._rng.choice(sorted(self._packs[0].languages)), texts

    def _vectors(self, lang: str, texts: list[str]) -> list[npt.NDArray[np.float32]]:
        return [pack.encode(texts, lang=lang) for pack in self._packs]

    def _embed(self) -> Request:
        lang, texts = self._some()
        expected = self._vectors(lang, texts)
        return _post("/embed", {"inputs": texts, "lang": lang},
                     lambda found: _one_of(expected, found))  # fmt: skip

    def _openai(self) -> Request:
        lang, texts = self._some()
        expected = self._vectors(lang, texts)

        def check(found: Any) -> None:
            rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4")
                    for row in found["data"]]  # fmt: skip
            _one_of(expected, rows)

        body = {"input": texts, "lang": lang, "encoding_format": "base64", "model": "mirror"}
        return _post("/v1/embeddings", body, check)

    def _infer(self) -> Request:
        lang, texts = self._some()
        expected = [rows.ravel() for rows in self._vectors(lang, texts)]
        given = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return _post(f"/v2/models/mirror-{lang}/infer", {"inputs": [given]},
                     lambda found: _one_of(expected, found["outputs"][0]["data"]))  # fmt: skip

    def _similarity(self) -> Request:
        lang, (first, *texts) = self._some(4)
        texts = texts or [first]
        expected = [(rows[:1] @ rows[1:].T)[0] for rows in self._vectors(lang, [first, *texts])]
        inputs = {"source_sentence": first, "sentences": texts}
        return _post("/similarity", {"inputs": inputs, "lang": lang},
                     lambda found: _one_of(expected, found))  # fmt: skip

    def _embed_all(self) -> Request:
        lang, texts = self._some(2)
        expected = [pack.encode_tokens(texts, lang=lang) for pack in self._packs]

        def check(found: Any) -> None:
            _one_of([np.concatenate(rows) for rows in expected],
                    list(itertools.chain(*found)))  # fmt: skip

        return _post("/embed_all", {"inputs": texts, "lang": lang}, check)

    def _tokenize(self) -> Request:
        lang, texts = self._some(3)
        ids = self._ids(lang, texts)

        def check(found: Any) -> None:
            assert [[token["id"] for token in row] for row in found] == ids, found

        return _post("/tokenize", {"inputs": texts, "lang": lang}, check)

    def _decode(self) -> Request:
        lang, texts = self._some(3)
        ids = self._ids(lang, texts)

        def check(found: Any) -> None:
            assert len(found) == len(texts), found
            assert all(isinstance(text, str) and text for text in found), found

        return _post("/decode", {"ids": ids, "lang": lang}, check)

    def _ids(self, lang: str, texts: list[str]) -> list[list[int]]:
        with self._packs[0].encoder(lang) as encoder:
            return [[piece.id for piece in row] for row in encoder.token_pieces(texts)]

    def _get(self) -> Request:
        path = self._rng.choice(["/health", "/info", "/v1/models", "/status", "/metrics"])

        def check(found: bytes) -> None:
            if path != "/metrics":
                assert isinstance(json.loads(found or b"{}"), dict), found
            else:
                assert b"mirror_rt" in found, found[:200]

        return Request(path, None, check)


def _post(path: str, body: dict[str, Any], check: Callable[[Any], None]) -> Request:
    data = json.dumps(body).encode()
    return Request(path, data, lambda content: check(json.loads(content)))


def _one_of(versions: Sequence[npt.NDArray[np.float32]], found: Any) -> None:
    """Check that an answer is that of one version as a whole, not rows of several."""
    rows = np.asarray(found, np.float32)
    differences = [float(np.abs(rows - expected).max()) for expected in versions
                   if expected.shape == rows.shape]  # fmt: skip
    assert differences, f"shape {rows.shape}, expected {versions[0].shape}"
    assert min(differences) <= TOLERANCE, f"differs by {min(differences)}"
