"""Encode queries and documents to vectors of their tokens, whatever runs the model."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.encoding.token_vectors import vectors_of_rows
from mirror_rt.errors import ConfigError
from mirror_rt.keywords import refuse_unknown
from mirror_rt.late_interaction.projection import TokenModel
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.schema import one_of
from mirror_rt.tokens.sides import read_sides
from mirror_rt.tokens.windows import TextWindow
from mirror_rt.vectors.token_pooling import pool_tokens

Side = Literal["query", "document"]
# Those options of `Encoder.encode` that vectors of tokens have.
OPTIONS = ("batch_size", "prompt_name", "prompt", "on_too_long", "precision")
_CHOICES = {"on_too_long": ("truncate", "error"),
            "precision": ("float32", "float16", "int8", "uint8")}  # fmt: skip


class TokenEncoder:
    """A pipeline for each side of a late-interaction model.

    Attributes:
        tokens: how the model makes vectors of tokens.
        sides: the tokenizers of the sides `query` and `document`.
        pipelines: their pipelines.
        prompts: the prompts of the model.
    """

    def __init__(self, described: ModelDescription, model: TokenModel) -> None:
        manifest = described.bundle
        assert manifest.tokens is not None
        self.tokens = manifest.tokens
        self.sides = read_sides(
            described.folder / manifest.tokenizer,
            {"query": self.tokens.query, "document": self.tokens.document},
            pad_id=manifest.pad_id,
            settings=described.tokenizer,
        )
        self.prompts = Prompts(manifest.prompts, manifest.default_prompt_name)
        self.pipelines = {
            name: Pipeline(one, model, normalize=manifest.normalize, prompts=self.prompts)
            for name, one in self.sides.items()
        }

    def encode(
        self,
        side: Side,
        texts: list[Any] | TextWindow,
        options: EncodeKeywords,
        pooling: tuple[float, int] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Return the vectors [t, D] of each text of a side.

        Args:
            side: `query` or `document`.
            texts: the texts, unchecked, or a window of texts that were checked.
            options: some of those of `Encoder.encode`, see `OPTIONS`.
            pooling: the factor and the protected tokens of `pool_tokens`; None for no pooling.
        """
        refuse_unknown(f"encode_{side}", options, OPTIONS)
        for name, known in _CHOICES.items():
            if (value := options.get(name, known[0])) not in known:
                raise ConfigError(field=name, expected=one_of(known), value=value)
        given = cast(EncodeKeywords, {"prompt_name": getattr(self.tokens, side).prompt, **options})
        if options.get("prompt") is not None:
            given["prompt_name"] = options.get("prompt_name")
        pipeline, skipped = self.pipelines[side], self.sides[side].skipped
        plan = pipeline.plan_for_tokens(**given)
        window = texts if isinstance(texts, TextWindow) else TextWindow.check(0, texts)
        tokens = pipeline.tokenize(window, plan).tokens
        made = []
        found = vectors_of_rows(pipeline, tokens, plan)
        for vectors, (begin, end) in zip(found, tokens.spans(), strict=True):
            ids = tokens.ids[begin:end]
            kept = vectors[~np.isin(np.maximum(ids, ~ids), skipped)]
            if pooling is not None:
                kept = pool_tokens(kept, pooling[0], protected=pooling[1])
            made.append(plan.quantizer(kept))
        return made
