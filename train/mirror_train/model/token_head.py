"""The head of a late-interaction model in PyTorch: a unit vector of each token, and MaxSim."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.bundle.declarations import write_modules
from mirror_rt.bundle.json_document import read_json
from mirror_rt.io.atomic import write_json
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.sides import SideTokenizer, TextSide
from mirror_rt.tokens.tokenization import TokenizedTexts
from mirror_train.model.dense import Dense, save_dense
from mirror_train.model.forward import Forward
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained

_OF_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
_BATCH = 32  # pairs that are scored at once
_LATE = "sentence_transformers.multi_vector_encoder.modules"


class TokenHead(Head):
    """A projection of each token, whose vectors [B, T, D] stand in for text vectors.

    Rows are filled with zeros to the number T of tokens, so that those of several passes go
    together.
    """

    gives_text_vectors = False

    def __init__(self, projection: Dense, length: int) -> None:
        super().__init__(["mean"], normalize=True)  # a pooling of no meaning here
        self.projection, self._length = projection, length

    def embed(self, model: nn.Module, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run an encoder; return the unit vectors of its tokens [B, T, D], and its own."""
        hidden: Tensor = model(**inputs).last_hidden_state
        vectors = functional.normalize(self.projection(hidden), dim=2)
        return functional.pad(vectors, (0, 0, 0, self._length - hidden.shape[1])), hidden


class BothSides:
    """The tokenizers of the queries and the documents of a model that is trained.

    Queries are filled up by mask tokens, which all tokens attend to (query expansion), where the
    model has such a token. Punctuation of documents gets no vector.
    """

    prompts: ClassVar = {"query": "query: ", "document": "document: "}

    def __init__(self, base: Pretrained, query_length: int, document_length: int) -> None:
        self.length = max(query_length, document_length)
        least, filler = (0, None) if base.mask_token is None else (query_length, base.mask_token)
        backend = base.hf_tokenizer.backend_tokenizer
        copy = backend.from_str(backend.to_str())
        options: dict[str, Any] = {
            "longest": self.length, "pad_id": base.pad_id, "left": base.cuts_left
        }  # fmt: skip
        self.query = TextSide(query_length, least=least, filler=filler)
        self.document = TextSide(document_length, skipped=[*string.punctuation])
        self._queries = SideTokenizer(copy, self.query, **options)
        self._documents = SideTokenizer(copy, self.document, **options)

    def __call__(self, queries: list[str], documents: list[str]) -> TokenizedTexts:
        """Return the tokens of queries, and then those of documents."""
        first = self._queries(queries, prompt=self.prompts["query"])
        second = self._documents(documents, prompt=self.prompts["document"])
        rows = [part.tokens.ids[slice(*span)] for part in (first, second)
                for span in part.tokens.spans()]  # fmt: skip
        return TokenizedTexts(RaggedTokens.from_arrays(rows), first.truncated + second.truncated)

    def scores(self, z: Tensor, tokens: RaggedTokens, n: int) -> Tensor:
        """Return MaxSim of n queries and m documents, [n, m], of their vectors z [n + m, T, D]."""
        batch = tokens.pad(None, pad_id=0, length=self.length)
        mask = batch.attention_mask != 0
        mask[n:] &= ~np.isin(batch.input_ids[n:], self._documents.skipped)
        kept = torch.from_numpy(mask).to(z.device)
        longest = int(tokens.lengths[n:].max())
        return maxsim(z[:n], kept[:n], z[n:, :longest], kept[n:, :longest])

    def declare(self, head: TokenHead, folder: Path) -> None:
        """Write the files by which sentence-transformers 6 describes a MultiVectorEncoder."""
        settings = {"model_type": "MultiVectorEncoder", "prompts": self.prompts}
        write_json(folder / "config_sentence_transformers.json", settings)
        query, expansion = self.query, None
        if query.filler is not None:
            expansion = {"strategy": "fixed", "length": query.least, "attend": True}
        texts = {"transformer_task": "feature-extraction", "query_length": query.max_length,
                 "module_output_name": "token_embeddings", "query_expansion": expansion,
                 "document_length": self.document.max_length}  # fmt: skip
        write_json(folder / "sentence_bert_config.json", texts)
        dense, mask, normalize = (
            folder / name for name in ("1_Dense", "2_MultiVectorMask", "3_Normalize")
        )
        for place in (dense, mask, normalize):
            place.mkdir()
        save_dense(head.projection, dense)
        write_json(dense / "config.json", read_json(dense / "config.json", "module") | _OF_TOKENS)
        write_json(mask / "config.json", {"skiplist_words": self.document.skipped})
        write_json(normalize / "config.json", _OF_TOKENS)
        kinds = {"": "Transformer", dense.name: "Dense",
                 mask.name: f"{_LATE}.MultiVectorMask", normalize.name: "Normalize"}  # fmt: skip
        write_modules(folder, kinds)


def maxsim(queries: Tensor, kept: Tensor, documents: Tensor, kept_of_documents: Tensor) -> Tensor:
    """Return the sum, over a query's vectors, of the largest product with one of a document.

    The vectors are [n, Tq, D] and [m, Td, D], with masks [n, Tq] and [m, Td] of those that count;
    the scores are [n, m] (ColBERT, Khattab and Zaharia 2020, section 3.3).
    """
    products = torch.einsum("qtd,psd->qpts", queries, documents)
    products = products.masked_fill(~kept_of_documents[None, :, None, :], -math.inf)
    return (products.amax(dim=3) * kept[:, None]).sum(dim=2)


@dataclass(frozen=True, slots=True)
class TorchMultiVector:
    """The scores of a late-interaction model's current weights, which `forward` runs."""

    forward: Forward
    sides: BothSides

    def scores(self, first: list[str], second: list[str]) -> npt.NDArray[np.float64]:
        """Return MaxSim of each of n queries with its own document, float64 [n]."""
        self.forward.model.eval()
        found = []
        with torch.inference_mode():
            for start in range(0, len(first), _BATCH):
                queries = first[start : start + _BATCH]
                tokens = self.sides(queries, second[start : start + _BATCH]).tokens
                z = self.forward.embed(tokens, self.forward.chunks(tokens)).float()
                found.append(self.sides.scores(z, tokens, len(queries)).diagonal())
        return np.asarray(torch.cat(found).double().cpu().numpy())
