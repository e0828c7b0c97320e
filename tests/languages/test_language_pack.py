"""Serving a pack: no torch here."""

import asyncio
import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest

from command_errors import one_line_error
from json_files import change
from mirror_rt import BundleError, ClosedError, ConfigError, Encoder, InvalidTextError, LanguagePack
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.encoding.loaded_bundle import LoadedBundle
from mirror_rt.pipeline.pipeline import Pipeline
from rounding import NORM_ERROR

TAGS = ["en", "fr", "ru", "zh", "ar", "es", "pt", "de", "it", "pl", "fi", "he"]


@pytest.fixture(scope="module")
def languages(bundle, tmp_path_factory):
    """A pack of twelve languages; a prompt of its own makes each give vectors of its own."""
    return make_pack(tmp_path_factory.mktemp("packs") / "pack", bundle, {t: t for t in TAGS})


def make_pack(folder, bundle, tags):
    """A pack of copies of a bundle: name -> language, None for none."""
    for name, tag in tags.items():
        shutil.copytree(bundle, folder / name)
        path = folder / name / "mirror.json"
        prompts = {"own": f"{name} "}
        change(path, language=tag, prompts=prompts, default_prompt_name="own")
    entries = {name: PackedBundle.describe(folder, name, {}) for name in tags}
    PackIndex(entries, default=next(iter(tags))).write(folder)
    return folder


def size_of(pack):
    """What a bundle counts for."""
    with LanguagePack.load(pack) as loaded:
        loaded.encode("a", lang="en")
        return loaded.statistics.bytes


def test_twelve_languages_in_the_memory_of_three(languages):
    """What is loaded is what was used last, and vectors are those of the bundles."""
    size = size_of(languages)
    with LanguagePack.load(languages, memory_limit=3 * size) as pack:
        assert pack.languages == TAGS
        assert pack.statistics.loaded == ()
        for tag in TAGS * 2:
            got = pack.encode(["the river"], lang=tag)
            expected = Encoder.load(languages / tag).encode(["the river"])
            np.testing.assert_array_equal(got, expected)
            assert pack.statistics.loaded[-1] == tag
            assert pack.statistics.bytes <= 3 * size
        stats = pack.statistics
        assert stats.loaded == ("pl", "fi", "he")
        assert (stats.hits, stats.loads, stats.evictions) == (0, 24, 21)
        pack.encode(["the river"], lang="pl")
        assert pack.statistics.hits == 1
        assert pack.statistics.loaded == ("fi", "he", "pl")
    with pytest.raises(ClosedError, match="this LanguagePack is closed"):
        pack.encode("a", lang="fr")


def test_a_language_for_each_text(languages):
    texts = ["the river", "a doctor", "the river", "old town", "rain"]
    tags = ["fr", "ru", "en", None, "fr"]
    pack = LanguagePack.load(languages)
    got = pack.encode(iter(texts), lang=tags)
    each = [pack.encode(text, lang=tag) for text, tag in zip(texts, tags, strict=True)]
    np.testing.assert_allclose(got, np.stack(each), atol=NORM_ERROR)
    assert got.dtype == np.float32
    assert each[0].shape == (32,)
    assert np.abs(got[0] - got[2]).max() > 1e-3
    assert set(pack.statistics.loaded) == {"fr", "ru", "en"}
    info = pack.encode_with_info(texts, lang=tags)
    np.testing.assert_array_equal(info.embeddings, got)
    assert (info.token_counts > 3).all()
    assert pack.encode(texts, lang=tags, truncate_dim=8, precision="int8").dtype == np.int8
    assert pack.encode([], lang="fr").shape == (0, 32)


