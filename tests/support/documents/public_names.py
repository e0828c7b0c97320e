"""List what users may rely on: names of Python, options of the command line, HTTP and files.

`python tests/support/documents/public_names.py` writes the lists of tests/documents/public
again, after a change that the changelog announces.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LISTS = ROOT / "tests" / "documents" / "public"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
HTTP_PAGE = METRICS_PAGE.with_name("http.md")
MODULES = (
    "mirror_rt", "mirror_rt.bulk", "mirror_rt.client", "mirror_rt.compat", "mirror_rt.compat.util",
    "mirror_rt.errors", "mirror_rt.evaluation", "mirror_rt.scheduling", "mirror_rt.server",
    "mirror_export", "mirror_train", "mirror_train.systems",
)  # fmt: skip
# Classes without a package of their own that the documents show.
CLASSES = (
    "mirror_rt.inference.load_options.LoadOptions",
    "mirror_rt.pipeline.options.EncodeOptions",
    "mirror_rt.reranking.options.PredictOptions",
    "mirror_rt.server.ray_serve.ray_application",
)


def python_names() -> Iterator[str]:
    """Yield a line for each public name, and each public member of a class, with its parameters."""
    for module in MODULES:
        found = import_module(module)
        for name in sorted(getattr(found, "__all__", None) or _defined(found)):
            yield from _described(f"{module}.{name}", getattr(found, name))
    for path in CLASSES:
        module, _, name = path.rpartition(".")
        yield from _described(path, getattr(import_module(module), name))
    yield from _adapters()


def _defined(module: Any) -> list[str]:
    names = [name for name in vars(module) if not name.startswith("_")]
    own = module.__name__
    return [name for name in names if getattr(vars(module)[name], "__module__", "") == own]


def _described(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, type):
        yield path + (_parameters(value) if callable(value) else "")
        return
    if issubclass(value, Exception):
        yield f"{path} < {value.__mro__[1].__name__}"
        return
    # What is made by `load` has no public constructor.
    yield path + ("" if hasattr(value, "load") else _parameters(value))
    members = {name: member for base in reversed(value.__mro__)
               if base.__module__.startswith("mirror_")
               for name, member in vars(base).items() if not name.startswith("_")}  # fmt: skip
    if is_dataclass(value):
        members = {field.name: None for field in fields(value)} | members
    for name, member in sorted(members.items()):
        function = getattr(member, "__func__", member)
        yield f"{path}.{name}" + (_parameters(function) if inspect.isfunction(function) else "")


def _parameters(function: Callable[..., Any]) -> str:
    """Return the names of the parameters, with the defaults that are plain values."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a class of the extension has none
        return "(...)"
    shown = []
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**", one.KEYWORD_ONLY: "*, "}
        plain = isinstance(one.default, str | int | float | bool | tuple | None)
        default = "" if one.default is one.empty else f"={one.default!r}" if plain else "=..."
        shown.append(f"{star.get(one.kind, '')}{one.name}{default}")
    return f"({', '.join(shown)})"


def _adapters() -> Iterator[str]:
    """Read them as text: the library of an adapter need not be installed."""
    for file in sorted((ROOT / "mirror_rt" / "adapters").glob("[a-z]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            kinds = ast.ClassDef | ast.FunctionDef
            if isinstance(node, kinds) and re.match("Mirror|embedding_", node.name):
                yield f"mirror_rt.adapters.{file.stem}.{node.name}"


def command_line() -> Iterator[str]:
    """Yield the commands, each with the options that its help shows."""
    from mirror_rt.cli.commands import installed_commands
    from mirror_rt.cli.main import main

    for name in sorted(installed_commands()):
        text = _help(main, [*name.split(), "--help"])
        options = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)))
        yield f"mirror-rt {name}: {' '.join(options)}"


def _help(main: Callable[[list[str]], int], words: list[str]) -> str:
    from contextlib import redirect_stdout, suppress
    from io import StringIO

    shown = StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        main(words)
    return shown.getvalue()


