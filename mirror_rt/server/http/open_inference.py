"""Speak the Open Inference Protocol, version 2, over REST, as KServe, Triton and MLServer do.

A model has one input, `text` (BYTES [n, 1] or [n]), and one output, `embedding` (FP32 [n, D]):
those of the repositories that `mirror-rt triton` writes. By Triton's extension for binary tensor
data, texts and vectors may follow the JSON as bytes.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import orjson

from mirror_rt.scheduling import SchedulerStatistics
from mirror_rt.server.admission.problems import Problem, too_large, unusable
from mirror_rt.server.exchange import OCTETS, Answer
from mirror_rt.server.http import answers, schemas
from mirror_rt.server.http.answers import Inferred, Values
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.decoding import decoders
from mirror_rt.server.http.operations import (
    EMBEDDED,
    MODEL_NAME,
    NAMED,
    OIP,
    TEXT,
    constant,
    operation,
    parameter,
)
from mirror_rt.server.http.pieces import NUMPY, ROWS, vectors_answer
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.served_models import NamedEncoder
from mirror_rt.vectors.quantization import Embeddings
from mirror_rt.version import __version__

_LENGTH = "inference-header-content-length"
# JSON is decoded in one piece, which takes some milliseconds; more texts go as bytes.
_MOST_JSON = 1 << 20
_decoders, _index = decoders(schemas.InferRequest), decoders(schemas.IndexRequest)
# Every model is the first version, which clients may name.
_VERSION = "/v2/models/{name}/versions/1"
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
_SERVER = {"name": "mirror_rt", "version": __version__, "extensions": _EXTENSIONS}
_COUNTED = {"name": MODEL_NAME, "version": "1", "inference_count": 7, "execution_count": 2}


constant(
    OIP, "/v2", "The server", "Names the extensions of the protocol.", _SERVER, about="The server."
)
constant(
    OIP, "/v2/health/live", "Is the process alive?", "Answers as /health does.", {"live": True},
    about="The process answers.", statuses=(),
)  # fmt: skip


@operation(
    OIP, "/v2/models/{name}/ready", "Is a model ready?", "Has just run every model.", Values,
    about="The model has just run.", example={"name": MODEL_NAME, "ready": True},
    statuses=(401, 404, 503), parameters=(NAMED,), also=(f"{_VERSION}/ready",),
)  # fmt: skip
@operation(
    OIP, "/v2/health/ready", "Is every model ready?", "Answers as /ready does.", Values,
    about="Every model has just run.", example={"ready": True}, statuses=(503,),
)  # fmt: skip
async def ready(call: Call) -> Answer:
    if call.name is not None:
        call.registry.models.find(call.name, None)
    await call.registry.check_ready()
    named = {} if call.name is None else {"name": call.name}
    return Answer(orjson.dumps({"ready": True} | named))


@operation(
    OIP, "/v2/repository/index", "The models", "Lists the models that give vectors, as Triton.",
    answers.Models, about="The models.", request=schemas.IndexRequest, body={"ready": True},
    may_be_empty=True,
    example=[{"name": MODEL_NAME, "version": "1", "state": "READY", "reason": ""}],
)  # fmt: skip
async def index(call: Call) -> Answer:
    call.exchange.timeout(call.config.timeout)  # refuses a header that is no number of seconds
    if call.body:
        _index[call.config.unknown_fields].decode(call.body)
    known = {"version": "1", "state": "READY", "reason": ""}
    return Answer(orjson.dumps([{"name": one.name} | known for one in _encoders(call.registry)]))


@operation(
    OIP, "/v2/models/{name}/stats", "The runs of a model", "As Triton's clients read it.", Values,
    about="Texts, runs and their times.", parameters=(NAMED,), also=(f"{_VERSION}/stats",),
    example={"model_stats": [_COUNTED]}, statuses=(401, 404, 422),
)  # fmt: skip
@operation(
    OIP, "/v2/models/stats", "The runs of all models", "As Triton's clients read it.", Values,
    about="Texts, runs and their times.", example={"model_stats": [_COUNTED]},
)  # fmt: skip
async def statistics(call: Call) -> Answer:
    name, registry = call.name, call.registry
    chosen = _encoders(registry) if name is None else [registry.models.find(name, None)]
    counted = [_counts(one.name, registry.counts(one)) for one in chosen]
    return Answer(orjson.dumps({"model_stats": counted}))


def _encoders(registry: Registry) -> list[NamedEncoder]:
    return [one for one in registry.models.by_name.values() if one.gives == "vectors"]


def _counts(name: str, counts: SchedulerStatistics) -> dict[str, Any]:
    times = {
        "success": (counts.texts, counts.queue_seconds + counts.run_seconds),
        "fail": (counts.failed, 0), "queue": (counts.texts, counts.queue_seconds),
        "compute_infer": (counts.batches, counts.run_seconds),
    }  # fmt: skip
    return {
        "name": name, "version": "1", "inference_count": counts.texts,
        "execution_count": counts.batches,
        "inference_stats": {
            key: {"count": n, "ns": int(seconds * 1e9)} for key, (n, seconds) in times.items()
        },
    }  # fmt: skip


def _configuration(name: str, dimension: int, most: int) -> dict[str, Any]:
    return {
        "name": name, "platform": "", "backend": "mirror_rt", "max_batch_size": most,
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [dimension]}],
    }  # fmt: skip


def _tensors(name: str, dimension: int) -> dict[str, Any]:
    return {
        "name": name, "versions": ["1"], "platform": "mirror_rt_onnx",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, dimension]}],
    }  # fmt: skip


@operation(
    OIP, "/v2/models/{name}/config", "The configuration of a model", "As Triton's clients read it.",
    Values, about="Names, types and shapes; the number of texts is not in them.",
    example=_configuration(MODEL_NAME, 384, 2048), statuses=(401, 404, 422), parameters=(NAMED,),
    also=(f"{_VERSION}/config",),
)  # fmt: skip
@operation(
    OIP, "/v2/models/{name}", "The tensors of a model", "Describes input and output.", Values,
    about="The tensors of the model; -1 is any number of texts.",
    example=_tensors(MODEL_NAME, 384), statuses=(401, 404, 422), parameters=(NAMED,),
    also=(_VERSION,),
)  # fmt: skip
async def model(call: Call) -> Answer:
    name = call.exchange.scope["path_params"]["name"]
    size = call.registry.facts[call.registry.models.find(name, None)].dimension
    if call.exchange.route.endswith("/config"):
        return Answer(orjson.dumps(_configuration(name, size, call.config.max_items)))
    return Answer(orjson.dumps(_tensors(name, size)))


@operation(
    OIP, "/v2/models/{name}/infer", "A vector for each text",
    "Encodes the tensor `text` to the tensor `embedding`. The parameter `dimensions` is here to "
    "keep the example short.",
    Inferred, request=schemas.InferRequest, octets=True, also=(f"{_VERSION}/infer",),
    parameters=(NAMED, parameter(
        "header", "Inference-Header-Content-Length",
        "The bytes of the JSON, where texts follow it as bytes.", type="integer", minimum=0,
    )),
    body={"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}],
          "parameters": {"dimensions": 4}},
    example={
        "model_name": MODEL_NAME,
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [1, 4], "data": EMBEDDED}],
    },
)  # fmt: skip
async def infer(call: Call) -> Answer:
    body, size = call.body, _json_size(call)
    if size > _MOST_JSON:
        raise Problem(413, f"the JSON has more than {_MOST_JSON} bytes: send the texts as binary "
                      "data, or in several requests", "too_large")  # fmt: skip
    request = _decoders[call.config.unknown_fields].decode(memoryview(body)[:size])
    parameters = request.parameters or schemas.InferParameters()
    call.exchange.most_seconds = (parameters.timeout or math.inf) / 1e6
    await call.find(call.name, parameters.lang)
    texts = _texts(request.inputs[0], body[size:], call.config.max_items)
    encoded = await call.encode(call.items(texts, "inputs"), **call.options(parameters))
    vectors = encoded.embeddings
    head = {"model_name": call.name} | ({"id": request.id} if request.id is not None else {})
    if not _wants_bytes(request, parameters):
        return vectors_answer(_numbers(head, vectors), encoded)
    header = _header(head, vectors, {"binary_data_size": vectors.nbytes})
    answer = vectors_answer(_bytes(header, vectors), encoded)
    answer.content_type = OCTETS
    answer.headers.append((_LENGTH.encode(), str(len(header)).encode()))
    return answer


def _json_size(call: Call) -> int:
    """Return the bytes of the JSON, with which the body begins."""
    text, most = call.exchange.headers.get(_LENGTH.encode()), len(call.body)
    if text is None:
        return most
    if not text.isdigit() or len(text) > 12 or int(text) > most:
        why = f"expected a number of at most the {most} bytes of the body"
        raise Problem(400, f"{_LENGTH}: {why}", "malformed", _LENGTH)
    return int(text)


def _texts(given: schemas.InferInput, raw: bytes, most: int) -> list[str]:
    """Return the texts of the input, from the JSON or from the bytes after it."""
    n = given.shape[0]
    if given.shape[1:] not in ([], [1]):
        raise unusable("inputs", f"expected the shape [n] or [n, 1], got {given.shape}")
    if n > most:
        raise too_large("inputs", f"{n} items, and at most {most} are accepted")
    size = given.parameters.binary_data_size if given.parameters is not None else None
    if (given.data is None) == (size is None):
        raise unusable("inputs", "expected either data or parameters.binary_data_size")
    if (size or 0) != len(raw):
        why = f"{len(raw)} bytes follow the JSON, and binary_data_size is {size}"
        raise unusable("inputs", why)
    if given.data is None:
        return _unpack(raw, n)
    texts = [text for row in given.data for text in (row if isinstance(row, list) else [row])]
    if len(texts) != n:
        raise unusable("inputs", f"{len(texts)} texts, and the shape is {given.shape}")
    return texts


def _unpack(raw: bytes, n: int) -> list[str]:
    """Read `n` texts, each its length in 4 bytes and its UTF-8."""
    texts, at = [], 0
    for i in range(n):
        start = at + 4
        at = start + int.from_bytes(raw[at:start], "little")
        if start > len(raw) or at > len(raw):
            raise unusable("inputs", f"item {i} goes beyond the bytes of the tensor")
        try:
            texts.append(raw[start:at].decode())
        except UnicodeDecodeError:
            raise unusable("inputs", f"item {i} is not valid UTF-8") from None
    if at != len(raw):
        raise unusable("inputs", f"{len(raw) - at} bytes follow the {n} items of the shape")
    return texts


def _wants_bytes(request: schemas.InferRequest, parameters: schemas.InferParameters) -> bool:
    for output in request.outputs or []:
        if output.parameters is not None and output.parameters.binary_data is not None:
            return output.parameters.binary_data
    return bool(parameters.binary_data_output)


def _header(head: dict[str, Any], vectors: Embeddings, parameters: dict[str, int]) -> bytes:
    output: dict[str, Any] = {"name": "embedding", "datatype": "FP32", "shape": vectors.shape}
    output |= {"parameters": parameters} if parameters else {}
    return orjson.dumps(head | {"outputs": [output]})


def _numbers(head: dict[str, Any], vectors: Embeddings) -> Iterator[bytes]:
    """Yield the JSON of an answer in pieces, its vectors as one flat list of numbers."""
    header = _header(head, vectors, {})
    yield header[: -len(b"}]}")] + b',"data":'
    for start in range(0, len(vectors), ROWS):
        part = orjson.dumps(vectors[start : start + ROWS].ravel(), option=NUMPY)
        yield (b"," if start else b"[") + part[1:-1]
    yield b"]}]}"


def _bytes(header: bytes, vectors: Embeddings) -> Iterator[bytes]:
    """Yield the JSON of an answer, and then the bytes of its vectors in pieces."""
    yield header
    for start in range(0, len(vectors), ROWS):
        yield vectors[start : start + ROWS].astype("<f4", copy=False).tobytes()
