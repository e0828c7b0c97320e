"""Make the report of benchmarks/gpu.sh: goals met and missed, steps, tables of figures.

It needs nothing but the standard library, and takes figures of steps that were cut short as well.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from gpu.runner import FAILED, PASSED, State, said
from helpers import median_ratio
from loss.cores import CORES

LARGE, SMALL, MOST_MB = 65_536, 400, 1_074
MILLION_SECONDS = 6
# Of the loss, in matrix products: dimensions, forward, forward and backward.
PRODUCTS = ((384, 0.75, 2.8), (768, 0.6, 2.2))
RIVALS = ("PyTorch", "torch.compile")
# Encoder -> the least ratio of our texts a second to its.
ENCODERS = {
    "sentence-transformers fp16": 1,
    "sentence-transformers fp16, flash attention": 1,
    "sentence-transformers ONNX O4": 1.75,
}
PACKED, GRAPHS = "mirror-rt fp16-cuda", "mirror-rt fp16-cuda, CUDA graphs"
FAST_ATTENTION = {"FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION"}

# What was measured, the requirement, the value, and whether it meets the requirement.
Goal = tuple[str, str, str, bool]
Results = Mapping[str, Any]


def summarize(state: State) -> str:
    """Return the report in Markdown."""
    results = {name: step["result"] for name, step in state["steps"].items() if "result" in step}
    sections = [
        header(state, results),
        goals_table(list(goals(state, results))),
        steps_table(state),
        *(infonce_table(name, results[name]) for name in ("speed", "million-rows", "rivals")
          if results.get(name)),
        *(kernels_table(results[name]) for name in ["kernels"] if results.get(name)),
        *(faults_list(results[name]) for name in ["faults"] if results.get(name)),
        *(encode_table(name, results[name]) for name in ["encode-base"] if results.get(name)),
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def header(state: State, results: Results) -> str:
    about, machine = state["about"], results.get("machine", {})
    title = "# The GPU side" if about.get("device") != "cpu" else "# A rehearsal without a card"
    lines = [f"{key}: {value}" for key, value in about.items()]
    lines += [f"{key}: {machine[key]}" for key in ("card", "torch_sees", "nvcc") if key in machine]
    lines += [f"{name}: {value:.3g}" for name, value in machine.get("rates", {}).items()]
    packages = machine.get("packages", {})
    lines += [f"{name}: {packages[name]}" for name in ("torch", "transformers") if name in packages]
    return "\n".join([title, "", *(f"- {line}" for line in lines)])


def goals_table(found: list[Goal]) -> str:
    lines = ["| goal | asked | measured | verdict |", "|---|--:|--:|---|"]
    for text, asked, value, met in found:
        lines.append(f"| {text} | {asked} | {value} | {'met' if met else '**missed**'} |")
    return "\n".join(lines)


def steps_table(state: State) -> str:
    lines = ["| stage | step | verdict | seconds | limit | |", "|--:|---|---|--:|--:|---|"]
    for name, step in state["steps"].items():
        why = said(step).removeprefix(": ").replace("|", "\\|")[:200]
        lines.append(f"| {step['stage']} | {name} | {step['verdict']} | {step['seconds']:.0f} "
                     f"| {step['limit']:.0f} | {why} |")  # fmt: skip
    return "\n".join(lines)


def goals(state: State, results: Results) -> Iterator[Goal]:
    """Yield the goals of which something was measured."""
    for name, text in (
        ("agrees", "the fast core agrees with the safe one, and repeats bit for bit"),
        *((f"tests-{core}", f"tests of the kernels, core {core}") for core in CORES),
        ("tests-precise", "float32 as precise as torch's, both cores"),
        ("tests-slow", "tests of torch.compile and of a million rows"),
        (f"memcheck-{CORES[-1]}", "accesses outside memory"),
        ("doctor", "`mirror-rt doctor`"),
        ("tests-encoder", "tests of the encoder on a card"),
    ):
        yield from step_goal(state["steps"].get(name, {}), text)
    yield from loss_goals(results)
    yield from encoder_goals("base", results.get("encode-base"))
    yield from attention_goals(results.get("attention-fp16-cuda"))
    yield from soak_goals(results.get("soak"))


def step_goal(step: Mapping[str, Any], text: str) -> Iterator[Goal]:
    """Yield the verdict of a step that ended, with the number of its tests if it has any."""
    verdict, tests = step.get("verdict"), step.get("result", {})
    if verdict not in (PASSED, FAILED):
        return
    value = verdict
    if "passed" in tests:
        failed, skipped = len(tests["failed"]), sum(tests["skipped"].values())
        value = f"{tests['passed']} passed, {failed} failed, {skipped} skipped"
    yield text, "no fault", value, verdict == PASSED


def loss_goals(results: Results) -> Iterator[Goal]:
    ours = {dim: first_of(contenders(results.get("speed"), LARGE, dim)) for dim, *_ in PRODUCTS}
    for dim, forward, total in PRODUCTS:
        for key, kind, most in (
            ("forward_products", "forward", forward),
            ("total_products", "forward + backward", total),
        ):
            text = f"{kind}, {LARGE:,} rows, D = {dim}, in matrix products"
            yield from at_most(text, ours[dim].get(key), most, "{:.2f}")
    text = f"peak memory, {LARGE:,} rows, D = 768, in MB"
    yield from at_most(text, ours[768].get("peak_mb"), MOST_MB, "{:.0f}")
    million = first_of(contenders(results.get("million-rows"), 1 << 20, 768)).get("total_ms")
    text = "1,048,576 rows, D = 768: forward + backward, in seconds"
    yield from at_most(text, million and million / 1e3, MILLION_SECONDS, "{:.1f}")
    profile = results.get("kernels", {})
    text = f"launches, {SMALL} rows, forward + backward"
    yield from at_most(text, profile.get("launches"), 10, "{:.0f}")
    text = f"microseconds of the host, {SMALL} rows, forward + backward"
    yield from at_most(text, profile.get("total_host_us"), 50, "{:.0f}")
    of = contenders(results.get("rivals"), LARGE, 768)
    mine = first_of({name: c for name, c in of.items() if name.startswith("mirror_rt")})
    for rival in [name for name in RIVALS if mine and name in of]:
        text = f"time of the loss / {rival}, {LARGE:,} rows, D = 768"
        yield from at_most(text, mine["total_ms"] / of[rival]["total_ms"], 1, "{:.2f}")


def at_most(text: str, value: float | None, most: float, form: str) -> Iterator[Goal]:
    if value is not None:
        yield text, f"at most {most}", form.format(value), value <= most


def contenders(result: Results | None, rows: int, dim: int) -> Results:
    for size in (result or {}).get("results", ()):
        if size and (size["rows"], size["dim"]) == (rows, dim):
            found: Results = size["contenders"]
            return found
    return {}


def first_of(contenders: Results) -> Results:
    return next(iter(contenders.values()), {})


def attention_goals(result: Results | None) -> Iterator[Goal]:
    """Judge the kernels that onnxruntime printed: are they the fast ones?"""
    kernels = (result or {}).get("printed", {})
    if found := {kernel for several in kernels.values() for kernel in several}:
        asked = "FLASH_ATTENTION or cuDNN's"
        yield "attention kernel", asked, ", ".join(sorted(found)), found <= FAST_ATTENTION


def soak_goals(result: Results | None) -> Iterator[Goal]:
    if result:
        one, two = result["texts_per_second"].values()
        text = "base: texts/s: two runs in flight / one"
        yield text, "at least 1", f"{two / one:.2f}", two >= one
        growth, limit = result["growth_mb"], result["limit_mb"]
        text = "base: growth of the card's memory under many shapes"
        yield text, "none", f"{growth:.0f} MB", growth <= limit


def encoder_goals(model: str, result: Results | None) -> Iterator[Goal]:
    if not result:
        return
    if result["agreement"]:
        wrong = [name for name in result["left_out"] if name.startswith("mirror-rt")]
        text = f"{model}: graphs that agree with fp32 on the CPU"
        yield text, "all", ", ".join(wrong) or "all", not wrong
    for rival, least in ENCODERS.items():
        yield from ratio(f"{model}: texts/s", result, "texts_per_second", (PACKED, rival), least)
        yield from ratio(f"{model}: one short text, p50", result, "p50_ms", (GRAPHS, rival), 1)


def ratio(
    what: str, found: Results, key: str, names: tuple[str, str], limit: float
) -> Iterator[Goal]:
    """Yield the goal for the median ratio over the rounds: at least for rates, else at most."""
    ours, theirs = names
    least = key.endswith("per_second")
    value = median_ratio(found["rounds"], operator.itemgetter(key), ours, theirs)
    if value is not None:
        asked = f"at {'least' if least else 'most'} {limit}"
        met = value >= limit if least else value <= limit
        yield f"{what}: {ours} / {theirs}", asked, f"{value:.2f}", met


def infonce_table(name: str, result: Results) -> str:
    from loss.report import table

    _, _, rest = table(result["machine"], filter(None, result["results"])).partition("\n")
    return f"## {name}\n{rest.rstrip()}"


def kernels_table(result: Results) -> str:
    lines = ["## kernels", "", "| | kernel | ms |", "|---|---|--:|"]
    for case, kernels in result["kernels_ms"].items():
        for kernel, ms in sorted(kernels.items(), key=lambda item: -item[1]):
            lines.append(f"| {case} | {kernel[:90]} | {ms:.3f} |".replace("<", "\\<"))
    return "\n".join(lines)


def faults_list(result: Results) -> str:
    lines = ["## faults", ""]
    for problem in result["problems"]:
        told = "; ".join(f"{family}: {what}" for family, what in problem["wrong"].items())
        lines.append(f"- {problem['core']}, {problem['case']}: {told or 'right'}")
    return "\n".join(lines)


def encode_table(name: str, result: Mapping[str, Any]) -> str:
    lines = [
        f"## {name}",
        "",
        f"{result['texts']} texts of 4 to 500 tokens, {len(result['rounds'])} rounds; "
        + ", ".join(f"{key} {value}" for key, value in result["versions"].items()),
        "",
        "| | texts/s | batch size | one short text, p50 ms | p95 ms | least cosine | alone |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, agreed in result["agreement"].items():
        rounds = [one[name] for one in result["rounds"] if name in one]
        if not rounds:
            continue
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        lines.append(
            f"| {name} | {middle['texts_per_second']:.0f} | {result['batch'][name]} "
            f"| {middle['p50_ms']:.2f} | {middle['p95_ms']:.2f} "
            f"| {agreed['batch']:.5f} | {agreed['alone']:.5f} |"
        )
    lines += [f"| {name} | left out: {why} |" for name, why in result["left_out"].items()]
    return "\n".join(lines)
