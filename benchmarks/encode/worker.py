"""Run one contender of encode/compare.py or gpu/encoder.py, which takes its orders by line.

It runs in an environment of its own, on the device that MIRROR_RT_BENCHMARK_DEVICE names. It knows
nothing about the others, and times only the calls that a user would make. Every line on standard
input is a JSON object, and so is every answer.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path

DEVICE = os.environ.get("MIRROR_RT_BENCHMARK_DEVICE", "cpu")
ON_CARD = (32, 128, 512, 2048)  # batch sizes


class MirrorRt:
    """This project; `batch` is its batch_size, counted in texts of 64 tokens."""

    batches = ON_CARD if DEVICE == "cuda" else (4, 8, 16, 32, 64)

    def __init__(self, folder, threads, variant="fp32", providers=DEVICE, cuda_graphs=False):
        from mirror_rt import Encoder

        self.encoder = Encoder.load(
            folder,
            variant=variant,
            threads=threads,
            providers=providers,
            cuda_graphs=cuda_graphs,
        )

    def encode(self, texts, batch):
        return self.encoder.encode(texts, batch_size=batch, show_progress_bar=False)

    def scheduled(self):
        """Return a function that encodes one text per call, for concurrent callers."""
        from mirror_rt.scheduling import Scheduler

        return Scheduler(self.encoder).encode


class Sketch:
    """Plain onnxruntime on the pooled graph, with texts sorted by length, `batch` tokens a run."""

    batches = (512, 1024, 2048, 4096, 8192)

    def __init__(self, folder, threads):
        import numpy
        import onnxruntime
        import tokenizers

        self.np = numpy
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx", options)
        self.inputs = [node.name for node in self.session.get_inputs()]

    def encode(self, texts, batch):
        np = self.np
        encodings = self.tokenizer.encode_batch_fast(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(encodings[i].ids))
        vectors, start = None, 0
        while start < len(order):
            longest = len(encodings[order[start]].ids)
            rows = order[start : start + max(1, batch // longest)]
            start += len(rows)
            ids = np.zeros((len(rows), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, i in enumerate(rows):
                ids[row, : len(encodings[i].ids)] = encodings[i].ids
                mask[row, : len(encodings[i].ids)] = 1
            arrays = {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(ids),
            }
            feeds = {name: arrays[name] for name in self.inputs}
            (out,) = self.session.run(["sentence_embedding"], feeds)
            vectors = (
                np.empty((len(texts), out.shape[1]), np.float32) if vectors is None else vectors
            )
            vectors[rows] = out
        return vectors


class SentenceTransformersTorch:
    batches = ON_CARD[:3] if DEVICE == "cuda" else (1, 8, 16, 32, 64, 128)
    backend = "torch"

    def __init__(self, folder, threads):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        options = self.options(threads)
        self.model = SentenceTransformer(folder, device=DEVICE, backend=self.backend, **options)
        self.model.max_seq_length = 512

    def options(self, threads):
        return {}

    def encode(self, texts, batch):
        return self.model.encode(
            texts, batch_size=batch, show_progress_bar=False, normalize_embeddings=True
        )


class SentenceTransformersBfloat16(SentenceTransformersTorch):
    def __init__(self, folder, threads):
        super().__init__(folder, threads)
        self.model.bfloat16()


class SentenceTransformersOpenvino(SentenceTransformersTorch):
    backend = "openvino"

    def options(self, threads):
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        return {"model_kwargs": {"ov_config": config}}


class SentenceTransformersOnnx(SentenceTransformersTorch):
    backend = "onnx"

    def options(self, threads):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return {"model_kwargs": {"provider": "CPUExecutionProvider", "session_options": options}}


class SentenceTransformersHalf(SentenceTransformersTorch):
    attention = "sdpa"

    def options(self, threads):
        return {"model_kwargs": {"dtype": "float16", "attn_implementation": self.attention}}


class SentenceTransformersFlash(SentenceTransformersHalf):
    """Without padding: it joins the texts of a batch if flash attention is installed."""

    attention = "flash_attention_2"


class SentenceTransformersO4(SentenceTransformersOnnx):
    batches = SentenceTransformersTorch.batches

    def options(self, threads):
        import onnxruntime

        kwargs = {"file_name": "onnx/model_O4.onnx", "provider": "CPUExecutionProvider"}
        if DEVICE == "cuda":
            # Without them onnxruntime would fall back to the CPU, and only its log would tell.
            onnxruntime.preload_dlls()
            kwargs["provider"] = "CUDAExecutionProvider"
        return {"model_kwargs": kwargs}


class Fastembed:
    batches = (1, 8, 16, 32, 64, 128, 256)

    def __init__(self, folder, threads):
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="local/model",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf="local/model"),
            dim=384,
            model_file="onnx/model.onnx",
        )
        self.model = TextEmbedding("local/model", specific_model_path=folder, threads=threads)

    def encode(self, texts, batch):
        import numpy

        return numpy.array(list(self.model.embed(texts, batch_size=batch)))


class LightEmbed:
    """Takes no number of threads, but uses all processors, to which the driver confines it."""

    batches = (1, 8, 16, 32, 64, 128)

    def __init__(self, folder, threads):
        from light_embed import TextEmbedding

        config = {
            "onnx_file": "onnx/model.onnx",
            "pooling_mode": "mean",
            "normalize": True,
        }
        self.model = TextEmbedding(folder, model_config=config, device="cpu")

    def encode(self, texts, batch):
        return self.model.encode(texts, batch_size=batch)


class CTranslate2:
    """Gives vectors of tokens, so mean and unit length are numpy's; texts are sorted by length."""

    batches = (1, 8, 16, 32, 64)

    def __init__(self, folder, threads, compute_type="float32"):
        import ctranslate2
        import numpy
        import tokenizers

        self.np = numpy
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)
        self.model = ctranslate2.Encoder(
            folder, device="cpu", compute_type=compute_type, intra_threads=threads
        )

    def encode(self, texts, batch):
        np = self.np
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        vectors = np.empty((len(ids), 384), np.float32)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            states = np.array(self.model.forward_batch([ids[i] for i in rows]).last_hidden_state)
            for i, of_tokens in zip(rows, states, strict=True):
                vectors[i] = of_tokens[: len(ids[i])].mean(axis=0)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class LlamaCpp:
    """Tokenizes by itself, one text after another, and puts the texts of a batch into one row of
    tokens, without padding.
    """

    batches = (1, 4, 8, 16, 32, 64)
    most_tokens = 2048  # of a batch, of which the context has a place for each

    def __init__(self, folder, threads, precision="f32"):
        import llama_cpp

        self.model = llama_cpp.Llama(
            f"{folder}/{precision}.gguf", embedding=True, n_ctx=self.most_tokens,
            n_batch=self.most_tokens, n_ubatch=self.most_tokens, n_threads=threads,
            n_threads_batch=threads, flash_attn=True, verbose=False,
        )  # fmt: skip

    def encode(self, texts, batch):
        import numpy as np

        vectors = np.array([
            vector
            for start in range(0, len(texts), batch)
            for vector in self.model.embed(texts[start : start + batch])
        ], np.float32)  # fmt: skip
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


