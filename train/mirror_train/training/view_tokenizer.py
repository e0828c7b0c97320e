"""Tokenise the strings of a step, and mask spans of tokens where the recipe asks for it."""

from __future__ import annotations

from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.data.batches import StepBatch
from mirror_train.data.token_masking import mask_token_spans
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.recipe import Recipe


class ViewTokenizer:
    """A tokenizer of a step's strings that masks a span of each positive if the recipe says so."""

    def __init__(self, pretrained: Pretrained, recipe: Recipe) -> None:
        self._tokenize = pretrained.text_tokenizer(recipe.max_length)
        self._recipe = recipe
        tokenizer = pretrained.hf_tokenizer
        self._mask_id = tokenizer.mask_token_id
        frame = ("cls", "sep", "bos", "eos", "pad")
        found = [getattr(tokenizer, f"{name}_token_id") for name in frame]
        self._special_ids = {id for id in found if id is not None}

    def __call__(self, batch: StepBatch) -> RaggedTokens:
        """Return the tokens of the strings of a batch."""
        tokens = self._tokenize(batch.texts).tokens
        if batch.span_draws is None:
            return tokens
        return mask_token_spans(
            tokens,
            batch.span_draws,
            probability=self._recipe.span_probability,
            most=self._recipe.span_length,
            mask_id=self._mask_id,
            special_ids=self._special_ids,
            first=len(tokens) // batch.views,
        )
