"""Make the report of benchmarks/gpu.sh: goals met and missed, steps, tables of figures."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from gpu.run import LEFT_OUT, PASSED, State, said
from gpu.steps import ATTENTION
from helpers import median_ratio
from loss.cores import CORES

LARGE, SMALL, MOST_MB = 65_536, 400, 1_074
MILLION_SECONDS = 8
ONE_WAY = ("Liger, one_way", "Cut Cross-Entropy, one_way", "Inf-CL, one_way")
PLAIN = ("PyTorch", "torch.compile")
RIVALS = (
    "sentence-transformers fp16",
    "sentence-transformers fp16, flash attention",
    "sentence-transformers ONNX O4",
)
PACKED, GRAPHS = "mirror-rt fp16-cuda", "mirror-rt fp16-cuda, CUDA graphs"

# The label, the requirement, and the measured value with whether it meets the requirement; None if
# it was not measured.
Goal = tuple[str, str, tuple[str, bool] | None]


def summarize(state: State) -> str:
    """Return the report in Markdown."""
    results = {name: step["result"] for name, step in state["steps"].items() if "result" in step}
    sections = [
        header(state, results),
        goals_table(list(goals(state, results))),
        steps_table(state),
        *(infonce_table(name, results[name])
          for name in ("speed", "million-rows", "cores", "rivals") if results.get(name)),
        *(encode_table(name, results[name]) for name in ("encode-minilm", "encode-base")
          if results.get(name)),
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def header(state: State, results: Mapping[str, Any]) -> str:
    about, machine = state["about"], results.get("machine", {})
    title = "# The GPU side" if about.get("device") != "cpu" else "# A rehearsal without a card"
    lines = [f"{key}: {value}" for key, value in about.items()]
    lines += [f"{key}: {machine[key]}" for key in ("card", "torch_sees", "nvcc") if key in machine]
    packages = machine.get("packages", {})
    lines += [f"{name}: {packages[name]}" for name in ("torch", "transformers") if name in packages]
    return "\n".join([title, "", *(f"- {line}" for line in lines)])


def goals_table(found: list[Goal]) -> str:
    lines = ["| goal | asked | measured | verdict |", "|---|--:|--:|---|"]
    for text, asked, measured in found:
        value, met = measured or ("", None)
        verdict = {None: "not measured", True: "met", False: "**missed**"}[met]
        lines.append(f"| {text} | {asked} | {value} | {verdict} |")
    return "\n".join(lines)


def steps_table(state: State) -> str:
    lines = ["| stage | step | verdict | seconds | limit | |", "|--:|---|---|--:|--:|---|"]
    for name, step in state["steps"].items():
        why = said(step).removeprefix(": ").replace("|", "\\|")[:200]
        lines.append(f"| {step['stage']} | {name} | {step['verdict']} | {step['seconds']:.0f} "
                     f"| {step['limit']:.0f} | {why} |")  # fmt: skip
    for number, stage in state["stages"].items():
        lines.append(f"| {number} | all: {stage['title']} | | {stage['seconds']:.0f} "
                     f"| {stage['budget']:.0f} | |")  # fmt: skip
    return "\n".join(lines)


def goals(state: State, results: Mapping[str, Any]) -> Iterator[Goal]:
    for core in CORES:
        name = f"tests-{core}"
        yield f"tests of the kernels, core {core}", "all pass", tests(results.get(name))
    yield from loss_goals(results)
    for name in checks_of(state):
        verdict = state["steps"][name]["verdict"]
        measured = None if verdict == LEFT_OUT else (verdict, verdict == PASSED)
        yield f"compute-sanitizer {name.replace('-', ', core ')}", "no error", measured
    yield "the encoder's tests", "all pass", tests(results.get("tests-encoder"))
    doctor = state["steps"].get("doctor", {}).get("verdict", LEFT_OUT)
    yield (
        "`mirror-rt doctor`",
        "no fault",
        None if doctor == LEFT_OUT else (doctor, doctor == PASSED),
    )
    yield from soak_goals(results.get("soak"))
    for name in ATTENTION:
        yield attention_goal(name, results.get(f"attention-{name}"))
    for name in ("encode-minilm", "encode-base"):
        yield from encoder_goals(name.removeprefix("encode-"), results.get(name))


def attention_goal(name: str, result: Mapping[str, Any] | None) -> Goal:
    """Judge the kernels that onnxruntime printed: are they the fast ones?

    A padded graph that is not captured runs without cuDNN, so nothing fused is asked of it.
    """
    kernels = (result or {}).get("printed", {})
    part = {"captured": kernels.get("captured", [])} if name.endswith("captured") else kernels
    found = {kernel for several in part.values() for kernel in several}
    wanted = ("any", "FLASH_ATTENTION or cuDNN's")[name != "fp16"]
    if not found:
        return f"attention kernel, {name}", wanted, None
    fast = name == "fp16" or found <= {"FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION"}
    return f"attention kernel, {name}", wanted, (", ".join(sorted(found)), fast)


def checks_of(state: State) -> list[str]:
    return [name for name in state["steps"] if name.partition("-")[0].endswith("check")]


def tests(result: Mapping[str, Any] | None) -> tuple[str, bool] | None:
    if not result or not (result["passed"] or result["failed"]):
        return None
    failed, skipped = len(result["failed"]), sum(result["skipped"].values())
    value = f"{result['passed']} passed, {failed} failed, {skipped} skipped"
    return value, result["passed"] > 0 and not failed


def loss_goals(results: Mapping[str, Any]) -> Iterator[Goal]:
    for dim, forward, total in ((384, 0.75, 2.8), (768, 0.6, 2.4)):
        for key, kind, most in (
            ("forward_products", "forward", forward),
            ("total_products", "forward + backward", total),
        ):
            of = contenders(results.get("speed"), LARGE, dim)
            value = of.get("mirror_rt", {}).get(key)
            each = ", ".join(f"{name.rpartition(' ')[2]} {c[key]:.2f}" for name, c in of.items()
                             if ", core " in name)  # fmt: skip
            text = f"{kind}, {LARGE:,} rows, D = {dim}, in matrix products"
            measured = None if value is None else (f"{value:.2f} ({each})", value <= most)
            yield text, f"at most {most}", measured
    peak = contenders(results.get("speed"), LARGE, 768).get("mirror_rt", {}).get("peak_mb")
    yield (f"peak memory, {LARGE:,} rows, D = 768", "at most 1 GiB",
           None if peak is None else (f"{peak:.0f} MB", peak <= MOST_MB))  # fmt: skip
    million = contenders(results.get("million-rows"), 1 << 20, 768).get("mirror_rt", {})
    seconds = million.get("total_ms", 0) / 1e3
    yield ("1,048,576 rows, D = 768: forward + backward", f"at most {MILLION_SECONDS} s",
           (f"{seconds:.1f} s", seconds <= MILLION_SECONDS) if million else None)  # fmt: skip
    profile = results.get("host-and-kernels", {})
    for key, text, most, unit in (
        ("launches", f"launches, {SMALL} rows, forward + backward", 10, ""),
        ("total_host_us", f"the host's time, {SMALL} rows, forward + backward", 50, " us"),
    ):
        value = min((of[key] for of in profile.values() if key in of), default=None)
        measured = None if value is None else (f"{value:.0f}{unit}", value <= most)
        yield text, f"at most {most}{unit}", measured
    for rows in (SMALL, 8_192, LARGE):
        for ours, rivals in (("mirror_rt", PLAIN), ("mirror_rt, one_way", ONE_WAY)):
            for rival in rivals:
                yield versus(contenders(results.get("rivals"), rows, 768), rows, ours, rival)


def contenders(result: Mapping[str, Any] | None, rows: int, dim: int) -> Mapping[str, Any]:
    for size in (result or {}).get("results", ()):
        if (size["rows"], size["dim"]) == (rows, dim):
            found: Mapping[str, Any] = size["contenders"]
            return found
    return {}


def versus(of: Mapping[str, Any], rows: int, ours: str, rival: str) -> Goal:
    text = f"time of {ours} / {rival}, {rows:,} rows, D = 768"
    if ours not in of or rival not in of:
        return text, "at most 1", None
    ratio = of[ours]["total_ms"] / of[rival]["total_ms"]
    return text, "at most 1", (f"{ratio:.2f}", ratio <= 1)


def soak_goals(result: Mapping[str, Any] | None) -> Iterator[Goal]:
    text, asked = "base: texts/s: two runs in flight / one", "at least 1"
    if not result:
        yield text, asked, None
        yield "base: growth of the card's memory under many shapes", "none", None
        return
    one, two = result["texts_per_second"].values()
    yield text, asked, (f"{two / one:.2f}", two >= one)
    growth, limit = result["growth_mb"], result["limit_mb"]
    flat = growth <= limit
    yield "base: growth of the card's memory under many shapes", "none", (f"{growth:.0f} MB", flat)


def encoder_goals(model: str, result: Mapping[str, Any] | None) -> Iterator[Goal]:
    found, left_out = result or {}, (result or {}).get("left_out", {})
    wrong = [name for name in left_out if name.startswith("mirror-rt")]
    measured = None if not found.get("agreement") else (", ".join(wrong) or "all", not wrong)
    yield f"{model}: graphs that agree with fp32 on the CPU", "all", measured
    for rival in RIVALS:
        yield ratio(f"{model}: texts/s", found, "texts_per_second", (PACKED, rival), 1)
        yield ratio(f"{model}: one short text, p50", found, "p50_ms", (GRAPHS, rival), 1)
    names = (GRAPHS, "mirror-rt fp16")
    yield ratio(f"{model}: one short text, p95", found, "p95_ms", names, 0.5)


def ratio(
    what: str, found: Mapping[str, Any], key: str, names: tuple[str, str], limit: float
) -> Goal:
    """Return the goal for the median ratio over the rounds: at least for rates, else at most."""
    ours, theirs = names
    least = key.endswith("per_second")
    text, asked = f"{what}: {ours} / {theirs}", f"at {'least' if least else 'most'} {limit}"
    value = median_ratio(found.get("rounds", ()), operator.itemgetter(key), ours, theirs)
    if value is None:
        return text, asked, None
    return text, asked, (f"{value:.2f}", value >= limit if least else value <= limit)


def infonce_table(name: str, result: Mapping[str, Any]) -> str:
    from loss.report import table

    _, _, rest = table(result["machine"], result["results"]).partition("\n")
    return f"## {name}\n{rest.rstrip()}"


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
