"""Make the tables and the plot of the measurements of benchmarks/encode/compare.py."""

from __future__ import annotations

import json
import operator
import re
import statistics

from encode.setup import ENVIRONMENTS, PROJECT
from helpers import median_ratio

from mirror_rt.io.tables import markdown_table

OURS, INT8 = "mirror-rt fp32", "mirror-rt int8"
OPENVINO, NATIVE_FP32, NATIVE, NATIVE_INT8 = (
    "mirror-rt openvino bf16",
    "mirror-rt native fp32",
    "mirror-rt native bf16",
    "mirror-rt native int8",
)
TORCH, FASTEMBED, SKETCH = "sentence-transformers torch", "fastembed", "onnxruntime sketch"
CT2, CT2_INT8 = "CTranslate2 float32", "CTranslate2 int8"
# Label, figure, our contender, the other contender, goal of the ratio, and whether the goal is the
# least or the most that the ratio may be.
GOALS = [
    ("mixed texts", "mixed", OURS, FASTEMBED, 2.2, "least"),
    ("mixed texts", "mixed", OURS, TORCH, 1.45, "least"),
    ("mixed texts", "mixed", OURS, SKETCH, 1.05, "least"),
    ("mixed texts, int8 against fp32", "mixed", INT8, TORCH, 3.2, "least"),
    ("one short text, p50", "p50_ms", OURS, FASTEMBED, 0.65, "most"),
    ("one short text, p50, int8", "p50_ms", INT8, FASTEMBED, 0.30, "most"),
    ("cold process to first vector", "cold", OURS, FASTEMBED, 0.45, "most"),
    ("peak memory", "memory", OURS, FASTEMBED, 0.40, "most"),
    ("mixed texts", "mixed", OPENVINO, OURS, 1.75, "least"),
    ("mixed texts", "mixed", NATIVE, OURS, 2.0, "least"),
    ("mixed texts", "mixed", NATIVE_INT8, OURS, 3.0, "least"),
    ("mixed texts", "mixed", NATIVE, OPENVINO, 1.0, "least"),
    ("mixed texts", "mixed", NATIVE_INT8, OPENVINO, 1.3, "least"),
    ("one short text, p50", "p50_ms", NATIVE, OPENVINO, 0.5, "most"),
    ("one short text, p50", "p50_ms", NATIVE, FASTEMBED, 0.30, "most"),
    ("one short text, p50", "p50_ms", NATIVE_INT8, FASTEMBED, 0.25, "most"),
    ("cold process to first vector", "cold", OPENVINO, FASTEMBED, 0.45, "most"),
    ("cold process to first vector", "cold", NATIVE, FASTEMBED, 0.45, "most"),
    ("peak memory", "memory", NATIVE, OURS, 1.0, "most"),
    ("mixed texts", "mixed", NATIVE_FP32, OURS, 1.2, "least"),
    ("short texts", "short", NATIVE_FP32, OURS, 1.2, "least"),
    ("one short text, p50", "p50_ms", NATIVE_FP32, OURS, 0.7, "most"),
    ("mixed texts", "mixed", NATIVE_INT8, INT8, 1.4, "least"),
    ("mixed texts", "mixed", NATIVE_FP32, CT2, 1.2, "least"),
    ("mixed texts", "mixed", NATIVE_INT8, CT2_INT8, 1.4, "least"),
]
BEGIN, END = (
    "<!-- benchmarks/encode/compare.py: begin -->",
    "<!-- benchmarks/encode/compare.py: end -->",
)


def medians(state):
    """Return name -> figure -> median, of the figures that were measured."""
    names = [name for name in state["plan"]["contenders"] if name not in state["left_out"]]
    figures = {}
    for name in names:
        rounds = [found[name] for found in state["rounds"] if name in found]
        figures[name] = {
            key: statistics.median(found[key] for found in rounds)
            for key in (rounds[0] if rounds else ())
        }
        figures[name] |= state["agreement"].get(name, {})
        if name in state["cold"]:
            figures[name]["cold"] = statistics.median(state["cold"][name])
        if name in state["memory"]:
            figures[name]["memory"] = state["memory"][name]
    return figures


def ratio(state, figures, figure, ours, theirs):
    """Return the median of the ratios in each round; None if a contender has no such figure."""
    if figure in ("cold", "memory"):
        measured = {name: found for name, found in figures.items() if figure in found}
        return median_ratio([measured], operator.itemgetter(figure), ours, theirs)
    return median_ratio(state["rounds"], operator.itemgetter(figure), ours, theirs)


