"""Fuzz a build of the native code; run it where that build's sanitizers end the process.

    python native_fuzz.py LIBRARY COUNT SEED [BUNDLE ...]

Without bundles it makes COUNT encoders, losses and searches of random shapes, with every
instruction set in turn. With bundles it changes their tables of weights and configurations COUNT
times, loads each, and encodes with it.
"""

from __future__ import annotations

import copy
import json
import shutil
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
    key_heads = int(r.choice([n for n in range(1, heads + 1) if heads % n == 0]))
    decoder = modern and r.random() < 0.6
    distances = not modern and r.random() < 0.3
    vocabulary, positions = (int(r.integers(1, most)) for most in (30, one([4, 20, 160], r, RARE)))
    return Sizes(
        hidden=heads * size,
        heads=heads,
        inner=int(r.integers(1, one([20, 70, 140], r, RARE))),
        embedded=0 if modern or r.random() < 0.5 else int(r.integers(1, 4 * heads * size)),
        layers=1,
        positions=positions,
        vocabulary=vocabulary,
        activation=str(r.choice(["gelu", "gelu_tanh", "silu", "relu"])),
        relative=not modern and r.random() < 0.3,
        distances=distances,
        skipped_id=-1 if modern else int(r.integers(-1, vocabulary)),
        windows=(int(r.integers(0, positions + 9)),) if modern else (),
        types=0 if modern else int(r.integers(0, 4)),
        decoder=decoder,
        causal=bool(r.random() < 0.4),
        key_heads=key_heads if not distances and r.random() < 0.5 else 0,
        size=2 * int(r.integers(1, 20)) if r.random() < 0.3 else 0,
    )


def fuzz_encoder(core, r: np.random.Generator, isa: str) -> None:
    """Encode texts alone and together: the vectors are finite, and the same."""
    sizes, precision = random_sizes(r), str(r.choice(PRECISIONS))
    encoder = RandomEncoder(sizes, int(r.integers(2**32))).native(core, precision, isa)
    lengths = r.integers(1, sizes.positions + 1, r.integers(1, 6))
    ids, mask = np.zeros((2, len(lengths), lengths.max()), np.int64)
    window = (sizes.windows or (0,))[0] or sizes.positions
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = r.integers(0, sizes.vocabulary, length), 1
        if r.random() < 0.3:  # the last tokens attend, and none attends to them
            mask[row, r.integers(max(1, length - window), length + 1) : length] = 2
    pooling = str(r.choice(["mean", "cls", "lasttoken", "max", "none"]))
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


def fuzz_vocabulary(core, r: np.random.Generator, isa: str) -> None:
    """Weigh the words of texts alone and together: the weights are finite, and the same."""
    hidden, inner, words = (int(r.integers(1, one([20, 70, 300], r, RARE))) for _ in range(3))

    def pair(*shape: int):
        return tuple(r.normal(size=one).astype(np.float32) for one in (shape, shape[-1:]))

    head = core.NativeVocabulary(
        precision=str(r.choice(PRECISIONS)),
        activation=str(r.choice(["gelu", "gelu_tanh", "silu", "relu"])),
        epsilon=1e-5,
        dense=pair(hidden, inner),
        norm=pair(inner),
        decoder=pair(inner, words),
        instruction_set=isa,
    )
    lengths = r.integers(1, one([4, 20, 160], r, RARE), r.integers(1, 6))
    offsets = np.cumsum([0, *lengths])
    tokens = r.normal(size=(offsets[-1], hidden)).astype(np.float32)
    options = {"pooling": str(r.choice(["max", "sum"])), "twice": bool(r.integers(2)), "spins": 10}
    together = head.run(tokens, offsets, threads=int(r.integers(1, 4)), **options)
    assert np.isfinite(together).all(), (hidden, inner, words)
    alone = [head.run(tokens, offsets[i : i + 2], threads=1, **options)
             for i in range(len(lengths))]  # fmt: skip
    assert np.array_equal(together, np.concatenate(alone)), (hidden, inner, words)


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
                          None, execution, out[0].ctypes.data,
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
    n, dim, queries = (int(r.integers(0, most)) for most in (140, 100, 12))
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
    halves = x.astype(np.float16).view(np.uint16)
    given = r.normal(size=(queries, dim)).astype(np.float32)
    core.half_products(given, halves, parts=parts, instruction_set=isa)
    cuts = np.sort(r.integers(0, n + 1, 3))
    for documents in (x, halves, codes, codes.view(np.int8)):
        core.max_similarities([given, given[:1]], np.split(documents, cuts), threads=parts,
                              instruction_set=isa)  # fmt: skip
    centroids = r.normal(size=(3, dim * 4)).astype(np.float32)
    weights = r.normal(size=(256, 4)).astype(np.float32)
    numbers = r.integers(0, 3, (n, 1)).astype(np.int32).view(np.uint8)
    coded = np.concatenate([numbers, codes], axis=1)
    core.residual_similarities([np.tile(given, 4)], np.split(coded, cuts), centroids, weights,
                               threads=parts, instruction_set=isa)  # fmt: skip
    scores = r.normal(size=(queries, n)).astype(np.float32)
    best = np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64)
    core.keep_best(scores, 0, *best, instruction_set=isa)