def test_a_bad_text_has_its_place_and_leaves_its_neighbours_alone(languages):
    texts, tags = ["rain", " ", "town", None, "river"], ["fr", "fr", "ru", "en", "not a tag"]
    pack = LanguagePack.load(languages)
    with pytest.raises(InvalidTextError) as caught:
        pack.encode(texts, lang=tags)
    assert [row for row, _ in caught.value.items] == [1, 3, 4]
    assert "'not a tag' is not a language tag" in str(caught.value)
    got = pack.encode(texts, lang=tags, errors="nan")
    assert np.isnan(got).all(axis=1).tolist() == [False, True, False, True, True]
    np.testing.assert_allclose(got[2], pack.encode("town", lang="ru"), atol=NORM_ERROR)
    with pytest.raises(InvalidTextError, match="item 2: "):
        pack.encode(["a", "a", "a " * 300], lang=["fr", "ru", "ru"], on_too_long="error")


def test_a_pack_has_the_methods_of_an_encoder():
    """What is a property of one bundle, such as its dimension, is asked of `pack.encoder(lang)`."""
    of_a_bundle = {"warmup"} | {n for n, v in vars(Encoder).items() if isinstance(v, property)}
    of_a_bundle |= {n for n, v in vars(BatchEncoder).items() if isinstance(v, property)}
    of_a_bundle |= {n for n, v in vars(LoadedBundle).items() if isinstance(v, property)}
    public = {name for name in dir(Encoder) if not name.startswith("_")}
    assert public - of_a_bundle <= set(dir(LanguagePack))


@pytest.fixture(scope="module")
def with_queries(bundle, tmp_path_factory):
    """A pack of two languages, of which the second has a prompt for queries."""
    folder = make_pack(tmp_path_factory.mktemp("packs") / "pack", bundle, {"en": "en", "fr": "fr"})
    path = folder / "fr" / "mirror.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"prompts": {"own": "fr ", "query": "demande : "}}))
    entries = {name: PackedBundle.describe(folder, name, {}) for name in ("en", "fr")}
    PackIndex(entries, default="en").write(folder)
    return folder


TEXTS, OF_EACH = ["the river", "a doctor", "rain"], ["fr", "en", "fr"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("encode", {"truncate_dim": 8}),
        ("encode_query", {}),
        ("encode_query", {"prompt": "own: "}),
        ("encode_document", {}),
        ("tokenize", {}),
        ("token_pieces", {"special_tokens": False}),
        ("encode_tokens", {}),
    ],
)
def test_each_text_gets_what_its_bundle_gives(with_queries, method, options):
    with LanguagePack.load(with_queries) as pack:
        got = getattr(pack, method)(TEXTS, OF_EACH, **options)
        for text, tag, found in zip(TEXTS, OF_EACH, got, strict=True):
            with pack.encoder(tag) as encoder:
                expected = getattr(encoder, method)([text], **options)[0]
            if method == "token_pieces":
                assert found == expected
            else:
                np.testing.assert_allclose(found, expected, atol=NORM_ERROR)
        with pytest.raises(InvalidTextError, match="item 1: the string is empty"):
            getattr(pack, method)(["a", ""], ["en", "fr"], **options)


@pytest.mark.parametrize("name", ["encode", "encode_query", "encode_document"])
def test_a_pack_in_an_event_loop(with_queries, name):
    with LanguagePack.load(with_queries) as pack:
        encode, aencode = getattr(pack, name), getattr(pack, f"a{name}")
        got = asyncio.run(aencode(iter(TEXTS), OF_EACH))
        np.testing.assert_array_equal(got, encode(TEXTS, OF_EACH))
        one = asyncio.run(aencode("rain", "fr", normalize_embeddings=False))
        np.testing.assert_array_equal(one, encode("rain", "fr", normalize_embeddings=False))
        np.testing.assert_allclose(pack.similarity(got, got).diagonal(), 1, atol=NORM_ERROR)


def test_a_cancelled_task_ends_the_work_of_its_thread(with_queries, monkeypatch):
    stops, encode = [], Pipeline.encode

    def note(self, texts, plan, stop=None):
        stops.append(stop)
        asyncio.run_coroutine_threadsafe(cancel(), loop).result()
        return encode(self, texts, plan, stop=stop)

    async def cancel():
        task.cancel()

    async def main():
        nonlocal loop, task
        loop, task = asyncio.get_running_loop(), asyncio.create_task(pack.aencode(["a"] * 9, "fr"))
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = task = None
    monkeypatch.setattr(Pipeline, "encode", note)
    with LanguagePack.load(with_queries) as pack:
        asyncio.run(main())
    assert [stop.is_set() for stop in stops] == [True]


