// Count the calls of clients from npm that work against `mirror-rt serve`; see other_clients.py.
//
//     node other_clients.mjs http://127.0.0.1:8080    in a folder that has the packages
import path from "node:path";
import { createRequire } from "node:module";

// Resolved from the working directory, where the packages are.
const require = createRequire(path.join(process.cwd(), "package.json"));
const { default: OpenAI } = require("openai");
const { CohereClient, CohereClientV2 } = require("cohere-ai");
const { VoyageAIClient } = require("voyageai");
const { InferenceClient } = require("@huggingface/inference");
const { default: Mixedbread } = require("@mixedbread/sdk");
const { OpenAIEmbeddings } = require("@langchain/openai");
const { CohereEmbeddings, CohereRerank } = require("@langchain/cohere");
const { embed, embedMany, rerank } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createCohere } = require("@ai-sdk/cohere");

const url = process.argv[2] ?? "http://127.0.0.1:8080";
const V1 = `${url}/v1`;
const KEY = "none";
const E = "vectors"; // any names, for the alias `*`
const R = "ranks";
const TEXTS = ["the river", "a road to the town", "people"];
const QUERY = "water";

const openai = new OpenAI({ baseURL: V1, apiKey: KEY, maxRetries: 0 });
const first = new CohereClient({ token: KEY, environment: url });
const second = new CohereClientV2({ token: KEY, environment: url });
const voyage = new VoyageAIClient({ apiKey: KEY, environment: V1 });
const hugging = new InferenceClient("hf_none", { endpointUrl: url });
const mixedbread = new Mixedbread({ apiKey: KEY, baseURL: url, maxRetries: 0 });
const compatible = createOpenAICompatible({ name: "local", baseURL: V1, apiKey: KEY });
const ofCohere = createCohere({ baseURL: `${url}/v2`, apiKey: KEY });

// Return a call of an embedding class of LangChain: documents, and a query.
function both(model) {
  return async () => [...(await model.embedDocuments(TEXTS)), await model.embedQuery(QUERY)];
}

const documents = { model: R, query: QUERY, documents: TEXTS };
const CALLS = {
  "openai embeddings": () => openai.embeddings.create({ model: E, input: TEXTS }),
  "openai embeddings, float": () =>
    openai.embeddings.create({ model: E, input: TEXTS, encoding_format: "float", dimensions: 8 }),
  "openai models": async () => [await openai.models.list(), await openai.models.retrieve(E)],
  "cohere-ai v2 embed": () =>
    second.embed({ model: E, texts: TEXTS, inputType: "search_document", embeddingTypes: ["float"] }),
  "cohere-ai v2 rerank": () => second.rerank({ ...documents, topN: 2 }),
  "cohere-ai v1 embed": () => first.embed({ model: E, texts: TEXTS, inputType: "search_query" }),
  "cohere-ai v1 rerank": () => first.rerank({ ...documents, returnDocuments: true }),
  "voyageai embed": () =>
    voyage.embed({ model: E, input: TEXTS, inputType: "document", truncation: true }),
  "voyageai rerank": () =>
    voyage.rerank({ ...documents, topK: 2, returnDocuments: true, truncation: true }),
  "@huggingface/inference featureExtraction": () => hugging.featureExtraction({ inputs: TEXTS }),
  "@huggingface/inference sentenceSimilarity": () =>
    hugging.sentenceSimilarity({ inputs: { source_sentence: QUERY, sentences: TEXTS } }),
  "@mixedbread/sdk embed": () =>
    mixedbread.embed({ model: E, input: TEXTS, normalized: true, encoding_format: "float" }),
  "@mixedbread/sdk rerank": () =>
    mixedbread.rerank({ model: R, query: QUERY, input: TEXTS, top_k: 2, return_input: true }),
  "@langchain/openai": both(
    new OpenAIEmbeddings({ model: E, apiKey: KEY, configuration: { baseURL: V1 } }),
  ),
  "@langchain/cohere embeddings": both(new CohereEmbeddings({ model: E, client: first })),
  "@langchain/cohere rerank": () =>
    new CohereRerank({ model: R, client: first }).rerank(TEXTS, QUERY, { topN: 2 }),
  "ai openai-compatible embedMany": () =>
    embedMany({ model: compatible.textEmbeddingModel(E), values: TEXTS, maxRetries: 0 }),
  "ai openai-compatible embed": () =>
    embed({ model: compatible.textEmbeddingModel(E), value: QUERY, maxRetries: 0 }),
  "ai cohere embedMany": () =>
    embedMany({ model: ofCohere.textEmbeddingModel(E), values: TEXTS, maxRetries: 0 }),
  "ai cohere rerank": () => rerank({ ...documents, model: ofCohere.reranking(R), maxRetries: 0 }),
};

const counts = {};
for (const [name, call] of Object.entries(CALLS)) {
  let what = "works";
  let why = "";
  try {
    const found = await call();
    if (found === undefined || found.length === 0) throw new Error(`got ${found}`);
  } catch (error) {
    why = `: ${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 300);
    what = /422|others are refused|invalid_value/.test(why) ? "refused by name" : "fails";
  }
  counts[what] = (counts[what] ?? 0) + 1;
  console.log(`${name}: ${what}${why}`);
}
const line = Object.entries(counts).map(([what, count]) => `${count} ${what}`);
console.log(line.join(", "));
process.exit(0); // some keep connections open
