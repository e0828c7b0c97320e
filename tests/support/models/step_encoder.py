"""An encoder whose tokens are characters, and whose runs wait until a test lets them go on."""

import threading

import numpy as np

from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.inference.pooled_model import PooledModel
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import TokenizedTexts
from mirror_rt.tokens.validity import find_invalid


class CharacterTokenizer:
    """A token a character."""

    max_length, pad_id, clip_characters, left_out = 1000, 0, 1000, -1
    special_tokens, unknown_id = 0, -1

    def __init__(self):
        self.threads = set()

    def short_ids(self, text, prompt):
        """Nothing takes the short way: `threads` has those that tokenise."""

    def find_invalid(self, inputs):
        return find_invalid(inputs)

    def __call__(self, texts, *, prompt=""):
        self.threads.add(threading.current_thread())
        ids = [[ord(character) for character in prompt + text] for text in texts]
        return TokenizedTexts(RaggedTokens.from_lists(ids), [False] * len(texts))


class StepModel(PooledModel):
    """Every run waits for `step`. A text with `!` makes its batch fail, one with `~` gives NaN."""

    def __init__(self, *, held):
        super().__init__(2)
        self.batches = []
        self.began = threading.Semaphore(0)
        self._steps = threading.Semaphore(0)
        self._held = held

    def run_batch(self, batch, *, normalize):
        assert not normalize
        texts = ["".join(map(chr, row[row > 0])) for row in batch.input_ids]
        self.batches.append(texts)
        self.began.release()
        if self._held:
            assert self._steps.acquire(timeout=60)
        if any("!" in text for text in texts):
            raise ValueError(f"failed on {texts}")
        return np.array([self.vector(text) for text in texts], dtype=np.float32)

    @staticmethod
    def vector(text):
        return [np.nan, 1] if "~" in text else [len(text), ord(text[0])]

    def step(self, n=1):
        self._steps.release(n)

    def free(self):
        self._held = False
        self._steps.release(10_000)


class StepEncoder(BatchEncoder):
    """An encoder with such a model, whose members it has, too."""

    def __init__(self, *, held=True):
        model = StepModel(held=held)
        super().__init__(Pipeline(CharacterTokenizer(), model), mask_token=None)

    def __getattr__(self, name):
        return getattr(self.pipeline.model, name)