def test_a_stream_of_texts_and_of_tags(with_queries):
    with LanguagePack.load(with_queries) as pack:
        texts, tags = TEXTS * 3, OF_EACH * 3
        got = list(pack.encode_iter(iter(texts), iter(tags), window=2))
        np.testing.assert_allclose(got, pack.encode(texts, tags), atol=NORM_ERROR)
        assert next(pack.encode_iter(["rain"] * 9, "fr", window=1)).base is None
        with pytest.raises(InvalidTextError, match="item 3: the string is empty"):
            list(pack.encode_iter(["a", "b", "c", ""], "fr", window=2))
        with pytest.raises(InvalidTextError, match="item 3: it is longer than"):
            list(pack.encode_iter(["a", "b", "c", "a " * 300], window=2, on_too_long="error"))
        with pytest.raises(ConfigError, match="expected an iterable of str, got str"):
            pack.encode_iter("a")


def test_what_a_bundle_counts_for(languages):
    files = json.loads((languages / "en/mirror.json").read_text())["files"]
    expected = sum(r["bytes"] for r in files.values()) + 16 * files["tokenizer.json"]["bytes"]
    assert size_of(languages) == expected


def test_a_language_that_the_pack_lacks_is_refused(languages, caplog):
    pack = LanguagePack.load(languages)
    assert [pack.route(tag) for tag in ("pt-BR", "PT_pt", "zh-Hant-TW", "iw", None)] == [
        "pt", "pt", "zh", "he", "en"]  # fmt: skip
    with pytest.raises(ConfigError, match="pack has no 'sw'; it has en, fr, ru"):
        pack.encode("a", lang="sw")
    with pytest.raises(ConfigError, match=r"'french' is not a language tag.*\(did you mean fr\?\)"):
        pack.encode("a", lang="french")
    with pytest.raises(ConfigError, match=r"has no 'fra' \(did you mean fr\?\)"):
        pack.encode("a", lang="fra")
    with pytest.raises(ConfigError, match="lang has 1 tags for 2 texts"):
        pack.encode(["a", "b"], lang=["fr"])
    with pytest.raises(InvalidTextError, match=r"item 1: .* has no 'sw'"):
        pack.encode(["a", "b"], lang=["fr", "sw"])
    got = pack.encode(["a", "b"], lang=["fr", "sw"], errors="nan")
    assert np.isnan(got).all(axis=1).tolist() == [False, True]
    assert not caplog.records


def test_a_fallback_must_be_named(languages, caplog):
    with pytest.raises(ConfigError, match=r"fallback: .* has no 'sw'"):
        LanguagePack.load(languages, fallback="sw")
    pack = LanguagePack.load(languages, fallback="fr-CA")
    with caplog.at_level(logging.WARNING):
        assert [pack.route("sw"), pack.route("sw"), pack.route()] == ["fr", "fr", "en"]
    assert [r.getMessage() for r in caplog.records] == [
        f"{languages} has no bundle for 'sw', its fallback 'fr' is used (said once)"
    ]
    with pytest.raises(ConfigError, match="'klingon!' is not a language tag"):
        pack.encode("a", lang="klingon!")


def test_pinned_languages_are_loaded_and_stay(languages):
    size = size_of(languages)
    pack = LanguagePack.load(languages, memory_limit=2 * size, pinned=["pt-BR"])
    assert pack.statistics.loaded == ("pt",)
    for tag in TAGS:
        pack.encode("a", lang=tag)
    assert pack.statistics.loaded == ("pt", "he")
    with pytest.raises(ConfigError, match=r"pinned: .* has no 'sw'; it has en, fr"):
        LanguagePack.load(languages, pinned=["sw"])


