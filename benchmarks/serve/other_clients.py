"""Count the calls of clients of other servers that work against `mirror-rt serve`.

    mirror-rt serve ENCODER RERANKER --model-alias '*'
    python benchmarks/serve/other_clients.py http://127.0.0.1:8080

Run it with a Python that has the clients (`pip install openai cohere voyageai ...`); those
that are not installed are left out. Each line says whether a call works, is refused by the name of
a field, or fails; the last one counts.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
V1 = f"{URL}/v1"
TEXTS, QUERY, KEY = ["the river", "a road to the town", "people"], "water", "none"
E, R = "vectors", "ranks"  # any names, for the alias `*`; but Triton's are those of models
Call = Callable[[], Any]


def at(path: str, **options: Any) -> Any:
    """Make an object of a class, named by its module and name, when it is first needed."""
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(**options)


def lite(task: str, model: str, base: str = URL, **options: Any) -> Call:
    """Return a call of LiteLLM."""
    given = {"input": TEXTS} if task == "embedding" else {"query": QUERY, "documents": TEXTS}
    name = E if task == "embedding" else R
    return lambda: getattr(importlib.import_module("litellm"), task)(
        model=f"{model}/{name}", api_base=base, api_key=KEY, **given | options
    )


def infinity(name: str, body: str | None = None, **fields: Any) -> Any:
    """Call a function of infinity_client."""
    api = importlib.import_module(f"infinity_client.api.default.{name}")
    options = {} if body is None else {"body": at(f"infinity_client.models.{body}", **fields)}
    answer = api.sync_detailed(client=at("infinity_client.Client", base_url=URL), **options)
    if answer.status_code != 200:
        raise RuntimeError(answer.content.decode())
    return answer.parsed


def ranked(provider: str, path: str) -> Call:
    """Return a call of the package rerankers."""
    return lambda: at(
        "rerankers.Reranker", model_name=R, model_type="APIRanker", api_key=KEY,
        api_provider=provider, url=f"{URL}{path}",
    ).rank(QUERY, TEXTS)  # fmt: skip


def triton(method: str, *arguments: Any) -> Any:
    """Call a method of tritonclient."""
    with at("tritonclient.http.InferenceServerClient", url=URL.partition("//")[2]) as client:
        return getattr(client, method)(*arguments)


def infer() -> Any:
    """Encode with tritonclient."""
    numpy = importlib.import_module("numpy")
    rows = numpy.array([[text.encode()] for text in TEXTS], dtype=object)
    tensor = at("tritonclient.http.InferInput", name="text", shape=rows.shape, datatype="BYTES")
    tensor.set_data_from_numpy(rows)
    return triton("infer", E, [tensor])


def ai(provider: str, make: Callable[[], dict[str, Any]]) -> Call:
    """Return a call of pydantic-ai, whose provider takes the result of `make`."""
    module = f"pydantic_ai.embeddings.{provider.lower()}"
    provided = f"pydantic_ai.providers.{provider.lower()}.{provider}Provider"

    def call() -> Any:
        model = at(f"{module}.{provider}EmbeddingModel", model_name=E,
                   provider=at(provided, **make()))  # fmt: skip
        return at("pydantic_ai.Embedder", model=model).embed_sync(TEXTS, input_type="document")

    return call


def both(make: Call) -> Call:
    """Return a call of an embedding class of LangChain or LlamaIndex: documents, and a query."""

    def call() -> Any:
        model = make()
        if hasattr(model, "embed_documents"):
            return [*model.embed_documents(TEXTS), model.embed_query(QUERY)]
        return [*model.get_text_embedding_batch(TEXTS), model.get_query_embedding(QUERY)]

    return call


def compress(make: Call) -> Call:
    """Return a call of a reranker of LangChain or LlamaIndex."""

    def call() -> Any:
        model = make()
        if hasattr(model, "compress_documents"):
            documents = [at("langchain_core.documents.Document", page_content=t) for t in TEXTS]
            return model.compress_documents(documents, QUERY)
        nodes = [at("llama_index.core.schema.TextNode", text=text) for text in TEXTS]
        scored = [at("llama_index.core.schema.NodeWithScore", node=node) for node in nodes]
        return model.postprocess_nodes(scored, query_str=QUERY)

    return call


def hay(path: str, **options: Any) -> Call:
    """Return a call of a component of Haystack."""

    def call() -> Any:
        secret = importlib.import_module("haystack.utils").Secret.from_token(KEY)
        key = "token" if "hugging" in path else "api_key"
        component = at(path, **{key: secret}, **options)
        getattr(component, "warm_up", lambda: None)()
        documents = [at("haystack.Document", content=text) for text in TEXTS]
        if "Ranker" in path:
            return component.run(query=QUERY, documents=documents)["documents"]
        if "DocumentEmbedder" in path:
            return component.run(documents=documents)["documents"]
        return component.run(text=QUERY)["embedding"]

    return call


def openai() -> Any:
    return at("openai.OpenAI", base_url=V1, api_key=KEY, max_retries=0)


def cohere(name: str = "ClientV2") -> Any:
    return at(f"cohere.{name}", api_key=KEY, base_url=URL)


def voyage(name: str = "Client") -> Any:
    return at(f"voyageai.{name}", api_key=KEY, base_url=V1)


def mixedbread() -> Any:
    return at("mixedbread.Mixedbread", api_key=KEY, base_url=URL, max_retries=0)


def hugging() -> Any:
    return at("huggingface_hub.InferenceClient", base_url=URL)


def jina() -> Any:
    made = at("llama_index.embeddings.jinaai.JinaEmbedding", model=E, api_key=KEY)
    made._api.api_url = f"{V1}/embeddings"  # it has no argument for it
    return made


def xinference(kind: str) -> Any:
    module = "xinference_client.client.restful.restful_client"
    name = E if kind == "Embedding" else R
    return at(f"{module}.RESTful{kind}ModelHandle", model_uid=name, base_url=URL, auth_headers={})


NIM = {"base_url": V1, "api_key": KEY}
CO = "haystack_integrations.components"
CALLS: dict[str, Call] = {
    "openai embeddings": lambda: openai().embeddings.create(model=E, input=TEXTS),
    "openai embeddings, float": lambda: openai().embeddings.create(
        model=E, input=TEXTS, encoding_format="float", dimensions=8, user="me"
    ),
    "openai embeddings, ids": lambda: openai().embeddings.create(model=E, input=[[5, 6], [7]]),
    "openai models": lambda: [openai().models.list(), openai().models.retrieve(E)],
    "cohere v2 embed": lambda: cohere().embed(
        model=E, texts=TEXTS, input_type="search_document", embedding_types=["float"]
    ),
    "cohere v2 embed, int8": lambda: cohere().embed(
        model=E, texts=TEXTS, input_type="search_query", embedding_types=["int8"]
    ),
    "cohere v2 embed, clustering": lambda: cohere().embed(
        model=E, texts=TEXTS, input_type="clustering", embedding_types=["float"]
    ),
    "cohere v2 rerank": lambda: cohere().rerank(model=R, query=QUERY, documents=TEXTS, top_n=2),
    "cohere v1 embed": lambda: cohere("Client").embed(
        model=E, texts=TEXTS, input_type="search_query"
    ),
    "cohere v1 rerank": lambda: cohere("Client").rerank(
        model=R, query=QUERY, documents=TEXTS, return_documents=True
    ),
    "voyageai embed": lambda: voyage().embed(TEXTS, model=E, input_type="document"),
    "voyageai embed, dimension": lambda: voyage().embed(TEXTS, model=E, output_dimension=8),
    "voyageai embed, int8": lambda: voyage().embed(TEXTS, model=E, output_dtype="int8"),
    "voyageai rerank": lambda: voyage().rerank(QUERY, TEXTS, model=R, top_k=2),
    "voyageai contextualized_embed": lambda: voyage().contextualized_embed([TEXTS], model=E),
    "mixedbread embed": lambda: mixedbread().embed(model=E, input=TEXTS, normalized=True),
    "mixedbread embed, formats": lambda: mixedbread().embed(
        model=E, input=TEXTS, encoding_format=["float", "base64"], dimensions=8
    ),
    "mixedbread rerank": lambda: mixedbread().rerank(
        model=R, query=QUERY, input=TEXTS, top_k=2, return_input=True
    ),
    "huggingface_hub feature_extraction": lambda: hugging().feature_extraction(
        "a text", normalize=True, truncate=True
    ),
    "huggingface_hub sentence_similarity": lambda: hugging().sentence_similarity(QUERY, TEXTS),
    "litellm openai/": lite("embedding", "openai", V1),
    "litellm hosted_vllm/": lite("embedding", "hosted_vllm", V1),
    "litellm infinity/": lite("embedding", "infinity", dimensions=8),
    "litellm jina_ai/": lite("embedding", "jina_ai", V1),
    "litellm voyage/": lite("embedding", "voyage", V1, dimensions=8),
    "litellm cohere/": lite("embedding", "cohere", f"{URL}/v2/embed", input_type="search_query"),
    "litellm nvidia_nim/": lite("embedding", "nvidia_nim", V1, input_type="passage"),
    "litellm huggingface/": lite("embedding", "huggingface", input=TEXTS[:1]),
    "litellm xinference/": lite("embedding", "xinference", V1),
    "litellm cohere/ rerank": lite("rerank", "cohere", top_n=2, return_documents=True),
    "litellm jina_ai/ rerank": lite("rerank", "jina_ai", top_n=2),
    "litellm infinity/ rerank": lite("rerank", "infinity", return_documents=True),
    "litellm hosted_vllm/ rerank": lite("rerank", "hosted_vllm", top_n=2),
    "litellm huggingface/ rerank": lite("rerank", "huggingface", top_n=2),
    "litellm voyage/ rerank": lite("rerank", "voyage", f"{V1}/rerank", top_n=2),
    "litellm nvidia_nim/ rerank": lite("rerank", "nvidia_nim/ranking"),
    "pydantic_ai openai": ai("OpenAI", lambda: {"base_url": V1, "api_key": KEY}),
    "pydantic_ai cohere": ai("Cohere", lambda: {"cohere_client": cohere("AsyncClientV2")}),
    "pydantic_ai voyageai": ai(
        "VoyageAI", lambda: {"voyageai_client": voyage("AsyncClient")}
    ),
    "infinity_client embeddings": lambda: infinity(
        "embeddings", "OpenAIEmbeddingInputText", input_=TEXTS, model=E
    ),
    "infinity_client rerank": lambda: infinity(
        "rerank", "RerankInput", query=QUERY, documents=TEXTS, model=R, return_documents=True
    ),
    "infinity_client classify": lambda: infinity(
        "classify", "ClassifyInput", input_=TEXTS, model=R, raw_scores=True
    ),
    "infinity_client health": lambda: infinity("health"),
    "infinity_client models": lambda: infinity("models"),
    "rerankers jina": ranked("jina", "/v1/rerank"),
    "rerankers cohere": ranked("cohere", "/v1/rerank"),
    "rerankers voyage": ranked("voyage", "/v1/rerank"),
    "rerankers mixedbread.ai": ranked("mixedbread.ai", "/v1/reranking"),
    "rerankers text-embeddings-inference": ranked("text-embeddings-inference", "/rerank"),
    "xinference create_embedding": lambda: xinference("Embedding").create_embedding(TEXTS),
    "xinference rerank": lambda: xinference("Rerank").rerank(TEXTS, QUERY, top_n=2),
    "tritonclient infer": infer,
    "tritonclient server metadata": lambda: triton("get_server_metadata"),
    "tritonclient model metadata": lambda: triton("get_model_metadata", E, "1"),
    "tritonclient config": lambda: triton("get_model_config", E),
    "tritonclient index": lambda: triton("get_model_repository_index"),
    "tritonclient statistics": lambda: triton("get_inference_statistics", E),
    "tritonclient health": lambda: all(
        [triton("is_server_live"), triton("is_server_ready"), triton("is_model_ready", E)]
    ),
    "langchain OpenAIEmbeddings": both(
        lambda: at("langchain_openai.OpenAIEmbeddings", model=E, openai_api_base=V1,
                   openai_api_key=KEY, check_embedding_ctx_length=False)),
    "langchain CohereEmbeddings": both(
        lambda: at("langchain_cohere.CohereEmbeddings", model=E, cohere_api_key=KEY,
                   base_url=URL)),
    "langchain VoyageAIEmbeddings": both(
        lambda: at("langchain_voyageai.VoyageAIEmbeddings", model=E, voyage_api_key=KEY,
                   base_url=V1)),
    "langchain NVIDIAEmbeddings": both(
        lambda: at("langchain_nvidia_ai_endpoints.NVIDIAEmbeddings", model=E, **NIM)),
    "langchain CohereRerank": compress(
        lambda: at("langchain_cohere.CohereRerank", model=R, cohere_api_key=KEY, base_url=URL)),
    "langchain VoyageAIRerank": compress(
        lambda: at("langchain_voyageai.VoyageAIRerank", model=R, api_key=KEY,
                   base_url=V1)),
    "langchain NVIDIARerank": compress(
        lambda: at("langchain_nvidia_ai_endpoints.NVIDIARerank", model=R, **NIM)),
    "llama_index OpenAILikeEmbedding": both(
        lambda: at("llama_index.embeddings.openai_like.OpenAILikeEmbedding", model_name=E,
                   api_base=V1, api_key=KEY)),
    "llama_index CohereEmbedding": both(
        lambda: at("llama_index.embeddings.cohere.CohereEmbedding", base_url=URL,
                   model_name="embed-english-v3.0", cohere_api_key=KEY)),  # it takes no other
    "llama_index JinaEmbedding": both(jina),
    "llama_index TextEmbeddingsInference": both(
        lambda: at("llama_index.embeddings.text_embeddings_inference.TextEmbeddingsInference",
                   model_name=E, base_url=URL)),
    "llama_index NVIDIAEmbedding": both(
        lambda: at("llama_index.embeddings.nvidia.NVIDIAEmbedding", model=E, **NIM)),
    "llama_index CohereRerank": compress(
        lambda: at("llama_index.postprocessor.cohere_rerank.CohereRerank", model=R, api_key=KEY,
                   base_url=URL)),
    "llama_index JinaRerank": compress(
        lambda: at("llama_index.postprocessor.jinaai_rerank.JinaRerank", model=R, api_key=KEY,
                   base_url=V1)),
    "llama_index NVIDIARerank": compress(
        lambda: at("llama_index.postprocessor.nvidia_rerank.NVIDIARerank", model=R, **NIM)),
    "llama_index TextEmbeddingInference": compress(
        lambda: at("llama_index.postprocessor.tei_rerank.TextEmbeddingInference", base_url=URL,
                   model_name=R)),
    "haystack OpenAITextEmbedder": hay(
        "haystack.components.embedders.OpenAITextEmbedder", model=E, api_base_url=V1),
    "haystack OpenAIDocumentEmbedder": hay(
        "haystack.components.embedders.OpenAIDocumentEmbedder", model=E, api_base_url=V1),
    "haystack CohereTextEmbedder": hay(
        f"{CO}.embedders.cohere.CohereTextEmbedder", model=E, api_base_url=URL),
    "haystack CohereDocumentEmbedder": hay(
        f"{CO}.embedders.cohere.CohereDocumentEmbedder", model=E, api_base_url=URL),
    "haystack CohereRanker": hay(f"{CO}.rankers.cohere.CohereRanker", model=R, api_base_url=URL),
    "haystack JinaTextEmbedder": hay(
        f"{CO}.embedders.jina.JinaTextEmbedder", model=E, base_url=f"{V1}/embeddings"),
    "haystack JinaDocumentEmbedder": hay(
        f"{CO}.embedders.jina.JinaDocumentEmbedder", model=E, base_url=f"{V1}/embeddings"),
    "haystack JinaRanker": hay(f"{CO}.rankers.jina.JinaRanker", model=R, base_url=f"{V1}/rerank"),
    "haystack NvidiaTextEmbedder": hay(
        f"{CO}.embedders.nvidia.NvidiaTextEmbedder", model=E, api_url=V1),
    "haystack NvidiaDocumentEmbedder": hay(
        f"{CO}.embedders.nvidia.NvidiaDocumentEmbedder", model=E, api_url=V1),
    "haystack NvidiaRanker": hay(f"{CO}.rankers.nvidia.NvidiaRanker", model=R, api_url=V1),
    "haystack HuggingFaceAPITextEmbedder": hay(
        f"{CO}.embedders.huggingface_api.HuggingFaceAPITextEmbedder",
        api_type="text_embeddings_inference", api_params={"url": URL}),
    "haystack HuggingFaceAPIDocumentEmbedder": hay(
        f"{CO}.embedders.huggingface_api.HuggingFaceAPIDocumentEmbedder",
        api_type="text_embeddings_inference", api_params={"url": URL}),
    "haystack HuggingFaceTEIRanker": hay(
        f"{CO}.rankers.huggingface_api.HuggingFaceTEIRanker", url=URL),
}  # fmt: skip


def outcome(call: Call) -> tuple[str, str]:
    """Return the outcome of a call, and its reason."""
    try:
        found = call()
    except ImportError as error:
        return "not installed", str(error)
    except Exception as error:  # noqa: BLE001 - whatever a client raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
        named = any(word in why for word in ("efused", "422", "invalid_value"))
        return ("refused by name" if named else "fails"), why
    nothing = found is None or found is False or (hasattr(found, "__len__") and len(found) == 0)
    return ("fails", f"got {found!r}") if nothing else ("works", "")


def main() -> None:
    """Make every call."""
    counts: Counter[str] = Counter()
    for name, call in CALLS.items():
        what, why = outcome(call)
        counts[what] += 1
        print(f"{name}: {what}{why and ': '}{why[:300]}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
