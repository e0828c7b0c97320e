"""Word vectors as an encoder: the published formats, averages, and rows of evaluations."""

import json

import numpy as np
import pytest

from mirror_rt import DataError
from mirror_rt.evaluation.static_vectors import StaticVectors
from rounding import of_norms, of_sums

TABLE = {"the": [1, 0, 0], "River": [0, 2, 0], "bank": [0, 0, 4], "New_York": [3, 3, 3],
         ".": [1, 1, 1]}  # fmt: skip


def lines(table):
    return "".join(f"{word} {' '.join(map(str, row))} \n" for word, row in table.items())


def binary(table, newline=b"\n"):
    rows = [word.encode() + b" " + np.array(row, "<f4").tobytes() for word, row in table.items()]
    return f"{len(table)} 3\n".encode() + newline.join(rows) + newline


FORMATS = {
    "wiki.vec": f"{len(TABLE)} 3\n{lines(TABLE)}".encode(),
    "glove.txt": lines(TABLE).encode(),
    "word2vec.bin": binary(TABLE),
    "googlenews.bin": binary(TABLE, b""),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FORMATS[name])
    found = StaticVectors.read(path).encode([*TABLE], normalize_embeddings=False)
    np.testing.assert_array_equal(found, list(TABLE.values()))


def test_texts_are_averaged(tmp_path, caplog):
    path = tmp_path / "v.txt"
    path.write_bytes(FORMATS["glove.txt"] + b"at name@domain.com 5 6 7\nbank 9 9 9\n")
    model = StaticVectors.read(path)
    texts = [
        "the River bank",
        "The unknown BANK",
        "New York",
        "the bank.",
        "nothing",
        "at name@domain.com",
    ]
    found = model.encode(texts, normalize_embeddings=False)
    expected = [np.mean([TABLE["the"], TABLE["River"], TABLE["bank"]], axis=0),
                np.mean([TABLE["the"], TABLE["bank"]], axis=0), TABLE["New_York"],
                np.mean([TABLE["the"], TABLE["bank"], TABLE["."]], axis=0), [0, 0, 0],
                [5, 6, 7]]  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=of_sums(4))
    assert "1 of 6 texts have no known word" in caplog.text
    norms = np.linalg.norm(model.encode(texts), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 1, 1, 0, 1], atol=of_norms(3))
    assert model.mask_token is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.vec", b"2 3\n", "has 0 words, its first line says 2"),
        ("a.vec", b"2 3\na 1 2 3\nb 1 2\n", "line 3: expected a word and 3 numbers"),
        ("a.vec", b"2 0\na\nb\n", "expected the numbers of words and of dimensions"),
        ("a.vec", b"x y\na 1 2\n", "expected the numbers of words and of dimensions"),
        ("a.vec", b"0 2\na 1 2\n", "has no word vectors"),
        ("a.txt", b"a 1 x 3\n", "line 1: expected a word and 3 numbers"),
        ("a.txt", b"a 1 nan 3\n", "line 1: expected a word and 3 numbers"),
        ("a.txt", b"word\n", "line 1: expected a word and its numbers"),
        ("a.bin", (793712314).to_bytes(4, "little") + b"more", "is a model of fastText: take"),
        ("a.bin", b"text\n", "is not word2vec's binary format"),
        ("a.bin", binary(TABLE)[:40], "ends before its 5 words"),
        ("a.bin", binary({"a": [1, np.nan, 0]}), "the vector of 'a' is not finite"),
        ("a.bin", binary({"a": [1, np.inf, 0]}), "the vector of 'a' is not finite"),
        ("a.bin", b"1 0\na ", "vectors of 0 numbers"),
        ("a.bin", b"", "no such file, or an empty one"),
    ],
)
def test_what_is_no_file_of_vectors(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        StaticVectors.read(tmp_path / name)


@pytest.mark.full
def test_beside_models(tmp_path, cli, tiny_bert):
    """In an evaluation, and as a row of a study."""
    vectors, data = tmp_path / "glove.txt", tmp_path / "data"
    vectors.write_text(lines(TABLE))
    (data / "multisimlex").mkdir(parents=True)
    pairs = "the\tRiver\t1\nbank\tthe\t2\n.\tbank\t3\nday\ttime\t4\n"
    (data / "multisimlex" / "en.tsv").write_text(f"word1\tword2\tscore\n{pairs}")
    models = [f"glove={vectors}", f"bert={tiny_bert}"]
    done = cli("evaluate", *models, "--suite", "words", "--data", data, "--allow-missing",
               "--out", tmp_path / "report", "--samples", 0, "--no-plots")  # fmt: skip
    assert done.code == 0, done.err
    results = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    assert {one["model"] for one in results} == {"glove", "bert"}
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"word {i}" for i in range(200)))
    line = ["study", "random-strings", "--strings", words, "--data", data, "--model", tiny_bert,
            "--seeds", 1, "--static"]  # fmt: skip
    done = cli(*line, f"fastText={vectors}", "--out", tmp_path / "study")
    assert done.code == 0, done.err
    rows = json.loads((tmp_path / "study" / "random-strings.json").read_text())["rows"]
    assert [row["label"] for row in rows][:2] == ["fastText", "untuned"]
    (glove,) = [one["value"] for one in results if one["model"] == "glove"]
    assert rows[0]["figures"][0]["value"] == glove
    assert "expected LABEL=FILE" in cli(*line, "x=none.vec", "--out", tmp_path / "other").err


@pytest.mark.parametrize("name", ["wiki.vec", "WIKI.VEC", "glove.txt", "word2vec.bin"])
def test_every_evaluation_takes_word_vectors(name, tmp_path, cli):
    path = tmp_path / name
    path.write_bytes(FORMATS[name.lower() if name.isupper() else name])
    (tmp_path / "pairs.tsv").write_text(
        "text1\ttext2\tscore\nthe\tRiver\t1\nbank\tbank\t5\nthe\tNew_York\t3\n"
    )
    (tmp_path / "texts.txt").write_text("the River\nbank\nNew_York\n")
    done = cli("evaluate", "similarity", path, "--pairs", tmp_path / "pairs.tsv", "--json")
    assert (done.code, json.loads(done.out)["spearman"]) == (0, pytest.approx(1.0)), done.err
    done = cli("evaluate", "geometry", path, "--texts", tmp_path / "texts.txt", "--json")
    assert done.code == 0, done.err


def test_the_mean_of_a_long_text_is_exact_to_the_last_place(tmp_path, rng):
    table = {f"w{i}": row for i, row in enumerate(rng.random((50, 3), np.float32))}
    path = tmp_path / "v.txt"
    path.write_text(
        "".join(f"{w} {' '.join(map(repr, row.tolist()))}\n" for w, row in table.items())
    )
    words = rng.choice([*table], 100_000)
    found = StaticVectors.read(path).encode([" ".join(words)], normalize_embeddings=False)
    expected = np.mean([table[word] for word in words], axis=0, dtype=np.float64)
    np.testing.assert_array_max_ulp(found[0], expected.astype(np.float32), 1)
