"""Fuzz a build of the native code; run it where that build's sanitizers end the process.

    python native_fuzz.py LIBRARY COUNT SEED [GRAPH ...]

Without graphs it makes COUNT encoders, losses and searches of random shapes, with every instruction
set in turn. With graphs of encoders it changes them COUNT times, loads each, and encodes with it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from native_build import load_core
from native_reference import RandomEncoder, Sizes

PRECISIONS = ("fp32", "bf16", "int8")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
RARE = [0.6, 0.35, 0.05]  # large sizes, which take longest
ODD = [0, 1, -1, 2, 3, 7, 31, 33, 64, 65, 512, 5000, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)]


def random_sizes(r: np.random.Generator) -> Sizes:
    """Return the sizes of an encoder of any kind."""
    modern = r.random() < 0.3
    heads, size = (int(r.integers(1, most)) for most in one([(2, 20), (4, 9), (6, 30)], r, RARE))
    size *= 2 if modern else 1
    vocabulary, positions = (int(r.integers(1, most)) for most in (30, one([4, 20, 160], r, RARE)))
    return Sizes(
        hidden=heads * size,
        heads=heads,
        inner=int(r.integers(1, one([20, 70, 140], r, RARE))),
        embedded=0 if modern or r.random() < 0.5 else int(r.integers(1, 4 * heads * size)),
        layers=1,
        positions=positions,
        vocabulary=vocabulary,
        activation=str(r.choice(["gelu", "gelu_tanh"])),
        relative=not modern and r.random() < 0.3,
        skipped_id=-1 if modern else int(r.integers(-1, vocabulary)),
        windows=(int(r.integers(0, positions + 9)),) if modern else (),
        types=0 if modern else int(r.integers(0, 4)),
        mapped=bool(r.integers(2)),
    )


def fuzz_encoder(core, r: np.random.Generator, isa: str) -> None:
    """Encode texts alone and together: the vectors are finite, and the same."""
    sizes, precision = random_sizes(r), str(r.choice(PRECISIONS))
    encoder = RandomEncoder(sizes, int(r.integers(2**32))).native(core, precision, isa)
    lengths = r.integers(1, sizes.positions + 1, r.integers(1, 6))
    ids, mask = np.zeros((2, len(lengths), lengths.max()), np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = r.integers(0, sizes.vocabulary, length), 1
    pooling = str(r.choice(["mean", "cls", "max", "none"]))
    options = {"pooling": pooling, "normalize": bool(r.integers(2)), "spins": 10}
    types = r.integers(0, max(sizes.types, 1), ids.shape)
    together = encoder.run(ids, mask, types=types, threads=int(r.integers(1, 4)), **options)
    assert np.isfinite(together).all(), sizes
    alone = [encoder.run(ids[i : i + 1], mask[i : i + 1], types=types[i : i + 1], threads=1,
                         **options) for i in range(len(ids))]  # fmt: skip
    assert np.array_equal(together, np.concatenate(alone)), sizes
    for numbers, limit in ((ids, sizes.vocabulary), (types, max(sizes.types, 1))):
        numbers[-1, 0] = r.choice(ODD)  # mostly no token
        try:
            encoder.run(ids, mask, types=types, threads=1, **options)
        except IndexError:
            assert not 0 <= numbers[-1, 0] < limit
        numbers[-1, 0] = 0


def fuzz_loss(core, r: np.random.Generator, isa: str) -> None:
    """Compute the steps of the loss and its gradients on two blocks of rows."""
    most = one([(20, 40, 20), (40, 70, 40), (150, 200, 150)], r, RARE)
    n, dim, columns = (int(r.integers(1, limit)) for limit in most)
    kind = str(r.choice(list(DTYPES)))
    execution = core.InfonceExecution(isa, int(r.integers(1, 3)))

    def rows_of(count: int):
        values = r.normal(size=(count, dim)).astype(np.float32) * 10.0 ** r.integers(-20, 18)
        with np.errstate(over="ignore"):
            block = values.astype(DTYPES[kind]) if kind != "bfloat16" else to_bfloat16(values)
        norms = np.empty(count, np.float32)
        rows = core.InfonceRows([(block.ctypes.data, count)], dim, kind, norms.ctypes.data)
        core.infonce_inverse_norms(rows, execution, norms.ctypes.data)
        return rows, (block, norms)

    (a, kept_a), (b, kept_b) = rows_of(n), rows_of(columns)
    symmetric = bool(r.integers(2))
    other, width = (None, n) if symmetric else (b, columns)
    negatives = core.InfonceNegatives(n, width, max(n, width), 0, 0)
    scale = float(r.choice([1, 20, 50, 200]) * np.log2(np.e))
    sums, weights, logs = (np.empty(n, np.float32) for _ in range(3))
    core.infonce_logsumexp(a, other, negatives, scale, execution, sums.ctypes.data)
    pairs = core.InfoncePairs(min(n, width), 0, False)
    core.infonce_objective(a, other or a, pairs, sums.ctypes.data, scale, False, 1.0, execution,
                           weights.ctypes.data, logs.ctypes.data)  # fmt: skip
    padded = execution.padded_dim(dim)
    out = [np.empty((execution.padded_rows(count), padded), np.float32) for count in (n, width)]
    column_logs = logs if symmetric else np.zeros(width, np.float32)
    core.infonce_contract(a, other, negatives, logs.ctypes.data, column_logs.ctypes.data, scale,
                          execution, out[0].ctypes.data,
                          0 if symmetric else out[1].ctypes.data)  # fmt: skip
    gradient = np.empty_like(kept_a[0])
    core.infonce_finish(out[0].ctypes.data, padded, a, other or a, pairs, weights.ctypes.data, 1.0,
                        execution, [gradient.ctypes.data])  # fmt: skip
    del kept_b


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the high halves of float32."""
    return np.ascontiguousarray(values.view(np.uint16)[:, 1::2])


