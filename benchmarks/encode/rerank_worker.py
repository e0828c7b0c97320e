"""Run one contender of encode/rerank.py, as encode/worker.py runs those of encode/compare.py.

All give the logits of one query with a list of documents.
"""

from __future__ import annotations

import functools
import os
import time

from worker import main

BATCHES = (16, 32, 100)


class MirrorRt:
    """This project; `batch` is its batch_size, counted in pairs of 64 tokens."""

    batches = (16, 32, 64)

    def __init__(self, folder, threads, variant="fp32"):
        from mirror_rt import Reranker

        if isa := os.environ.get("MIRROR_RT_BENCHMARK_ISA"):
            from instruction_sets import native

            self.reranker = native(folder, variant, isa, threads=threads, load=Reranker.load)
        else:
            self.reranker = Reranker.load(folder, variant=variant, threads=threads)

    def score(self, query, documents, batch):
        ranking = self.reranker.rank(query, documents, batch_size=batch, activation="identity")
        return [entry["score"] for entry in sorted(ranking, key=lambda entry: entry["corpus_id"])]


class SentenceTransformers:
    batches = BATCHES

    def __init__(self, folder, threads, backend="torch"):
        import torch
        from sentence_transformers import CrossEncoder

        torch.set_num_threads(threads)
        options = {}
        if backend == "onnx":
            import onnxruntime

            session = onnxruntime.SessionOptions()
            session.intra_op_num_threads = threads
            options = {"provider": "CPUExecutionProvider", "session_options": session}
        self.logits = torch.nn.Identity()
        self.model = CrossEncoder(folder, device="cpu", backend=backend, model_kwargs=options)

    def score(self, query, documents, batch):
        ranking = self.model.rank(
            query, documents, batch_size=batch, show_progress_bar=False, activation_fn=self.logits
        )
        return [
            float(entry["score"]) for entry in sorted(ranking, key=lambda one: one["corpus_id"])
        ]


class Fastembed:
    batches = BATCHES

    def __init__(self, folder, threads):
        from fastembed.common.model_description import ModelSource
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        TextCrossEncoder.add_custom_model(
            model="local/model", sources=ModelSource(hf="local/model")
        )
        self.model = TextCrossEncoder(
            "local/model", specific_model_path=folder, threads=threads, cuda=False
        )

    def score(self, query, documents, batch):
        return list(self.model.rerank(query, documents, batch_size=batch))


class Infinity:
    """Its batch size is an option of the engine, which sorts what waits by length."""

    batches = (32,)

    def __init__(self, folder, threads):
        import asyncio

        import torch
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        torch.set_num_threads(threads)
        self.loop = asyncio.new_event_loop()
        self.engine = AsyncEmbeddingEngine.from_args(
            EngineArgs(model_name_or_path=folder, device="cpu", engine="torch", dtype="float32",
                       batch_size=self.batches[0], model_warmup=False)
        )  # fmt: skip
        self.loop.run_until_complete(self.engine.astart())

    def score(self, query, documents, batch):
        found, _ = self.loop.run_until_complete(
            self.engine.rerank(query=query, docs=documents, raw_scores=True)
        )
        return [one.relevance_score for one in sorted(found, key=lambda one: one.index)]


def score(contender, order):
    began = time.perf_counter()
    scores = contender.score(order["query"], order["documents"], order["batch"])
    return {"seconds": time.perf_counter() - began, "scores": list(map(float, scores))}


CONTENDERS = {
    **{
        f"mirror-rt {variant}": functools.partial(MirrorRt, variant=variant)
        for variant in ("fp32", "bf16", "int8")
    },
    "sentence-transformers torch": SentenceTransformers,
    "sentence-transformers onnx": functools.partial(SentenceTransformers, backend="onnx"),
    "fastembed": Fastembed,
    "infinity": Infinity,
}

if __name__ == "__main__":
    main(CONTENDERS, {"score": score, "batches": lambda one, _: {"batches": one.batches}})