def fuzz_shapes(core, count: int, seed: int) -> None:
    """Fuzz each part with each of its instruction sets in turn."""
    parts = [
        *((fuzz_encoder, core.engine_instruction_sets()) for _ in range(3)),
        (fuzz_vocabulary, core.engine_instruction_sets()),
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


def fuzz_tables(core, count: int, seed: int, bundles: list[Path]) -> int:
    """Load bundles with changed tables; return how many were still those of an encoder."""
    from mirror_rt import BundleError, Manifest
    from mirror_rt.bundle.description import describe_folder
    from mirror_rt.inference.load_options import LoadOptions
    from mirror_rt.inference.native import checkpoint, runner
    from mirror_rt.tokens.padding import PaddedBatch

    runner._core = core
    ran, top = 0, Path(tempfile.mkdtemp())
    folders = [Path(shutil.copytree(one, top / str(i))) for i, one in enumerate(bundles)]
    originals = [
        [json.loads((folder / name).read_text()) for name in ("mirror.json", "config.json")]
        for folder in folders
    ]
    for number in range(count):
        r, which = np.random.default_rng((seed, number)), number % len(folders)
        manifest, config = copy.deepcopy(originals[which])
        for _ in range(r.integers(1, 4)):
            CHANGES[r.integers(len(CHANGES))](manifest["native"]["tensors"], config, r)
        manifest["max_length"] = int(r.choice([8, 64, 128, 2**20], p=[0.3, 0.3, 0.35, 0.05]))
        (folders[which] / "config.json").write_text(json.dumps(config))
        try:
            described = describe_folder(folders[which], manifest=Manifest.of_values(manifest))
            found, precision = checkpoint.read_encoder(described), str(r.choice(PRECISIONS))
            encoder = runner.NativeRunner(found, precision, LoadOptions())
            ids = r.integers(0, 900, (3, min(found.longest, 20)))
            batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
            encoder.run(batch, str(r.choice(["last_hidden_state", "pooled_embedding"])))
            ran += 1
        except (BundleError, ValueError) as error:
            if isinstance(error, ValueError) and "native" not in str(error):
                raise
        except BaseException:
            sys.stderr.write(f"table {number} of seed {seed}\n")
            raise
    return ran


def one(values, r: np.random.Generator, weights=None):
    """Return one of many."""
    return values[int(r.choice(len(values), p=weights))]


def change_a_size(tensors, config, r: np.random.Generator) -> None:
    """Change a size everywhere, which often leaves an encoder."""
    sizes = [size for _, *shape in tensors.values() for size in shape]
    old, new = int(one(sizes, r)), int(r.choice([1, 2, 3, 8, 16, 31]))
    for place in tensors.values():
        place[1:] = [{old: new, 2 * old: 2 * new, 3 * old: 3 * new}.get(d, d) for d in place[1:]]


def change_a_shape(tensors, config, r: np.random.Generator) -> None:
    place = one(list(tensors.values()), r)
    place[int(r.integers(len(place)))] = int(one(ODD, r))
    place += [int(one(ODD, r))] * int(r.random() < 0.2)


def move_a_weight(tensors, config, r: np.random.Generator) -> None:
    place = one(list(tensors.values()), r)
    place[0] = int(r.integers(0, 200_000))


def rename_a_weight(tensors, config, r: np.random.Generator) -> None:
    names = [*tensors, "x" * 5000, "embeddings.x"]
    tensors[str(one(names, r))] = tensors.pop(str(one(list(tensors), r)))


def change_the_config(tensors, config, r: np.random.Generator) -> None:
    key = str(one([key for key, value in config.items() if isinstance(value, int | float)], r))
    config[key] = one([*ODD, 0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf")], r)


CHANGES = [change_a_size, change_a_size, change_a_size, change_a_shape, move_a_weight,
           rename_a_weight, change_the_config]  # fmt: skip


def main(library: str, count: str, seed: str, *bundles: str) -> None:
    """Fuzz, and say how much."""
    core = load_core(Path(library))
    if not bundles:
        fuzz_shapes(core, int(count), int(seed))
        sys.stdout.write(f"{int(count):,} shapes\n")
    else:
        ran = fuzz_tables(core, int(count), int(seed), [Path(bundle) for bundle in bundles])
        sys.stdout.write(f"{int(count):,} tables, of which {ran:,} were of encoders\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