def fuzz_search(core, r: np.random.Generator, isa: str) -> None:
    """Quantise vectors, and search among their codes, their bits and their scores."""
    n, dim, queries = (int(r.integers(0, most)) for most in (140, 100, 6))
    x = r.normal(size=(n, dim)).astype(np.float32)
    starts, steps = np.full(dim, -2, np.float32), np.full(dim, 1 / 64, np.float32)
    signed = bool(r.integers(2))
    codes = core.quantize_rows(x, starts, steps, signed=signed, instruction_set=isa)
    core.non_finite_rows(x)
    k, parts = int(r.integers(1, 12)), int(r.integers(1, 4))
    asked = r.integers(-128, 128, (queries, dim)).astype(np.int16)
    core.search_codes(asked, codes, signed=signed, k=k, parts=parts, instruction_set=isa)
    bits = r.integers(0, 256, (queries, dim)).astype(np.uint8)
    core.search_bits(bits, codes, k=k, parts=parts, instruction_set=isa)
    scores = r.normal(size=(queries, n)).astype(np.float32)
    best = np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64)
    core.keep_best(scores, 0, *best, instruction_set=isa)


def fuzz_shapes(core, count: int, seed: int) -> None:
    """Fuzz each part with each of its instruction sets in turn."""
    parts = [
        *((fuzz_encoder, core.engine_instruction_sets()) for _ in range(3)),
        (fuzz_loss, core.instruction_sets()),
        (fuzz_search, core.vector_instruction_sets()),
    ]
    for number in range(count):
        fuzz, isas = parts[number % len(parts)]
        isa = isas[number // len(parts) % len(isas)]
        try:
            fuzz(core, np.random.default_rng((seed, number)), isa)
        except BaseException:
            sys.stderr.write(f"case {number} of seed {seed}: {fuzz.__name__} with {isa}\n")
            raise


def fuzz_graphs(core, count: int, seed: int, graphs: list[Path]) -> int:
    """Load changed graphs; return how many were still those of an encoder."""
    import onnx

    from mirror_rt import BundleError
    from mirror_rt.inference.load_options import LoadOptions
    from mirror_rt.inference.native import runner
    from mirror_rt.tokens.padding import PaddedBatch

    runner._core = core
    models, ran = [onnx.load(path) for path in graphs], 0
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    for number in range(count):
        r = np.random.default_rng((seed, number))
        path.write_bytes(changed(models[number % len(models)], r))
        longest = int(r.choice([8, 64, 128, 2**20], p=[0.3, 0.3, 0.35, 0.05]))
        try:
            found, precision = runner.recognise(path, longest), str(r.choice(PRECISIONS))
            encoder = runner.NativeRunner(found, precision, LoadOptions())
            ids = r.integers(0, 900, (3, min(longest, 20)))
            batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
            encoder.run(batch, str(r.choice(["last_hidden_state", "pooled_embedding"])))
            ran += 1
        except BundleError:
            pass
        except BaseException:
            sys.stderr.write(f"graph {number} of seed {seed}\n")
            raise
    return ran


def changed(model, r: np.random.Generator) -> bytes:
    """Return a graph with some of its names, sizes, numbers or bytes changed."""
    import onnx

    new = onnx.ModelProto()
    new.CopyFrom(model)
    for _ in range(r.integers(1, 4)):
        CHANGES[r.integers(len(CHANGES))](new.graph, r)
    whole = bytearray(new.SerializeToString())
    if r.random() < 0.15:
        for place in r.integers(0, min(len(whole), 30_000), 3):
            whole[place] = r.integers(0, 256)
        whole = whole[: r.integers(1, len(whole))] if r.random() < 0.3 else whole
    return bytes(whole)


def one(values, r: np.random.Generator, weights=None):
    """Return one of many."""
    return values[int(r.choice(len(values), p=weights))]


def replace(tensor, dims: list[int], r: np.random.Generator) -> None:
    """Give a weight another shape and the numbers for it, unless they are too many."""
    from onnx import helper, numpy_helper

    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if np.prod([float(max(size, 1)) for size in dims]) > 1e6 or any(size < 0 for size in dims):
        del tensor.dims[:]
        tensor.dims.extend(dims)
        return
    values = r.normal(size=dims) * r.choice([1, 1, 1, 1e20, np.nan])
    values = values if kind == np.float32 else np.zeros(dims)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(kind), tensor.name))


