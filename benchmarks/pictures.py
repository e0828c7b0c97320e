"""Draw the two pictures of the README and of the site's first page, of figures that are committed.

    python benchmarks/pictures.py

It writes docs/pictures/speed.svg, of the newest table of `benchmarks/encode/compare.py`, and
docs/pictures/words.svg, of the table in docs/guides/my-language.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results" / "encode-2026-11-28-2-x-amd-epyc.json"
LANGUAGES = ROOT / "docs" / "guides" / "my-language.md"
# Label -> the contender in RESULTS.
CONTENDERS = {
    "mirror_rt, int8": "mirror-rt native int8",
    "mirror_rt, fp32": "mirror-rt native fp32",
    "onnxruntime, own loop": "onnxruntime sketch",
    "fastembed": "fastembed",
    "llama.cpp, f16": "llama.cpp f16",
    "sentence-transformers": "sentence-transformers torch",
}
# A row of the table of languages with both figures; the first is taken of several.
ROW = re.compile(r"^\| (\w+) \(\w+\) \|[^|]*\| (\.\d+) \| (\.\d+)", re.MULTILINE)
OURS, OTHERS = "#3f51b5", "#9fa8b0"
WIDTH, TOP, LINE, BAR, LABELS = 760, 30, 26, 17, 170

Bar = tuple[str, float, str, str]  # label, length, text beside it, colour


def bars(left: int, top: int, width: int, title: str, rows: Sequence[Bar]) -> list[str]:
    """Draw horizontal bars, the longest of them `width` long, behind their labels."""
    longest = max(length for _, length, _, _ in rows)
    drawn = [f'<text x="{left}" y="{top}" font-weight="bold">{escape(title)}</text>']
    for number, (label, length, said, colour) in enumerate(rows):
        y = top + 12 + number * LINE
        drawn.append(
            f'<rect x="{left}" y="{y}" width="{width * length / longest:.1f}" height="{BAR}" '
            f'fill="{colour}"/>'
            f'<text x="{left + width * length / longest + 6:.1f}" y="{y + 13}">{said}</text>'
            + (
                f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>'
                * bool(label)
            )
        )
    return drawn


def svg(title: str, rows: int, drawn: Sequence[str], below: str) -> str:
    """Return a picture with room for its rows of bars, and a line of text below them."""
    height = TOP + 12 + LINE * rows + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="13" fill="#222" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *drawn,
            f'<text x="12" y="{height - 12}" font-size="11" fill="#666">{escape(below)}</text>',
            "</svg>\n",
        ]
    )


def speed() -> str:
    """Draw texts a second and peak memory beside other libraries."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {label: results["medians"][name] for label, name in CONTENDERS.items()}
    colours = [OURS if "mirror_rt" in label else OTHERS for label in found]

    def panel(figure: str, left: int, title: str, *, labelled: bool) -> list[str]:
        rows = [
            (label * labelled, of[figure], f"{of[figure]:.0f}", colour)
            for (label, of), colour in zip(found.items(), colours, strict=True)
        ]
        return bars(left, TOP, 220, title, rows)

    about = results["about"]
    below = (
        f"all-MiniLM-L6-v2, {about['machine']}, {about['threads']} threads, {about['date']}; "
        f"medians over {about['texts']['mixed']:,} texts of mixed length"
    )
    drawn = [
        *panel("mixed", LABELS, "texts a second", labelled=True),
        *panel("memory", LABELS + 300, "peak memory, MB", labelled=False),
    ]
    return svg("Texts a second and memory, beside other libraries", len(found), drawn, below)


def words() -> str:
    """Draw how well vectors of words agree with people, before and after tuning."""
    found = ROW.findall(LANGUAGES.read_text(encoding="utf-8"))
    rows = list[Bar]()
    for language, before, after in found:
        rows += [
            (language, float(before), f"{before} untuned", OTHERS),
            ("", float(after), f"{after} tuned", OURS),
        ]
    below = (
        "Spearman's rho with human scores of similarity (Multi-SimLex; SimLex-999 in German and "
        "Italian), multilingual-e5-small"
    )
    drawn = bars(90, TOP, 560, "likeness of words, as people see it", rows)
    return svg("Words before and after tuning", len(rows), drawn, below)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, picture in {"speed": speed(), "words": words()}.items():
        (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
