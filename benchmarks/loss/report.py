"""Make the table and the plot of the measurements of benchmarks/loss/compare.py."""

from __future__ import annotations

import itertools
import json
import re

from helpers import write_whole


def write_json(path, machine, results):
    write_whole(path, json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


def write_report(folder, machine, results):
    """Write infonce-DATE-MACHINE .json, .md and .png to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", machine["name"].lower()).strip("-")
    stem = folder / f"infonce-{machine['date']}-{slug}-{machine['dtype']}"
    write_json(stem.with_suffix(".json"), machine, results)
    stem.with_suffix(".md").write_text(table(machine, results), encoding="utf-8")
    plot(stem.with_suffix(".png"), machine, results)
    print(f"written: {stem}.json, .md, .png")


def table(machine, results):
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    lines = [
        "# InfoNCE: forward, forward + backward, peak memory",
        "",
        f"{about}.",
        "",
        "Products: time over that of one rows x rows x dim matrix product in the same run. "
        "Peak MB: beside the input, gradients included, in a process of its own.",
        "",
        "| rows | dim | | forward ms | total ms | forward, products | total, products | peak MB |",
        "|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for r in results:
        size = f"| {r['rows']} | {r['dim']} |"
        for dtype, one in r["product_ms_by_dtype"].items():
            ratio = one / r["product_ms"]
            lines.append(f"{size} one product, {dtype} | | {one:.2f} | | {ratio:.2f} | |")
        for name, c in r["contenders"].items():
            peak = "?" if c["peak_mb"] is None else f"{c['peak_mb']:.0f}"
            each = [c["forward_ms"], c["total_ms"], c["forward_products"], c["total_products"]]
            told = ["?" if value is None else f"{value:.2f}" for value in each]
            lines.append(f"{size} {name} | {' | '.join(told)} | {peak} |")
        lines += [f"{size} {name} | {why} | | | | |" for name, why in r["left_out"].items()]
    return "\n".join(lines) + "\n"


def plot(path, machine, results):
    # The table is also made where this project is not installed yet.
    from mirror_rt.evaluation.plots import COLOURS, label_lines, new_figure, save_png

    dims = sorted({r["dim"] for r in results})
    names = list(dict.fromkeys(name for r in results for name in r["contenders"]))
    colours = dict(zip(names, itertools.cycle(COLOURS)))
    figure = new_figure(6 * len(dims), 8)
    axes = figure.subplots(2, len(dims), squeeze=False)
    panels = [("total_products", "time / one matrix product"), ("peak_mb", "peak memory, MB")]
    for column, dim in enumerate(dims):
        for row, (key, label) in enumerate(panels):
            axis, ends = axes[row][column], []
            for name in names:
                points = [
                    (r["rows"], r["contenders"][name][key])
                    for r in results
                    if r["dim"] == dim and r["contenders"].get(name, {}).get(key)
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), marker="o", color=colours[name])
                    ends.append((points[-1][1], name, colours[name]))
            axis.set(xscale="log", yscale="log", xlabel="rows (2N)", ylabel=label)
            rows = sorted({r["rows"] for r in results if r["dim"] == dim})
            axis.set_xticks(rows, list(map(str, rows)), rotation=45)
            axis.minorticks_off()
            label_lines(axis, ends)
            axis.set_title(f"dim {dim}")
            axis.grid(alpha=0.3)
    title = f"InfoNCE, forward + backward: {machine['name']}, {machine['dtype']}"
    save_png(figure, path, title)
