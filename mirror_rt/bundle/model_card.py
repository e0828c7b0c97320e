"""The model card: the README.md of a bundle or a language pack, which a model hub shows.

Its whole content comes from the manifest, so the same manifest gives the same card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirror_rt.bundle.declared_keys import POOLING_FLAGS
from mirror_rt.bundle.hub import hub_library, is_hub_name
from mirror_rt.bundle.manifest import Layout, Manifest, Variant
from mirror_rt.bundle.model_kinds import DENSE, WITH_HEADS
from mirror_rt.io.atomic import new_file
from mirror_rt.io.tables import markdown_cell, markdown_table
from mirror_rt.plugins import load_plugins

_PAPER = "[Mirror-BERT](https://aclanthology.org/2021.emnlp-main.109/)"
# Of recipes that name no system, see `_system`; others are in the tables of installed packages.
_UNNAMED = {
    "mirror-bert": _PAPER,
    "simcse": "[SimCSE](https://aclanthology.org/2021.emnlp-main.552/)",
}
_ENTRY_POINTS = "mirror_rt.systems"
_PARITY = {
    "mean_cosine": "mean cosine",
    "min_cosine": "lowest cosine",
    "correlation": "correlation",
    "max_difference": "largest difference",
    "spearman": "Spearman",
}


def write_model_card(folder: Path, manifest: Manifest) -> None:
    """Write the card of a bundle as `folder`/README.md."""
    with new_file(folder / Layout.card, overwrite=True) as file:
        file.write(model_card(manifest).encode())


def model_card(manifest: Manifest, name: str | None = None) -> str:
    """Return the card of a bundle; the examples have its `name` on a hub (owner/name), if any."""
    title = (name or _base(manifest)).rpartition("/")[2]
    parts = [
        _front_matter([manifest]),
        f"# {title}{f' for {manifest.language}' if manifest.language and not name else ''}",
        _introduction(manifest),
        "## Use",
        _usage(manifest, name),
        "## Graphs",
        _variants(manifest),
        *_tuning(manifest),
        "## How it was made",
        _provenance(manifest),
    ]
    return "\n\n".join(parts) + "\n"


def pack_card(manifests: dict[str, Manifest], name: str) -> str:
    """Return the card of a pack `name` (owner/name) of bundles: folder in it -> manifest."""
    rows = [
        (f"[{path}]({path})", m.language or "", _base(m), str(m.dimension), ", ".join(m.variants))
        for path, m in manifests.items()
    ]
    first, manifest = next(iter(manifests.items()))
    pull = f"```bash\nmirror-rt pull {name} --out pack\n```"
    usage = f"{pull}\n\n{_python_usage(f'pack/{first}', manifest)}"
    parts = [
        _front_matter(manifests.values()),
        f"# {name.partition('/')[2]}",
        f"A language pack of {len(manifests)} text encoders: a folder each, with a card of its "
        "own.",
        markdown_table(("folder", "language", "base model", "dimensions", "graphs"), rows),
        "## Use",
        usage,
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifests: Iterable[Manifest]) -> str:
    manifests = list(manifests)
    kinds = [manifest.kind for manifest in manifests]
    kind = next((one for one in WITH_HEADS if one in kinds), DENSE)
    systems = [] if kind.field else filter(None, map(_system, manifests))
    licences = {_licence(manifest) for manifest in manifests}
    data = hub_library("a model card").ModelCardData(
        language=_one_or_all({code for m in manifests if (code := _language_code(m))}),
        license=licences.pop() if len(licences) == 1 else "unknown",
        # The names of base models on a hub, and not those of folders.
        base_model=_one_or_all(
            {
                name
                for m in manifests
                if is_hub_name(name := _base(m)) or m.base_model.get("revision")
            }
        ),
        library_name="mirror_rt",
        pipeline_tag=kind.task,
        tags=sorted({*kind.tags, *systems}),
    )
    return f"---\n{data.to_yaml()}\n---"


def _system(manifest: Manifest) -> str | None:
    """Return the name of the system that tuned an encoder; None where none did.

    A recipe that names no system is Mirror-BERT's, or SimCSE's where the rows of one view alone are
    contrasted.
    """
    if not manifest.recipe:
        return None
    own = "simcse" if manifest.recipe.get("loss") == "one_way" else "mirror-bert"
    return str(manifest.recipe.get("system", own))


def _one_or_all(values: set[str]) -> str | list[str] | None:
    return sorted(values) if len(values) > 1 else next(iter(values), None)


def _language_code(manifest: Manifest) -> str | None:
    """Return the ISO 639 code that a hub expects: `zh` for zh-Hans; None if there is none."""
    code = re.split("[-_]", manifest.language or "")[0].lower()
    return code if re.fullmatch("[a-z]{2,3}", code) else None


def _licence(manifest: Manifest) -> str:
    return str(manifest.base_model.get("license") or "unknown")


def _base(manifest: Manifest) -> str:
    return str(manifest.base_model.get("name") or "an unnamed model")


def _introduction(manifest: Manifest) -> str:
    strings = (manifest.training or {}).get("strings_seen", (manifest.data or {}).get("strings"))
    tuned = "as exported, not tuned"
    if system := _system(manifest):
        of = f" of the language `{manifest.language}`" if manifest.language else ""
        tables = load_plugins(_ENTRY_POINTS)
        named = next((table[system] for table in tables if system in table), None)
        by = _UNNAMED.get(system, system) if named is None else named.paper
        if teacher := (manifest.training or {}).get("teacher"):
            base = teacher.get("base_model")
            guides = manifest.recipe and manifest.recipe.get("guide_margin") is not None
            by = (
                f"{by}, {'guided by' if guides else 'following the teacher'} {teacher['name']}"
                f"{f' ({base})' if base else ''}"
            )
        noun = f"{manifest.level or 'string'}s"
        tuned = f"tuned on {strings} {noun}{of}, without labels, by {by}"
        if named is not None and named.labelled:
            tuned = f"tuned on {strings} labelled rows{of} by {by}"
        elif (manifest.data or {}).get("supervised_pairs"):
            tuned = f"tuned on {strings} pairs{of} by {by}"
    if manifest.head is not None:
        made, graph = manifest.head.introduction(manifest.dimension, manifest.max_length)
        return f"{made} {_base(manifest)}, {tuned}. {graph}"
    made = f"A text encoder: strings in, vectors of {manifest.dimension} dimensions out. "
    if parts := " or ".join(map(str, manifest.matryoshka)):
        made += f"The first {parts} stand alone, too: `encode(texts, truncate_dim=N)`. "
    if manifest.is_static:
        return (
            f"{made}It is static: a table with a vector for each token, whose mean is a text's, "
            f"distilled from {_base(manifest)}, {tuned}."
        )
    return (
        f"{made}{_base(manifest)}, {tuned}. Pooling ({manifest.pooling}) and normalisation are "
        f"inside the ONNX graph; texts may have {manifest.max_length} tokens."
    )


def _usage(manifest: Manifest, name: str | None) -> str:
    folder = "bundle"
    parts = []
    if name:
        parts.append(f"```bash\nmirror-rt pull {name} --out {folder}\n```")
    if manifest.has_own_head:
        return "\n\n".join([*parts, _python_usage(name or folder, manifest)])
    parts += [
        "With mirror_rt (neither torch nor transformers is needed):",
        _python_usage(name or folder, manifest),
    ]
    if manifest.is_static:
        return "\n\n".join([*parts, "model2vec and sentence-transformers load it, too."])
    parts += ["With onnxruntime alone:", f"```python\n{_plain_usage(manifest, folder)}\n```"]
    # sentence-transformers supports neither these poolings nor a flow.
    flow = (manifest.recipe or {}).get("system") in ("flow", "cf")
    if not flow and {*manifest.pooling.split("+")} <= {*POOLING_FLAGS.values()}:
        options = {"file_name": Path(manifest.variant().file).name}
        parts += [
            "With sentence-transformers (and optimum-onnx):",
            "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer({json.dumps(name or folder)}, backend="onnx", '
            f"model_kwargs={json.dumps(options)})\n"
            'vectors = model.encode(["one string", "another"])\n```',
        ]
    return "\n\n".join(parts)


def _python_usage(bundle: str, manifest: Manifest) -> str:
    return f"```python\n{manifest.kind.use.format(json.dumps(bundle))}\n```"


def _plain_usage(manifest: Manifest, folder: str) -> str:
    prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
    output = "sentence_embedding" if manifest.normalize else "pooled_embedding"
    padding = ""
    if manifest.pad_to:
        padding = f"tokenizer.enable_padding(length={manifest.pad_to}, pad_id={manifest.pad_id})\n"
    return (
        "import numpy as np\nimport onnxruntime\nfrom tokenizers import Tokenizer\n\n"
        f'tokenizer = Tokenizer.from_file("{folder}/{Layout.tokenizer}")\n'
        f"tokenizer.enable_truncation({manifest.max_length})\n{padding}"
        f'session = onnxruntime.InferenceSession("{folder}/{manifest.variant().file}")\n'
        f"encoding = tokenizer.encode({json.dumps(prompt + 'one string', ensure_ascii=False)})\n"
        'given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask,\n'
        '         "token_type_ids": encoding.type_ids}\n'
        "feeds = {node.name: np.array([given[node.name]]) for node in session.get_inputs()}\n"
        f'vector = session.run(["{output}"], feeds)[0][0]'
    )


def _variants(manifest: Manifest) -> str:
    parity = [variant.parity or {} for variant in manifest.variants.values()]
    shown = {
        key: title for key, title in _PARITY.items() if any(p.get(key) is not None for p in parity)
    }
    rows = [
        (name, f"`{v.file}`", v.target, _size(manifest, v), *(_number(p.get(key)) for key in shown))
        for (name, v), p in zip(manifest.variants.items(), parity, strict=True)
    ]
    text = markdown_table(("name", "file", "runs on", "MB", *shown.values()), rows)
    first = parity[0] if parity else {}
    if "texts" in first:
        text += (
            f"\n\nCompared with PyTorch over {first['texts']} {manifest.kind.unit} of "
            f"{first.get('min_tokens')} to {first.get('max_tokens')} tokens."
        )
    for name, variant in manifest.variants.items():
        if variant.unchecked:
            text += (
                f"\n\n`{name}` was not compared with PyTorch: {markdown_cell(variant.unchecked)}"
            )
    return text


def _size(manifest: Manifest, variant: Variant) -> str:
    """Return the megabytes of a graph together with the weights beside it."""
    found = [r.bytes for name, r in manifest.files.items() if name.startswith(variant.file)]
    return f"{sum(found) / 1e6:.1f}"


def _tuning(manifest: Manifest) -> list[str]:
    parts = []
    if manifest.data:
        parts += ["## Data", "The strings themselves are not part of this repository."]
        parts.append(_facts(_flat(manifest.data)))
    if manifest.recipe:
        parts += ["## Recipe", _facts(_flat(manifest.recipe))]
    return parts


def _provenance(manifest: Manifest) -> str:
    base = _flat({"base model": manifest.base_model})
    base["base model, license"] = _licence(manifest)
    base |= {f"prompt, {name}": json.dumps(p) for name, p in manifest.prompts.items()}
    written = {"written by": manifest.generator, "written at": manifest.created}
    return _facts(base | _flat(manifest.training or {}) | written)


def _facts(values: dict[str, Any]) -> str:
    """Return a table of names and values, without the unknown ones."""
    rows = [
        (name.replace("_", " ").replace("sha256", "SHA-256"), _number(value))
        for name, value in values.items()
        if value is not None
    ]
    return markdown_table(("", ""), rows)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested dictionaries; their keys are joined, as in `metrics, accuracy`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}, {key}": inner for key, inner in _flat(value).items()}
        else:
            found[name] = value
    return found


def _number(value: Any) -> str:
    """Write a value, or the values of a list; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(_number, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
