"""What the tests of all adapters share; also run in environments that have little else.

There $MIRROR_RT_ADAPTER_MODEL is the bundle that `model` makes here, $MIRROR_RT_ADAPTER_RERANKER
that of a cross-encoder, and $MIRROR_RT_ADAPTER_BASE the model that `base` makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import Encoder, Reranker
from mirror_rt.inference.bundle_model import BundleModel
from rounding import SCORE_ERROR

DOCUMENTS = [
    "The river runs slowly through the old town.",
    "A doctor and a physician met on the road.",
    "Children were playing football in the rain.",
    "Её дом стоит на берегу реки.",
    "Tous les êtres humains naissent libres et égaux.",
    "word",
]
QUERY = "Who met whom?"
# The library of each file. Where it is not installed, test_environments.py runs the file in an
# environment that has it.
LIBRARIES = {
    "chroma": "chromadb", "langchain": "langchain_core", "llamaindex": "llama_index",
    "qdrant": "qdrant_client", "ray_serve": "ray", "ray_tune": "ray", "sklearn": "sklearn",
    "spark": "pyspark", **{name: name for name in ("daft", "haystack", "lancedb", "mteb", "ray")},
}  # fmt: skip
collect_ignore = [f"test_{name}.py" for name, of in LIBRARIES.items() if find_spec(of) is None]


@pytest.fixture(scope="session")
def model(request, tmp_path_factory) -> Path:
    """A bundle that has a prompt for queries and one for documents."""
    if path := os.environ.get("MIRROR_RT_ADAPTER_MODEL"):
        return Path(path)
    folder = tmp_path_factory.mktemp("adapters") / "bundle"
    shutil.copytree(request.getfixturevalue("bundle"), folder)
    manifest = json.loads((folder / "mirror.json").read_text("utf-8"))
    manifest["prompts"] = {"query": "the question ", "document": "the town ", "STS": "as it is "}
    (folder / "mirror.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def cross_encoder(request) -> Path:
    """The bundle of a cross-encoder."""
    if path := os.environ.get("MIRROR_RT_ADAPTER_RERANKER"):
        return Path(path)
    return Path(request.getfixturevalue("tiny_reranker")("bert"))


@pytest.fixture(scope="session")
def best(cross_encoder) -> list[tuple[str, float]]:
    """The documents and their scores with QUERY, the best first."""
    ranking = Reranker.load(cross_encoder).rank(QUERY, DOCUMENTS, return_documents=True)
    assert len({entry["score"] for entry in ranking}) == len(DOCUMENTS)
    return [(entry["text"], pytest.approx(entry["score"], abs=SCORE_ERROR)) for entry in ranking]


@pytest.fixture(scope="session")
def token_vectors() -> list[np.ndarray]:
    """Vectors of the tokens of a query and of six documents, of unit length."""
    drawn = [np.random.default_rng(i).standard_normal((4 + i, 8), np.float32) for i in range(7)]
    return [one / np.linalg.norm(one, axis=1, keepdims=True) for one in drawn]


@pytest.fixture(scope="session")
def base(request) -> Path:
    """A BERT to tune."""
    if path := os.environ.get("MIRROR_RT_ADAPTER_BASE"):
        return Path(path)
    return Path(request.getfixturevalue("tiny_bert"))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return DOCUMENTS


@pytest.fixture(scope="session")
def query() -> str:
    return QUERY


@pytest.fixture(scope="session")
def encoder(model) -> Encoder:
    return Encoder.load(model)


@pytest.fixture(scope="session")
def document_vectors(encoder):
    return encoder.encode_document(DOCUMENTS)


@pytest.fixture(scope="session")
def query_vector(encoder, document_vectors):
    """That of QUERY, whose prompt matters."""
    vector = encoder.encode_query(QUERY)
    assert np.abs(vector - encoder.encode_document(QUERY)).max() > 0.01
    return vector


@pytest.fixture(scope="session")
def ranked(document_vectors, query_vector) -> list[str]:
    """The documents, the nearest to the query first."""
    return [DOCUMENTS[i] for i in np.argsort(-(document_vectors @ query_vector))]


@pytest.fixture(scope="session")
def shown():
    """From words to the block of the guide that has them, with what is here for what is there."""
    guide = Path(__file__).parents[2] / "docs" / "guides" / "scale.md"
    blocks = re.findall(r"^```text\n(.*?)^```", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE)

    def shown(words: str, others: dict[str, object]) -> str:
        (block,) = [block for block in blocks if words in block]
        for there, here in others.items():
            assert there in block
            block = block.replace(there, str(here))
        return block

    return shown


@pytest.fixture
def beside(monkeypatch):
    """Await something whose model waits until the event loop goes on."""
    run_batch = BundleModel.run_batch
    began, goes_on = threading.Event(), threading.Event()

    def when_the_loop_goes_on(self, batch, *, normalize):
        goes_on.clear()
        began.set()
        assert goes_on.wait(60)
        return run_batch(self, batch, normalize=normalize)

    async def run(awaitable):
        async def tick():
            while True:
                await asyncio.sleep(0.001)
                if began.is_set():
                    goes_on.set()

        ticking = asyncio.create_task(tick())
        try:
            return await awaitable
        finally:
            ticking.cancel()
            assert began.is_set()

    def beside(awaitable):
        with monkeypatch.context() as patch:
            patch.setattr(BundleModel, "run_batch", when_the_loop_goes_on)
            return asyncio.run(run(awaitable))

    return beside
