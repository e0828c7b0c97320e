// node with_transformers_js.mjs BUNDLE TEXTS.json OUT.json
// By its pipeline, which pools token vectors itself, and by the pooled output of the graph.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Resolved from the working directory, where the packages are.
const require = createRequire(path.join(process.cwd(), "package.json"));
const entry = path.join(path.dirname(require.resolve("@huggingface/transformers")), "transformers.node.mjs");
const { AutoModel, AutoTokenizer, env, pipeline } = await import(pathToFileURL(entry).href);

const [folder, textsFile, out] = process.argv.slice(2);
const texts = JSON.parse(fs.readFileSync(textsFile, "utf8"));
env.allowRemoteModels = false;
env.localModelPath = path.dirname(path.resolve(folder));
const name = path.basename(folder);

const model = await AutoModel.from_pretrained(name, { dtype: "fp32" });
const tokenizer = await AutoTokenizer.from_pretrained(name);
const inputs = tokenizer(texts, { padding: true, truncation: true });
const result = { sentence_embedding: (await model(inputs)).sentence_embedding.tolist() };

const modules = JSON.parse(fs.readFileSync(path.join(folder, "modules.json"), "utf8"));
if (!modules.some((module) => module.type.endsWith("Dense"))) {
  const flags = JSON.parse(fs.readFileSync(path.join(folder, "1_Pooling", "config.json"), "utf8"));
  const pooling = flags.pooling_mode_cls_token ? "cls" : "mean";
  const extract = await pipeline("feature-extraction", name, { dtype: "fp32" });
  result.last_hidden_state = (await extract(texts, { pooling, normalize: true })).tolist();
}
fs.writeFileSync(out, JSON.stringify(result));