@pytest.mark.parametrize(
    ("limit", "pinned", "message"),
    [
        (0, (), "memory_limit must be a number of bytes above 0, got 0"),
        (float("nan"), (), "above 0, got nan"),
        ("1GB", (), "above 0, got '1GB'"),
        (1000, (), r"memory_limit of 0\.0 MB is too low: en needs"),
        (1.5, ("fr",), "is too low: en beside the pinned fr needs"),
    ],
)
def test_limits_that_cannot_be_kept(languages, limit, pinned, message):
    if limit == 1.5:
        limit *= size_of(languages)
    with pytest.raises(ConfigError, match=message):
        LanguagePack.load(languages, memory_limit=limit, pinned=pinned)


def test_two_bundles_of_one_language(bundle, tmp_path):
    folder = make_pack(tmp_path / "pack", bundle, {"fr-word": "fr", "fr-sentence": "FR"})
    with pytest.raises(BundleError, match="has two bundles of fr: fr-word and fr-sentence; export"):
        LanguagePack.load(folder)


def test_a_fallback_that_the_pack_declares(bundle, tmp_path):
    folder = make_pack(tmp_path / "pack", bundle, {"multilingual": None, "fr": "fr"})
    with pytest.raises(ConfigError, match="has no 'de'; it has fr"):
        LanguagePack.load(folder).encode("rain", lang="de")
    index = PackIndex.read(folder)
    replace(index, fallback="multilingual").write(folder)
    pack = LanguagePack.load(folder)
    assert pack.languages == ["fr"]
    np.testing.assert_array_equal(
        pack.encode("rain", lang="de"), Encoder.load(folder / "multilingual").encode("rain")
    )
    replace(index, fallback="de").write(folder)
    with pytest.raises(BundleError, match="fallback is 'de', expected one of"):
        LanguagePack.load(folder)


def test_one_matrix_has_one_vector_space(bundle, tmp_path):
    folder = make_pack(tmp_path / "pack", bundle, {"en": "en", "fr": "fr", "de": "de"})
    index = PackIndex.read(folder)
    assert len({entry.vector_space for entry in index.bundles.values()}) == 1
    path = folder / "fr/mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"space": "another"}))
    entries = index.bundles | {"fr": PackedBundle.describe(folder, "fr", {})}
    replace(index, bundles=entries).write(folder)
    texts, tags = ["rain", "town", " "], ["en", "fr", "fr"]
    with LanguagePack.load(folder) as pack:
        with pytest.raises(ConfigError, match="the bundles en, fr have vector spaces of their own"):
            pack.encode(texts[:2], lang=tags[:2])
        with pytest.raises(ConfigError, match="mirror-rt align"):
            list(pack.encode_iter(texts[:2], tags[:2], window=1))
        assert pack.encode(texts[:2], lang=["en", "de"]).shape == (2, 32)
        assert np.isnan(pack.encode(texts[1:], lang=["fr", None], errors="nan")[1]).all()
        assert len(pack.encode_tokens(texts[:2], tags[:2])) == 2  # one matrix for each text
    with LanguagePack.load(folder, mixed_spaces=True) as pack:
        assert pack.encode(texts[:2], lang=tags[:2]).shape == (2, 32)


def test_bundles_of_earlier_versions_have_a_space_each(bundle, tmp_path):
    folder = make_pack(tmp_path / "pack", bundle, {"en": "en", "fr": "fr"})
    for name in ("en", "fr"):
        values = json.loads((folder / name / "mirror.json").read_text())
        del values["space"], values["alignment"]
        (folder / name / "mirror.json").write_text(json.dumps(values))
    entries = {name: PackedBundle.describe(folder, name, {}) for name in ("en", "fr")}
    PackIndex(entries, default="en").write(folder)
    values = json.loads((folder / "pack.json").read_text())
    for entry in values["bundles"].values():
        del entry["space"]
    (folder / "pack.json").write_text(json.dumps(values))
    with LanguagePack.load(folder) as pack:
        assert pack.encode("rain", lang="fr").shape == (32,)
        with pytest.raises(ConfigError, match="vector spaces of their own"):
            pack.encode(["rain", "town"], lang=["en", "fr"])