def table(about, state, figures):
    """Return the lines of the figures, which the guide shows, too."""
    texts = " and ".join(f"{count:,} {name}" for name, count in about["texts"].items())
    lines = [
        f"{about['machine']} ({about['class']}), {about['threads']} threads, {about['date']}; "
        f"medians of {len(state['rounds'])} rounds over {texts} texts; cosines with the vectors of "
        f"{state['reference']}. `{about['command']}`",
        "",
    ]
    header = ["", "mixed texts/s", "short texts/s", "mean cosine", "least cosine",
              "one short text, p50", "p95", "cold start", "peak memory",
              "best batch (mixed, short)"]  # fmt: skip
    rows = []
    for name, f in figures.items():
        cells = [
            shown(f, "mixed", "{:,.0f}"),
            shown(f, "short", "{:,.0f}"),
            shown(f, "mean_cosine", "{:.5f}"),
            shown(f, "least_cosine", "{:.5f}"),
            shown(f, "p50_ms", "{:.2f} ms"),
            shown(f, "p95_ms", "{:.2f} ms"),
            shown(f, "cold", "{:.2f} s"),
            shown(f, "memory", "{:.0f} MB"),
            "{mixed}, {short}".format(**state["batch"][name]) if name in state["batch"] else "",
        ]
        rows.append([name, *cells])
    rows += [[name, f"left out: {why}"] for name, why in state["left_out"].items()]
    return lines + markdown_table(header, rows, numbers=True).splitlines()


def shown(figures, key, form):
    return form.format(figures[key]) if key in figures else ""


def callers(state):
    lines = []
    for key, runs in state["callers"].items():
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        how = "through the scheduler" if key == "scheduler" else "each calling `encode`"
        lines.append(
            f"64 threads of one mixed text each, {how}: {middle['texts_per_second']:.0f} texts/s, "
            f"{middle['of_offline']:.2f} of the offline rate; p50 {middle['p50_ms']:.0f} ms, "
            f"p95 {middle['p95_ms']:.0f} ms."
        )
        lines.append("")
    return lines


def goals(state, figures):
    rows = []
    for what, figure, ours, theirs, goal, kind in GOALS:
        found = ratio(state, figures, figure, ours, theirs)
        measured = "not measured" if found is None else f"{found:.2f}"
        if found is not None and not (found >= goal if kind == "least" else found <= goal):
            measured += ", missed"
        rows.append([f"{what}: {ours} / {theirs}", f"at {kind} {goal}", measured])
    return markdown_table(["ratio", "goal", "measured"], rows, numbers=True).splitlines()


def versions():
    packages = "; ".join(
        f"{name}: {', '.join(one for one in environment.packages if one != PROJECT)}"
        for name, environment in ENVIRONMENTS.items()
    )
    return f"Environments: {packages}."


def write_report(folder, about, state, docs):
    """Write encode-DATE-MACHINE .json, .md and .png to `folder`, and the tables into `docs`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = medians(state)
    slug = re.sub(r"[^a-z0-9]+", "-", about["machine"].lower()).strip("-")
    quick = "-quick" if sum(about["texts"].values()) < 1000 else ""
    stem = folder / f"encode-{about['date']}-{slug}{quick}"
    ratios = {
        f"{figure}: {ours} / {theirs}": ratio(state, figures, figure, ours, theirs)
        for _, figure, ours, theirs, _, _ in GOALS
    }
    report = {"about": about, "medians": figures, "ratios": ratios, "state": state}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = table(about, state, figures)
    rest = ["", *callers(state), *goals(state, figures), "", versions(), ""]
    text = "\n".join([*lines, *rest])
    stem.with_suffix(".md").write_text(f"# The encoder and its peers\n\n{text}", encoding="utf-8")
    plot(stem.with_suffix(".png"), about, figures)
    print(f"\n{text}\nwritten: {stem}.json, .md, .png")
    if docs is not None:
        before, _, old = docs.read_text(encoding="utf-8").partition(BEGIN)
        link = f"[The report](../../benchmarks/results/{stem.name}.md)"
        lines += ["", f"{link} has all versions, 64 callers at once, and the goals.", ""]
        shown_there = "\n".join(["", "", *lines, ""])
        docs.write_text(f"{before}{BEGIN}{shown_there}{END}{old.partition(END)[2]}", "utf-8")


def plot(path, about, figures):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        ("mixed", "mixed texts/s"),
        ("short", "short texts/s"),
        ("p50_ms", "one short text, ms"),
        ("cold", "cold start, s"),
        ("memory", "peak memory, MB"),
    ]
    names = list(figures)[::-1]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(16, 3.6), sharey=True, layout="constrained"
    )
    for axis, (key, label) in zip(axes, panels, strict=True):
        values = [figures[name].get(key, 0) for name in names]
        colors = ["tab:blue" if "mirror-rt" in name else "tab:gray" for name in names]
        axis.bar_label(
            axis.barh(names, values, color=colors),
            fmt=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
            padding=2,
            fontsize=8,
        )
        axis.margins(x=0.2)
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{about['machine']} ({about['class']}), {about['threads']} threads, {about['date']}"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
