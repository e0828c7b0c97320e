"""Graphs of strangers under `providers="native"`: a BundleError at load, before memory is taken."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mirror_rt import BundleError, Encoder, NonFiniteError
from mirror_rt.inference.native.onnx_graph import Graph

WORDS = "encoder.embeddings.word_embeddings.weight"
POSITIONS = "encoder.embeddings.position_embeddings.weight"
TYPES = "encoder.embeddings.token_type_embeddings.weight"
NORM = "encoder.embeddings.LayerNorm.weight"
# The matrices of the first layer in their order; versions of torch give them different names.
OUT, INNER, OUTER = DENSE = ("attention out", "inner", "outer")


class Editor:
    """The fp32 graph of a bundle, whose weights are set and which is written back."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "onnx" / "model.onnx"
        self.model = onnx.load(self.path)
        self.graph = self.model.graph

    def node(self, op_type, number=0):
        return [node for node in self.graph.node if node.op_type == op_type][number]

    def get(self, name):
        return numpy_helper.to_array(self._tensor(name)).copy()

    def set(self, name, values):
        self._tensor(name).CopyFrom(numpy_helper.from_array(np.asarray(values), self.name(name)))

    def claim(self, name, *dims):
        """Say another shape, without the bytes for it."""
        tensor = self._tensor(name)
        tensor.ClearField("dims")
        tensor.dims.extend(dims)

    def load(self, **options):
        self.path.write_bytes(self.model.SerializeToString())
        return Encoder.load(self.folder, providers="native", verify=False, **options)

    def name(self, weight, layer=0):
        """The name in the graph of a matrix in DENSE; any other is one itself."""
        if weight not in DENSE:
            return weight
        return self.node("MatMul", 3 * layer + DENSE.index(weight)).input[1]

    def _tensor(self, name):
        return next(x for x in self.graph.initializer if x.name == self.name(name))


@pytest.fixture
def editor(bundle_copy):
    return Editor(bundle_copy)


def empty(editor):
    """Set a hidden size of 0 everywhere."""
    for tensor in list(editor.graph.initializer):
        dims = [0 if size in (32, 96) else size for size in tensor.dims]
        if dims != list(tensor.dims):
            editor.set(tensor.name, np.empty(dims, np.float32))


def outside(editor, location, name="w"):
    tensor = editor._tensor(name)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    length = np.prod(tensor.dims) * 4
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def add_mapped(editor, count):
    """Let `count` more layers take their weights from one place of a file."""
    inner = editor.name(INNER)
    (editor.path.parent / "shared").write_bytes(editor.get(inner).tobytes())
    entering = editor.node("Attention").input[0]
    nodes = [node for node in editor.graph.node if node.op_type in LAYER][:7]
    for number in range(count):
        tensor = editor.graph.initializer.add()
        tensor.CopyFrom(editor._tensor(inner))
        tensor.name = f"shared{number}"
        outside(editor, "shared", tensor.name)
        for node in nodes:
            made = editor.graph.node.add()
            made.CopyFrom(node)
            rename = {name: f"{number} {name}" for other in nodes for name in other.output}
            rename |= {"layer_norm": entering, inner: tensor.name}
            made.input[:] = [rename.get(name, name) for name in node.input]
            made.output[:] = [rename.get(name, name) for name in node.output]
        entering = f"{number} layer_norm_2"
    for node in nodes[:3]:
        node.input[:] = [entering if name == "layer_norm" else name for name in node.input]