def test_bundles_that_are_not_those_of_the_index(bundle, tmp_path):
    folder = make_pack(tmp_path / "pack", bundle, {"en": "en", "fr": "fr"})
    path = folder / "fr" / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])
    pack = LanguagePack.load(folder)
    with pytest.raises(BundleError, match=r"fr is damaged: tokenizer\.json has"):
        pack.encode("a", lang="fr")
    assert pack.encode("a", lang="en").shape == (32,)  # the others go on
    assert pack.statistics.loaded == ("en",)
    path = folder / "en" / "mirror.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(BundleError, match=r"is not the one that pack\.json names"):
        LanguagePack.load(folder)
    with pytest.raises(BundleError, match=r"is not a pack: it has no pack\.json"):
        LanguagePack.load(bundle)


def test_vectors_of_different_lengths(languages):
    pack = LanguagePack.load(languages)
    pack.encode(["a", "b"], lang=["fr", "ru"])  # both are loaded, and the index is not read again
    pack.index.bundles["fr"] = replace(pack.index.bundles["fr"], dimension=16)
    with pytest.raises(ConfigError, match=r"vectors of different lengths \(fr 16, ru 32\)"):
        pack.encode(["a", "b"], lang=["fr", "ru"])
    assert pack.encode(["a", "b"], lang=["fr", "ru"], truncate_dim=8).shape == (2, 8)


def test_a_lease_gives_the_encoder(languages):
    pack = LanguagePack.load(languages, memory_limit=size_of(languages))
    with pack.encoder("fr") as encoder:
        assert encoder.folder == languages / "fr"
        assert next(encoder.encode_iter(["rain"])).shape == (32,)
    pack.encode("rain", lang="ru")
    with pytest.raises(ClosedError):
        encoder.encode("rain")


def test_detection(languages):
    pack = LanguagePack.load(
        languages, detector=lambda texts: ["ru" if "р" in t else None for t in texts]
    )
    texts = ["река", "river", " "]
    got = pack.encode(texts, lang="auto", errors="nan")
    np.testing.assert_allclose(got[0], pack.encode("река", lang="ru"), atol=NORM_ERROR)
    np.testing.assert_allclose(got[1], pack.encode("river"), atol=NORM_ERROR)
    mixed = pack.encode(["река", "river"], lang=["auto", "fr"])
    np.testing.assert_allclose(mixed[0], got[0], atol=NORM_ERROR)
    np.testing.assert_allclose(mixed[1], pack.encode("river", lang="fr"), atol=NORM_ERROR)


@pytest.mark.full
def test_detection_by_py3langid(languages):
    pack = LanguagePack.load(languages)
    texts = [
        "Tous les êtres humains naissent libres et égaux.",
        "Её дом стоит на берегу реки.",
        "42",
    ]
    got = pack.encode(texts, lang="auto")
    np.testing.assert_allclose(got, pack.encode(texts, lang=["fr", "ru", None]), atol=NORM_ERROR)
    from mirror_rt.languages.detection import language_detector

    with pytest.raises(ConfigError, match="needs two languages that py3langid can tell apart"):
        language_detector(["fr", "xx"])


def test_encode_from_the_command_line(languages, cli, tmp_path):
    (tmp_path / "in.txt").write_text("rain\n")
    options = ("--input", tmp_path / "in.txt", "--output", tmp_path / "v.npy", "--quiet")
    result = cli("encode", "--model", languages, "--lang", "pt-BR", *options)
    assert result.code == 0, result.err
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"),
        Encoder.load(languages / "pt").encode(["rain"]),
        atol=NORM_ERROR,
    )
    assert cli("encode", "--model", languages, *options, "--overwrite").code == 0
    with LanguagePack.load(languages) as pack:  # the default, as without `lang` in Python
        np.testing.assert_allclose(np.load(tmp_path / "v.npy"), pack.encode(["rain"]))
    result = cli("encode", "--model", languages / "pt", "--lang", "pt", *options, "--overwrite")
    one_line_error(result, code=1, contains="is not a pack")
    result = cli("encode", "--model", languages, "--lang", "auto", *options, "--overwrite")
    one_line_error(result, code=2, contains="--lang auto: a file is encoded in one language")
