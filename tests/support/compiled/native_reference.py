"""Encoders like BERT and ModernBERT in numpy and float64, to compare the native engine with."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes of a random encoder; `embedded` below `hidden` means a projection.

    `windows` are those of the layers, of an encoder in the form of ModernBERT; `decoder` makes it
    one of Gemma's kind, whose heads have `size` numbers. With `distances` it has DeBERTa's vectors.
    """

    hidden: int = 64
    heads: int = 4
    inner: int = 128
    embedded: int = 0
    layers: int = 2
    positions: int = 150
    vocabulary: int = 60
    activation: str = "gelu"
    relative: bool = False
    distances: bool = False
    skipped_id: int = -1
    windows: tuple[int, ...] = ()
    types: int = 0
    decoder: bool = False
    causal: bool = False
    key_heads: int = 0
    size: int = 0

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.size or self.hidden // self.heads

    @property
    def shared(self) -> int:
        """Number of heads of keys."""
        return self.key_heads or self.heads


class RandomEncoder:
    """Random weights, the arguments that pass them to the engine, and the vectors they give."""

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        self.sizes = sizes
        self._random = np.random.default_rng(seed)
        s, h = sizes, sizes.hidden
        e = s.embedded or h
        self.words = self._normal(s.vocabulary, e)
        self.positions = self._normal(s.positions, 0 if s.windows else e)
        self.norm = self._norm(e)
        self.projection = self._dense(e, h) if s.embedded else None
        self.skipped = self._normal(e) if s.skipped_id >= 0 else None
        self.relative = self._normal(s.heads, 2 * s.positions - 1) if s.relative else None
        self.buckets = None
        self.layers = [
            {
                "query_key_value": self._dense(h, (s.heads + 2 * s.shared) * s.head),
                "attention_out": self._dense(s.heads * s.head, h),
                "attention_norm": self._norm(h),
                # reaches where GELU is flat, too
                "inner": self._dense(h, s.inner * (2 if s.windows else 1), 2.0),
                "out": self._dense(s.inner, h),
                "out_norm": self._norm(h),
            }
            for _ in range(s.layers)
        ]
        for number, window in enumerate(s.windows):
            self.layers[number] |= {"window": window, "rotary": self._angles(10.0 ** (number + 1))}
        for layer in self.layers if s.decoder else ():
            layer |= {name: self._norm(s.head) for name in ("query_norm", "key_norm")}
            layer |= {name: self._norm(h) for name in ("attention_after", "out_after")}
        if s.distances:
            steps = self._random.integers(0, 2, 2 * s.positions - 1)
            self.buckets = steps.cumsum(dtype=np.int32)
        for layer in self.layers if s.distances else ():
            layer["distances"] = self._normal(self.buckets[-1] + 1, 2 * s.heads * s.head)
        self.types = self._normal(s.types, e) if s.types else None

    def native(self, core, precision, instruction_set=""):
        """Make the same encoder in the module `core`."""
        s = self.sizes
        encoder = core.NativeEncoder(
            precision=precision,
            heads=s.heads,
            inner=s.inner,
            key_heads=s.shared,
            size=s.head,
            scale=s.head**-0.5,
            word_scale=3.0 if s.decoder else 1.0,
            raw=s.decoder,
            centred=not s.decoder,
            causal=s.causal,
            epsilon=1e-6,
            activation=s.activation,
            words=self.words,
            positions=self.positions,
            norm=self.norm,
            types=self.types,
            projection=self.projection,
            relative=self.relative,
            buckets=self.buckets,
            skipped_id=s.skipped_id,
            skipped=self.skipped,
            gated=bool(s.windows),
            pre_norm=bool(s.windows),
            instruction_set=instruction_set,
        )
        for layer in self.layers:
            encoder.add_layer(**layer)
        return encoder

    def token_vectors(
        self, ids: list[int], types: list[int] | None = None, attended: int | None = None
    ) -> np.ndarray:
        """Compute the vectors of the tokens of one text, float64 [L, H]; None for types of 0.

        The first `attended` tokens are attended to, by default all.
        """
        self._attended = len(ids) if attended is None else attended
        real = np.array(ids) != self.sizes.skipped_id
        positions = self.positions[np.maximum(np.cumsum(real) - 1, 0)].astype(np.float64)
        if self.skipped is not None:
            positions[~real] = self.skipped
        embedded = self.words[ids] + (0 if self.sizes.windows else positions)
        if self.types is not None:
            embedded = embedded + self.types[types or [0] * len(ids)]
        if self.sizes.decoder:
            x = embedded.astype(np.float64) * 3
            return self._modern(x, _normalize(x, self.norm, centred=False))
        x = _normalize(embedded, self.norm)
        if self.projection:
            x = _linear(x, self.projection)
        if self.sizes.windows:
            return self._modern(x, x)
        for layer in self.layers:
            context = self._attend(_linear(x, layer["query_key_value"]), layer)
            x = _normalize(x + _linear(context, layer["attention_out"]), layer["attention_norm"])
            inner = _ACTIVATIONS[self.sizes.activation](_linear(x, layer["inner"]))
            x = _normalize(x + _linear(inner, layer["out"]), layer["out_norm"])
        return x

    def _modern(self, x: np.ndarray, normed: np.ndarray) -> np.ndarray:
        centred = not self.sizes.decoder

        def after(part: np.ndarray, name: str) -> np.ndarray:
            return _normalize(part, layer[name], centred=centred) if name in layer else part

        for layer in self.layers:
            context = self._attend(_linear(normed, layer["query_key_value"]), layer)
            x = x + after(_linear(context, layer["attention_out"]), "attention_after")
            inner = _linear(_normalize(x, layer["attention_norm"], centred=centred), layer["inner"])
            activated = _ACTIVATIONS[self.sizes.activation](inner[:, : self.sizes.inner])
            part = _linear(activated * inner[:, self.sizes.inner :], layer["out"])
            x = x + after(part, "out_after")
            normed = _normalize(x, layer["out_norm"], centred=centred)
        return normed

    def _attend(self, qkv: np.ndarray, layer: dict) -> np.ndarray:
        s, n, group = self.sizes, len(qkv), self.sizes.heads // self.sizes.shared
        split = qkv.reshape(n, -1, s.head).transpose(1, 0, 2)
        query, key, value = np.split(split, [s.heads, s.heads + s.shared])
        if "query_norm" in layer:
            query, key = (
                _normalize(x, (layer[name][0], 0), centred=False)
                for x, name in ((query, "query_norm"), (key, "key_norm"))
            )
        key, value = key.repeat(group, axis=0), value.repeat(group, axis=0)
        if "rotary" in layer:
            query, key = (_rotate(x, layer["rotary"][:n]) for x in (query, key))
        scores = query @ key.transpose(0, 2, 1)
        if "distances" in layer:
            of_keys, of_queries = np.split(layer["distances"].astype(np.float64), 2, axis=1)
            vectors = [
                x.reshape(-1, s.heads, s.head).transpose(1, 2, 0) for x in (of_queries, of_keys)
            ]
            i, j = np.arange(n)[:, None], np.arange(n)
            bucket = self.buckets[j - i + s.positions - 1]
            scores += (query @ vectors[0])[:, i, bucket] + (key @ vectors[1])[:, j, bucket]
        scores /= np.sqrt(query.shape[-1])
        if self.relative is not None:
            distance = np.arange(n) - np.arange(n)[:, None]
            scores += self.relative[:, distance + self.sizes.positions - 1]
        if layer.get("window"):
            distance = np.arange(n) - np.arange(n)[:, None]
            scores[:, np.abs(distance) > layer["window"]] = -np.inf
        scores[:, :, self._attended :] = -np.inf
        if s.causal:
            scores[:, np.arange(n)[:, None] < np.arange(n)] = -np.inf
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        context = powers / powers.sum(-1, keepdims=True) @ value
        return context.transpose(1, 0, 2).reshape(n, -1)

    def _angles(self, base: float) -> np.ndarray:
        size = self.sizes.head
        frequencies = base ** (-np.arange(0, size, 2) / size)
        angles = np.arange(self.sizes.positions)[:, None] * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def _normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self._random.normal(size=shape) * scale).astype(np.float32)

    def _dense(self, depth: int, columns: int, scale: float = 1.0):
        weight = self._normal(depth, columns, scale=scale / np.sqrt(depth))
        return weight, self._normal(columns, scale=0.1)

    def _norm(self, n: int):
        return 1 + self._normal(n, scale=0.1), self._normal(n, scale=0.1)


def _rotate(x, table):
    """Rotate each number with the one half a head further: [heads, L, d] by [L, d]."""
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = np.split(table.astype(np.float64), 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _linear(x, pair):
    return x @ pair[0].astype(np.float64) + pair[1]


def _normalize(x, pair, *, centred=True):
    x = x.astype(np.float64)
    centered = x - x.mean(-1, keepdims=True) if centred else x
    variance = (centered**2).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-6) * pair[0] + pair[1]


def _gelu(x):
    return x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}