LAYER = {"Attention", "MatMul", "SkipLayerNormalization", "BiasGelu"}
HOSTILE = {
    "no hidden size": lambda e: empty(e),
    "positions of no numbers": lambda e: (
        empty(e),
        e.set(POSITIONS, np.empty((2**31, 0), np.float32)),
    ),
    "positions without bytes": lambda e: e.claim(POSITIONS, 2**31, 32),
    "dimensions beyond 64 bits": lambda e: e.claim(POSITIONS, 2**32, 2**32, 128),
    "a row of words for all": lambda e: e.set(WORDS, e.get(WORDS)[0]),
    "a row of positions": lambda e: e.set(POSITIONS, e.get(POSITIONS)[0]),
    "narrow positions": lambda e: e.set(POSITIONS, np.ones((128, 1), np.float32)),
    "wide token types": lambda e: (
        e.set(POSITIONS, np.ones((128, 1), np.float32)),
        e.set(TYPES, np.ones((1, 100_000), np.float32)),
    ),
    "a wide norm": lambda e: e.set(NORM, np.ones(512, np.float32)),
    "wide embeddings": lambda e: [
        e.set(name, np.ones((*e.get(name).shape[:-1], 512), np.float32))
        for name in (WORDS, POSITIONS, TYPES, NORM, NORM.replace("weight", "bias"))
    ],
    "a wide layer": lambda e: e.set(OUT, np.ones((64, 64), np.float32)),
    "narrow queries": lambda e: e.set("_symbolic.weight", np.ones((32, 32), np.float32)),
    "a short bias": lambda e: e.set("_symbolic.bias", np.ones(95, np.float32)),
    "an inner layer that grows": lambda e: e.set(OUTER, np.ones((65, 32), np.float32)),
    "numbers of another type": lambda e: e.set(OUTER, np.ones((64, 32), np.int32)),
    "no heads": lambda e: setattr(e.node("Attention").attribute[0], "i", 0),
    "heads that do not divide": lambda e: setattr(e.node("Attention").attribute[0], "i", 5),
    "heads below zero": lambda e: setattr(e.node("Attention").attribute[0], "i", -(2**63)),
    "other heads in a layer": lambda e: setattr(e.node("Attention", 1).attribute[0], "i", 2),
    "a scale that is no number": lambda e: e.node("Attention").attribute.append(
        onnx.helper.make_attribute("scale", float("nan"))
    ),
    "a scale in words": lambda e: e.node("Attention").attribute.append(
        onnx.helper.make_attribute("scale", "large")
    ),
    "no epsilon": lambda e: setattr(e.node("EmbedLayerNormalization").attribute[0], "f", -1.0),
    "a file of a long name": lambda e: outside(e, "x" * 5000, WORDS),
    "a file of a name with an end": lambda e: outside(e, "a\0b", WORDS),
    "a file that is a folder": lambda e: outside(e, "..", WORDS),
    "a weight of a long name": lambda e: e.node("Attention").input.__setitem__(1, "x" * 5000),
    "an operator of a long name": lambda e: setattr(e.node("Attention"), "op_type", "x" * 5000),
    "a chain of casts": lambda e: [
        e.graph.node.append(onnx.helper.make_node("Cast", [f"c{i}"], [f"c{i + 1}"]))
        for i in range(3000)
    ] and e.node("EmbedLayerNormalization").input.__setitem__(8, "c3000"),
    "weights at one place": lambda e: add_mapped(e, 100),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_sizes_and_names_that_do_not_go_together(editor, change):
    change(editor)
    with pytest.raises(BundleError) as raised:
        editor.load()
    assert len(str(raised.value)) < 1000


def test_weights_outside_the_bundle_are_refused(editor):
    outside(editor, "../secret", WORDS)
    with pytest.raises(BundleError, match="outside the bundle"):
        editor.load()


def test_a_circle_of_layers_is_seen_at_once(editor, monkeypatch):
    first, second = (editor.node("Attention", number) for number in (0, 1))
    for node in [first, editor.node("SkipLayerNormalization")]:
        node.input[:] = ["layer_norm_2" if name == "layer_norm" else name for name in node.input]
    editor.graph.node.extend([onnx.NodeProto()] * 2000)
    asked, nodes = [], len(editor.graph.node)
    original = Graph.weight
    monkeypatch.setattr(Graph, "weight", lambda *a: asked.append(a) or original(*a))
    with pytest.raises(BundleError, match="a circle of layers"):
        editor.load()
    assert len(asked) < 100 < nodes
    assert second.input[0] == "layer_norm_2"


def test_a_graph_of_nothing_but_nodes_is_refused(editor):
    path, empty = editor.path, b"\n\0" * 300_000
    length = [len(empty) & 127 | 128, len(empty) >> 7 & 127 | 128, len(empty) >> 14]
    path.write_bytes(bytes([0x3A, *length]) + empty)
    with pytest.raises(BundleError, match="more than 262,144 fields"):
        Encoder.load(editor.folder, providers="native", verify=False)


def test_layers_that_share_some_of_their_weights(editor):
    layer = [node for node in editor.graph.node if node.op_type in LAYER][:7]
    inside = {name for node in layer for name in node.output} - {layer[-1].output[0]}
    for number in range(300):  # each would be packed
        before, after = ("layer_norm", "more 0") if number == 0 else (f"more {number - 1}",) * 2
        after = f"more {number}"
        names = {"layer_norm": before, "layer_norm_2": after}
        for node in layer:
            made = editor.graph.node.add()
            made.CopyFrom(node)
            for field in (made.input, made.output):
                local = [x for x in field if x in inside]
                made_names = names | {x: f"{x} {number}" for x in [*local, "_symbolic"]}
                known = {tensor.name for tensor in editor.graph.initializer}
                field[:] = [x if x in known else made_names.get(x, x) for x in field]
            if node.op_type == "BiasGelu":
                bias = f"bias {number}"
                editor.graph.initializer.append(
                    numpy_helper.from_array(np.zeros(64, np.float32), bias)
                )
                made.input[1] = bias
    for node in layer:
        node.input[:] = ["more 299" if name == "layer_norm" else name for name in node.input]
    with pytest.raises(BundleError, match="share some of their weights"):
        editor.load()


def test_layers_that_differ_in_any_weight_are_not_shared(editor, bundle):
    """Of the same attention and outer product, but of another inner one."""
    second = [node for node in editor.graph.node if node.op_type in LAYER][7:14]
    first, other = (
        [f"{symbolic}.weight", f"{symbolic}.bias", *(editor.name(x, layer) for x in (OUT, OUTER))]
        for layer, symbolic in enumerate(("_symbolic", "_symbolic_1"))
    )
    for ours, theirs in zip(other, first, strict=True):
        for node in second:
            node.input[:] = [theirs if name == ours else name for name in node.input]
    out_norm = "encoder.encoder.layer.{}.output.LayerNorm.weight"
    for node in second:
        node.input[:] = [
            out_norm.format(0) if name == out_norm.format(1) else name for name in node.input
        ]
    found = editor.load().encode("a river")
    expected = Encoder.load(editor.folder, providers="cpu", verify=False).encode("a river")
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_fewer_positions_than_max_length(bundle_copy):
    path = bundle_copy / "mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_length": 129}))
    with pytest.raises(BundleError, match=r"positions for 128 tokens.*max_length.* is 129"):
        Encoder.load(bundle_copy, providers="native", verify=False)


NUMBERS = [float("nan"), float("inf"), -float("inf")]
PLACES = [WORDS, "_symbolic.weight", OUT, INNER, OUTER, "_symbolic_1.bias"]
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
