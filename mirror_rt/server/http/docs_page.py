"""Show the OpenAPI document as one HTML page, without scripts or external resources."""

from __future__ import annotations

import json
from html import escape
from typing import Any

__all__ = ["docs_page"]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "pre{background:#f4f4f4;padding:.75rem;overflow:auto}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;"
    "vertical-align:top}h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#222}}"
)


def docs_page(document: dict[str, Any]) -> str:
    """Return the HTML page of a document."""
    info = document["info"]
    sections = [
        _operation(method, path, operation, document["components"]["schemas"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}'
        f'</title><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])} "
        'The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(sections)}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [
        f"<h2><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if "requestBody" in operation:
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = schemas[name.rpartition("/")[2]]
        parts.append(_table("field", "values", _fields(schema)))
    statuses = {status: what["description"] for status, what in operation["responses"].items()}
    parts.append(_table("status", "meaning", statuses))
    return "".join(parts)


def _fields(schema: dict[str, Any]) -> dict[str, str]:
    required = schema.get("required", [])
    return {
        name + (" (required)" if name in required else ""): json.dumps(
            {key: value for key, value in values.items() if key != "default"}
        )
        for name, values in schema.get("properties", {}).items()
    }


def _table(left: str, right: str, rows: dict[str, str]) -> str:
    cells = "".join(f"<tr><td><code>{escape(a)}</code><td>{escape(b)}" for a, b in rows.items())
    return f"<table><tr><th>{left}<th>{right}{cells}</table>"