def change_a_size(graph, r: np.random.Generator) -> None:
    """Change a size everywhere, which often leaves an encoder."""
    sizes = [size for tensor in graph.initializer for size in tensor.dims]
    old, new = int(one(sizes, r)), int(r.choice([1, 2, 3, 8, 31, 33, 48, 64, 96, 160, 300]))
    for tensor in graph.initializer:
        dims = [{old: new, 2 * old: 2 * new, 3 * old: 3 * new}.get(d, d) for d in tensor.dims]
        if dims != list(tensor.dims):
            replace(tensor, dims, r)


def change_a_shape(graph, r: np.random.Generator) -> None:
    tensor = one(graph.initializer, r)
    dims = list(tensor.dims) or [1]
    dims[int(r.integers(len(dims)))] = int(one(ODD, r))
    replace(tensor, [*dims, *[int(one(ODD, r))] * int(r.random() < 0.2)], r)


def change_an_input(graph, r: np.random.Generator) -> None:
    names = [name for node in graph.node for name in [*node.input, *node.output]]
    node = one(graph.node, r)
    if len(node.input):
        node.input[int(r.integers(len(node.input)))] = str(one([*names, "", "x" * 5000], r))


def change_an_attribute(graph, r: np.random.Generator) -> None:
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    attribute = one(attributes, r)
    attribute.i = int(one(ODD, r))
    attribute.f = float(r.choice([0, -1, 1e-30, 1e30, np.nan, np.inf]))


def repeat_a_node(graph, r: np.random.Generator) -> None:
    graph.node.add().CopyFrom(one(graph.node, r))


def drop_a_node(graph, r: np.random.Generator) -> None:
    if len(graph.node) > 1:
        del graph.node[int(r.integers(len(graph.node)))]


def move_a_weight_out(graph, r: np.random.Generator) -> None:
    tensor = one(graph.initializer, r)
    tensor.data_location = 1
    place = {"location": one(["model.onnx", "..", "", "x" * 5000, "gone"], r),
             "offset": str(one(ODD, r)), "length": str(one(ODD, r))}  # fmt: skip
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))


CHANGES = [change_a_size, change_a_size, change_a_size, change_a_shape, change_an_input,
           change_an_attribute, repeat_a_node, drop_a_node, move_a_weight_out]  # fmt: skip


def main(library: str, count: str, seed: str, *graphs: str) -> None:
    """Fuzz, and say how much."""
    core = load_core(Path(library))
    if not graphs:
        fuzz_shapes(core, int(count), int(seed))
        sys.stdout.write(f"{int(count):,} shapes\n")
    else:
        ran = fuzz_graphs(core, int(count), int(seed), [Path(graph) for graph in graphs])
        sys.stdout.write(f"{int(count):,} graphs, of which {ran:,} were encoders\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
