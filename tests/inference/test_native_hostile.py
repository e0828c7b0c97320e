"""Tables of strangers under `providers="native"`: a BundleError at load, before memory is taken."""

import json
import math

import numpy as np
import pytest

from json_files import change
from mirror_rt import BundleError, Encoder, NonFiniteError

WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"
NORM = "embeddings.LayerNorm.weight"
SELF = "encoder.layer.{}.attention.self."
# The matrices of the first layer in their order.
QUERIES = "+".join(SELF.format(0) + name for name in ("query", "key", "value"))
OUT, INNER, OUTER = (
    f"encoder.layer.0.{name}.dense" for name in ("attention.output", "intermediate", "output")
)


class Editor:
    """The table of a bundle, and the file that it is about, which are written back."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "onnx" / "model.onnx"
        self.manifest = json.loads((folder / "mirror.json").read_text())
        self.table = self.manifest["native"]["tensors"]
        self.data = bytearray(self.path.read_bytes())

    def get(self, name):
        offset, *shape = self.table[name]
        found = np.frombuffer(self.data, np.float32, math.prod(shape), offset)
        return found.reshape(shape).copy()

    def set(self, name, values):
        """Put numbers at the end of the file."""
        self.table[name] = [len(self.data), *values.shape]
        self.data += np.ascontiguousarray(values, np.float32).tobytes()

    def claim(self, name, *shape):
        """Say another shape, without the bytes for it."""
        self.table[name][1:] = shape

    def config(self, **values):
        change(self.folder / "config.json", **values)

    def load(self, **options):
        (self.folder / "mirror.json").write_text(json.dumps(self.manifest))
        self.path.write_bytes(self.data)
        return Encoder.load(self.folder, providers="native", verify=False, **options)


@pytest.fixture
def editor(bundle_copy):
    return Editor(bundle_copy)


def empty(editor):
    """Set a hidden size of 0 everywhere."""
    for place in editor.table.values():
        place[1:] = [0 if size in (32, 96) else size for size in place[1:]]


def at_one_place(editor):
    """Let 100 more layers take their weights from one place of the file."""
    for name, place in list(editor.table.items()):
        for number in range(2, 102) if "layer.0" in name else ():
            editor.table[name.replace("layer.0", f"layer.{number}")] = place
    editor.config(num_hidden_layers=102)


def ones(*shape):
    return np.ones(shape, np.float32)


HOSTILE = {
    "no hidden size": empty,
    "positions of no numbers": lambda e: (empty(e), e.claim(POSITIONS, 2**31, 0)),
    "positions without bytes": lambda e: e.claim(POSITIONS, 2**31, 32),
    "dimensions beyond 64 bits": lambda e: e.claim(POSITIONS, 2**32, 2**32, 128),
    "dimensions below zero": lambda e: e.claim(POSITIONS, -128, -32),
    "no dimension": lambda e: e.claim(WORDS),
    "no place": lambda e: e.table.update({WORDS: []}),
    "many dimensions": lambda e: e.claim(WORDS, 1, 1, 1, 900, 32),
    "a place before the file": lambda e: e.table[WORDS].__setitem__(0, -4),
    "a place behind the file": lambda e: e.table[WORDS].__setitem__(0, 2**62),
    "no table": lambda e: e.manifest.update(native=None),
    "a table of nothing": lambda e: e.table.clear(),
    "a row of words for all": lambda e: e.set(WORDS, e.get(WORDS)[0]),
    "a row of positions": lambda e: e.set(POSITIONS, e.get(POSITIONS)[0]),
    "narrow positions": lambda e: e.set(POSITIONS, ones(128, 1)),
    "wide token types": lambda e: e.set(TYPES, ones(1, 100_000)),
    "a wide norm": lambda e: e.set(NORM, ones(512)),
    "wide embeddings": lambda e: [
        e.set(name, ones(*e.get(name).shape[:-1], 512))
        for name in (WORDS, POSITIONS, TYPES, NORM, NORM.replace("weight", "bias"))
    ],
    "a wide layer": lambda e: e.set(OUT, ones(64, 64)),
    "narrow queries": lambda e: e.set(QUERIES, ones(32, 32)),
    "a short bias": lambda e: e.set(f"{QUERIES}.bias", ones(95)),
    "an inner layer that grows": lambda e: e.set(OUTER, ones(65, 32)),
    "a layer that is not there": lambda e: e.table.pop(INNER),
    "a layer more": lambda e: e.config(num_hidden_layers=1),
    "no heads": lambda e: e.config(num_attention_heads=0),
    "heads that do not divide": lambda e: e.config(num_attention_heads=5),
    "heads below zero": lambda e: e.config(num_attention_heads=-(2**63)),
    "no epsilon": lambda e: e.config(layer_norm_eps=-1.0),
    "an epsilon in words": lambda e: e.config(layer_norm_eps="small"),
    "a padding in words": lambda e: e.config(model_type="roberta", pad_token_id="x"),
    "a file of a long name": lambda e: e.manifest["native"].update(file="x" * 5000),
    "a file of a name with an end": lambda e: e.manifest["native"].update(file="a\0b"),
    "a file that is a folder": lambda e: e.manifest["native"].update(file="onnx"),
    "a file that is not there": lambda e: e.manifest["native"].update(file="onnx/weights"),
    "a file outside": lambda e: e.manifest["native"].update(file="../secret"),
    "a weight of a long name": lambda e: e.set("embeddings." + "x" * 5000, ones(1)),
    "weights at one place": at_one_place,
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_sizes_and_names_that_do_not_go_together(editor, change):
    change(editor)
    with pytest.raises(BundleError) as raised:
        editor.load()
    assert len(str(raised.value)) < 1000


def test_fewer_positions_than_max_length(editor):
    editor.manifest["max_length"] = 129
    with pytest.raises(BundleError, match=r"positions for 128 tokens.*max_length.* is 129"):
        editor.load()


def test_other_dimensions_and_poolings(editor):
    editor.manifest["dimension"] = 31
    with pytest.raises(BundleError, match="gives 32 dimensions, its manifest says 31"):
        editor.load()
    editor.manifest.update(dimension=32, pooling="first-last-avg")
    with pytest.raises(BundleError, match="first-last-avg is in graphs alone"):
        editor.load()


NUMBERS = [float("nan"), float("inf"), -float("inf")]
PLACES = [WORDS, QUERIES, OUT, INNER, OUTER, f"{QUERIES}.bias"]
# Every two of a place, a precision and a number once.
NOT_FINITE = [
    (name, NUMBERS[(i + j) % 3], variant)
    for i, name in enumerate(PLACES) for j, variant in enumerate(["fp32", "bf16", "int8"])
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "variant"), NOT_FINITE)
def test_numbers_that_are_not_finite_are_seen_in_every_precision(editor, name, number, variant):
    values = editor.get(name)
    values[..., 0] = number
    editor.set(name, values)
    with pytest.raises(NonFiniteError):
        editor.load(variant=variant).encode(["a river", "the town"])


def test_a_file_that_is_cut_off_in_place_changes_nothing(bundle_copy, command_in_child):
    out = command_in_child(
        "import os, pathlib, numpy as np; from mirror_rt import Encoder\n"
        f"folder = pathlib.Path({str(bundle_copy)!r})\n"
        "encoder = Encoder.load(folder, providers='native')\n"
        "texts = ['a river', 'the old town', 'children']\n"
        "expected = encoder.encode(texts)\n"
        "os.truncate(folder / 'onnx' / 'model.onnx', 0)\n"
        "np.testing.assert_array_equal(encoder.encode(texts), expected)\n"
        "print('well')"
    )
    assert out.strip() == "well"