def http() -> Iterator[str]:
    """Yield the operations with the fields of their requests, by the document and by the routes."""
    from mirror_rt.server.http.app import posts_of, routes_of
    from mirror_rt.server.http.openapi import openapi_document

    document = openapi_document()
    described = {(method.upper(), path) for path, operations in document["paths"].items()
                 for method in operations}  # fmt: skip
    registry: Any = None  # which nothing uses before a request
    for route in routes_of(registry, posts_of(registry)):
        path = route.path.replace(":path}", "}")
        methods = sorted(set(route.methods or ()) - {"HEAD"})
        yield from (f"{one} {path}" for one in methods if (one, path) not in described)
    for path, operations in sorted(document["paths"].items()):
        for method, operation in sorted(operations.items()):
            if method in ("get", "post", "put", "delete"):
                content = operation.get("requestBody", {}).get("content", {})
                names = _fields(document, next(iter(content.values()), {}).get("schema", {}))
                yield f"{method.upper()} {path}: {' '.join(sorted(names))}".rstrip(": ")


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if reference := schema.get("$ref"):
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    found = set(schema.get("properties", {}))
    for one in [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]:
        found |= _fields(document, one)
    return found


def fields_table() -> str:
    """Return the table of the fields that clients of other servers send, for their page."""
    from mirror_rt.server.http.client_fields import CLIENT_FIELDS
    from mirror_rt.server.http.openapi import openapi_document

    document = openapi_document()
    rows: dict[tuple[str, str, str], list[str]] = {}
    known = {(one.name, one.effect): one.senders for one in CLIENT_FIELDS}
    for path, operations in sorted(document["paths"].items()):
        for name, about in _described_fields(document, operations.get("post", {})):
            effect = about.partition(" Sent by clients of ")[0]
            if path != "/" and (senders := known.get((name, effect))):
                rows.setdefault((name, senders, effect), []).append(f"`{path}`")
    lines = sorted(
        f"| `{name}` | {senders} | {', '.join(paths)} | {effect} |"
        for (name, senders, effect), paths in rows.items()
    )
    head = ["| field | sent by clients of | to | what becomes of it |", "|---|---|---|---|"]
    return "\n".join([*head, *lines]) + "\n"


def _described_fields(document: dict[str, Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of the bodies of an operation, at every depth, and their sentences."""
    value = value.get("requestBody", value) if isinstance(value, dict) else value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "$ref":
            inner = document["components"]["schemas"][inner.rpartition("/")[2]]
        if key == "properties":
            yield from ((name, one.get("description", "")) for name, one in inner.items())
        if isinstance(inner, dict | list) and key != "example":
            yield from _described_fields(document, inner)


def files() -> Iterator[str]:
    """Yield the fields of mirror.json, the variables of the environment and the metrics."""
    from mirror_rt.bundle.manifest import Manifest

    yield "mirror.json: " + " ".join(sorted(field.name for field in fields(Manifest)))
    sources = [file.read_text(encoding="utf-8") for folder in ("mirror_rt", "train", "export")
               for file in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip
    names = set(re.findall(r"\bMIRROR_RT_[A-Z_]+[A-Z]\b", "\n".join(sources)))
    yield from sorted(f"environment: {name}" for name in names)


def _metrics() -> list[tuple[str, str, str, str]]:
    """Return the name, kind, labels and meaning of each metric of a server, and of its workers."""
    from mirror_rt.server.monitoring.metrics import OF_WORKERS, Metrics

    found = [(name, "counter", "", text) for name, text in OF_WORKERS.items()]
    for one in vars(Metrics().registry)["_collector_to_names"]:
        about = vars(one)
        if (kind := getattr(one, "_type", None)) is not None:  # not of the process
            name = about["_name"] + ("_total" if kind == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in about["_labelnames"])
            found.append((name, kind, labels, about["_documentation"]))
    return sorted(found)


def metrics() -> Iterator[str]:
    """Yield the names of all metrics of a server."""
    return (name for name, *_ in _metrics())


def metrics_table() -> str:
    """Return the table of all metrics, for their page."""
    rows = [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in _metrics()]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "python": python_names,
    "command_line": command_line,
    "http": http,
    "files": files,
    "metrics": metrics,
}


TABLES = ((METRICS_PAGE, "metric", metrics_table), (HTTP_PAGE, "field", fields_table))


def main() -> None:
    """Write the lists, and the tables of metrics and of fields."""
    os.environ["COLUMNS"] = "200"
    LISTS.mkdir(exist_ok=True)
    for name, lines in SURFACES.items():
        (LISTS / f"{name}.txt").write_text("\n".join(lines()) + "\n", encoding="utf-8")
    for file, first, table in TABLES:
        page = file.read_text(encoding="utf-8")
        whole = re.compile(rf"\| {first} \|.*?\n(?=\n|\Z)", re.DOTALL)
        file.write_text(whole.sub(lambda _, table=table: table(), page), encoding="utf-8")


if __name__ == "__main__":
    main()