CONTENDERS = {
    "mirror-rt fp32": MirrorRt,
    **{
        f"mirror-rt {variant}": functools.partial(MirrorRt, variant=variant)
        for variant in ("int8", "fp16", "fp16-cuda")
    },
    "mirror-rt fp16-cuda, CUDA graphs": functools.partial(
        MirrorRt, variant="fp16-cuda", cuda_graphs=True
    ),
    **{
        f"mirror-rt {engine} {variant}": functools.partial(
            MirrorRt, variant=variant, providers=engine
        )
        for engine in ("openvino", "native")
        for variant in ("fp32", "bf16", "int8")
    },
    "onnxruntime sketch": Sketch,
    "sentence-transformers torch": SentenceTransformersTorch,
    "sentence-transformers bfloat16": SentenceTransformersBfloat16,
    "sentence-transformers onnx": SentenceTransformersOnnx,
    "sentence-transformers openvino": SentenceTransformersOpenvino,
    "sentence-transformers fp16": SentenceTransformersHalf,
    "sentence-transformers fp16, flash attention": SentenceTransformersFlash,
    "sentence-transformers ONNX O4": SentenceTransformersO4,
    "fastembed": Fastembed,
    "light-embed": LightEmbed,
    "CTranslate2 float32": CTranslate2,
    "CTranslate2 int8": functools.partial(CTranslate2, compute_type="int8"),
    **{
        f"llama.cpp {precision}": functools.partial(LlamaCpp, precision=precision)
        for precision in ("f32", "f16", "q8_0")
    },
}


def peak_mb():
    """Return the peak memory; ru_maxrss would start at the size of the process that forked."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def read_texts(order):
    return json.loads(Path(order["texts"]).read_text("utf-8"))[:: order.get("every", 1)]


def encode(contender, order):
    texts = read_texts(order)
    began = time.perf_counter()
    vectors = contender.encode(texts, order["batch"])
    seconds = time.perf_counter() - began
    if order.get("out"):
        import numpy

        numpy.save(order["out"], numpy.asarray(vectors, dtype=numpy.float32))
    return {"seconds": seconds, "texts": len(texts)}


def latency(contender, order):
    milliseconds = []
    for text in order["texts"]:
        began = time.perf_counter()
        contender.encode([text], order["batch"])
        milliseconds.append(1e3 * (time.perf_counter() - began))
    return {"ms": milliseconds}


def callers(contender, order):
    """Run threads that each take the next text as soon as they have the vector of the last."""
    import threading

    left = iter(read_texts(order))
    if order["scheduled"]:
        try:
            one = contender.scheduled()
        except (AttributeError, ImportError) as error:
            return {"left_out": str(error)}
    else:

        def one(text):
            return contender.encode([text], order["batch"])

    lock, done = threading.Lock(), []

    def call():
        while True:
            with lock:
                text = next(left, None)
            if text is None:
                return
            began = time.perf_counter()
            one(text)
            done.append(1e3 * (time.perf_counter() - began))

    threads = [threading.Thread(target=call) for _ in range(order["callers"])]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"texts_per_second": len(done) / (time.perf_counter() - began), "ms": done}


ORDERS = {
    "encode": encode,
    "latency": latency,
    "callers": callers,
    "batches": lambda contender, _: {"batches": contender.batches},
    "peak": lambda *_: {"peak_mb": peak_mb()},
}


def main(contenders=CONTENDERS, orders=ORDERS):
    name, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # Libraries may print, so answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    contender = contenders[name](folder, threads)
    if len(sys.argv) > 4:  # time to the first vector of a cold process
        contender.encode([sys.argv[4]], contender.batches[0])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(orders[order["do"]](contender, order)), file=answers, flush=True)


if __name__ == "__main__":
    main()
