"""Write docs/reference/model-folders.md: the ledger of keys, made from the code.

`python tests/support/documents/ledger.py` writes the page again, after a change of the ledger.
"""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.declared_keys import LEDGER

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "model-folders.md"
_MARK = "<!-- The tables below are made by tests/support/documents/ledger.py. -->\n"
_NAMES = {
    "sentence_bert_config.json": "sentence_bert_config.json (or of another family's name)",
    "Pooling": "1_Pooling/config.json",
    "Dense": "2_Dense/config.json",
    "MultiVectorMask": "2_MultiVectorMask/config.json",
    "sentence_bert_config.json of tokens": "sentence_bert_config.json of late interaction",
    "SpladePooling": "1_SpladePooling/config.json",
    "SparseStaticEmbedding": "query_0_SparseStaticEmbedding/config.json",
    "LogitScore": "1_LogitScore/config.json",
    "Flow": "2_Flow/config.json (of mirror_rt's own)",
}


def page() -> str:
    """Return the content of the page: what is before the mark, and the tables."""
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(_MARK)
    parts = [before + mark]
    for file, table in LEDGER.items():
        rows = [
            f"| {'any other' if name == '*' else f'`{name}`'} | {key.use} | {key.why} |"
            for name, key in table.items()
        ]
        title = _NAMES.get(file, file)
        parts += [f"## {title}\n", "| key | | why |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
