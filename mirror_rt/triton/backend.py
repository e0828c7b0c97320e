"""Turn texts into the inputs of a graph, as a model of Triton's Python backend.

`mirror-rt triton` copies this file into a model repository as model.py. There it only needs numpy
and tokenizers, and gives the same tokens as `Encoder.encode`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils  # which Triton has
from tokenizers import Tokenizer

# Dynamic batching only joins requests of the same shape, so lengths are rounded up to a multiple.
_MULTIPLE = 16
# Characters per token of the limit that are tokenised; a longer text counts as cut.
_CLIP = 1024


class TritonPythonModel:
    """The model class, whose name the backend expects."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read config.pbtxt and the tokenizer beside this file."""
        config = json.loads(args["model_config"])
        values = {
            name: entry.get("string_value", "") for name, entry in config["parameters"].items()
        }
        self._outputs = [output["name"] for output in config["output"]]
        self._prompt = values["prompt"]
        self._truncate = values["on_too_long"] == "truncate"
        self._max_length, self._pad_id = int(values["max_length"]), int(values["pad_id"])
        self._pad_to = int(values["pad_to"]) if "pad_to" in values else None
        self._tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._max_length)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with its tokens, or with the reason why there are none."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        rows = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
        try:
            inputs = self._tokenize([row.decode("utf-8") for row in rows.tolist()])
        except ValueError as error:  # UnicodeDecodeError is a ValueError, too
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, inputs[name]) for name in self._outputs]
        )

    def _tokenize(self, texts: list[str]) -> dict[str, npt.NDArray[np.int64]]:
        """Return all inputs that a graph may have, int64 [texts, length]; check the texts."""
        for i, text in enumerate(texts):
            if not text or text.isspace():
                raise ValueError(f"text {i} is empty")
        clip = _CLIP * self._max_length
        encodings = self._tokenizer.encode_batch([self._prompt + text[:clip] for text in texts])
        for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            if (encoding.overflowing or len(text) > clip) and not self._truncate:
                raise ValueError(f"text {i} is longer than {self._max_length} tokens")
        longest = max(len(encoding.ids) for encoding in encodings)
        rounded = min(self._max_length, -(-longest // _MULTIPLE) * _MULTIPLE)
        ids = np.full((len(texts), self._pad_to or rounded), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
