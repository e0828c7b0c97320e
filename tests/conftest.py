"""Fixtures: tiny models with the families' real code, real words, real data where it is."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from browser import Browser, find_browser
from hub_server import TOKEN, HubServer
from made_once import MadeOnce
from needs import NEEDS, data_folder, is_here
from paths import ROOT
from tiny_models import TINY, UNFUSED, make_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a hub is a bug
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A shell's background job ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# An example may take as long as it takes, as on a busy machine.
# Examples that failed are kept in the clone, unless it cannot be written.
kept = {} if os.access(ROOT, os.W_OK) else {"database": None}
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], **kept
)
settings.load_profile("unhurried")

# The files that take longest, which begin first where several processes share the tests.
LONGEST = ("test_folders_fuzz.py", "test_platforms.py", "test_examples.py", "test_docs.py",
           "test_docs_tuning.py", "test_export_pack.py", "test_declared_folders.py",
           "test_auto.py", "test_acceptance.py", "test_native_sanitized.py",
           "test_native_engine.py", "test_tune.py", "test_cuda_kernel.py", "test_variants.py",
           "test_export.py", "test_processes.py", "test_options.py",
           "test_families.py")  # fmt: skip


# What markers and fixtures say of what a test needs, besides the marker `needs`.
BY_MARKER = {"browser": "chromium", "gpu": "card", "interop": "interop"}
BY_FIXTURE = {
    "browser": "chromium", "clean": "clean python", "cohere": "cohere", "data": "data",
    "emulation": "compiler", "rendered": "helm", "triton": "tritonclient",
}  # fmt: skip
LACKING = pytest.StashKey[str]()


def needs_of(item: pytest.Item) -> list[str]:
    """Return what a test needs besides Python packages: keys of `NEEDS`."""
    marked = [name for mark in item.iter_markers("needs") for name in mark.args]
    markers = [need for name, need in BY_MARKER.items() if item.get_closest_marker(name)]
    fixtures = getattr(item, "fixturenames", ())
    return [*marked, *markers, *(BY_FIXTURE[name] for name in fixtures if name in BY_FIXTURE)]


@pytest.hookimpl(trylast=True)  # after the selection by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests; of those that need something which is not here, skip one for all."""
    _order(items)
    waiting: dict[str, list[pytest.Item]] = {}
    for item in items:
        if lacking := [name for name in needs_of(item) if not is_here(name)]:
            waiting.setdefault(lacking[0], []).append(item)
    for name, (first, *others) in waiting.items():
        need = NEEDS[name]
        first.stash[LACKING] = f"{1 + len(others)} tests need {need.noun}: {need.command}"
        config.hook.pytest_deselected(items=others)
    left_out = {item for _, *others in waiting.values() for item in others}
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)  # before conditions of the test's own
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test that stands for all which lack the same."""
    if (lacking := item.stash.get(LACKING, None)) is not None:
        pytest.skip(lacking)


def _order(items: list[pytest.Item]) -> None:
    """Put the longest files in front; shuffle files and tests by MIRROR_RT_TEST_ORDER, a seed."""
    seed = os.environ.get("MIRROR_RT_TEST_ORDER")
    if seed is None:
        rank = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
        return
    files = sorted({item.path for item in items})
    shuffled = random.Random(seed)
    shuffled.shuffle(files)
    shuffled.shuffle(items)
    place = {path: number for number, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def words() -> list[str]:
    """The 400 most frequent words of English (wordfreq 3.1.1)."""
    return (ROOT / "tests" / "support" / "words_en.txt").read_text(encoding="utf-8").split()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> MadeOnce:
    """A folder by its name, which the given function makes once for all runs."""
    root = tmp_path_factory.getbasetemp()
    return MadeOnce(root.parent if "PYTEST_XDIST_WORKER" in os.environ else root)


@pytest.fixture(scope="session")
def tiny_model(made_once, words) -> Callable[[str], Path]:
    """The folder of a family's tiny model, made once."""
    return functools.cache(
        lambda family: made_once(f"tiny-{family}", lambda out: make_model(family, out, words))
    )


@pytest.fixture(scope="session")
def tiny_bert(tiny_model) -> Path:
    return tiny_model("bert")


@pytest.fixture(scope="session")
def tiny_roberta(tiny_model) -> Path:
    return tiny_model("roberta")


@pytest.fixture(scope="session")
def tiny_bundle(made_once, tiny_model) -> Callable[[str], Path]:
    """A family's tiny model, exported once with the pooling of its row in `TINY`."""

    def export(family: str, out: Path) -> None:
        from mirror_export import ExportConfig, export_bundle  # which takes seconds

        pooling = (TINY | UNFUSED)[family].pooling
        export_bundle(ExportConfig(str(tiny_model(family)), out, pooling=pooling))

    return functools.cache(
        lambda family: made_once(f"bundles/{family}", functools.partial(export, family))
    )


@pytest.fixture(scope="session")
def all_variants(made_once, tiny_model) -> Callable[[str], Path]:
    """A family's tiny model, exported once in every precision for processors and cards."""

    def export(family: str, out: Path) -> None:
        from mirror_export import ExportConfig, export_bundle

        options = {"precisions": ("fp32", "fp16", "bf16", "int8"), "targets": ("cpu", "cuda")}
        pooling = TINY[family].pooling
        export_bundle(ExportConfig(str(tiny_model(family)), out, pooling=pooling, **options))

    return functools.cache(
        lambda family: made_once(f"variants/{family}", functools.partial(export, family))
    )


@pytest.fixture(scope="session")
def bundle(tiny_bundle) -> Path:
    """An exported tiny BERT (mean pooling)."""
    return tiny_bundle("bert")


@pytest.fixture(scope="session")
def static_bundle(made_once, bundle, words) -> Path:
    """The static encoder of a tiny BERT, with words of its own."""
    from mirror_rt import Encoder
    from mirror_rt.distillation import DistillConfig, distill

    def write(out: Path) -> None:
        listed = out.with_name(f"{out.name}.txt")
        listed.write_text("\n".join([*words[:50], "rivertown", "townriver", "two words"]))
        config = DistillConfig(words=str(listed), dimension=16)
        distill(Encoder.load(bundle), out, config, show_progress_bar=False)

    return made_once("static", write)


@pytest.fixture
def bundle_copy(bundle, tmp_path) -> Path:
    """A bundle to damage."""
    import shutil

    return Path(shutil.copytree(bundle, tmp_path / "bundle-copy"))


@pytest.fixture
def start_server():
    """From the arguments of `mirror-rt serve` to its process, ready; none outlives the test."""
    import contextlib
    import signal

    from server_process import ServerProcess

    with contextlib.ExitStack() as servers:

        def start(*arguments: object) -> ServerProcess:
            server = ServerProcess(*arguments)
            servers.callback(server.stop, signal.SIGKILL)
            server.wait_until_ready()
            return server

        yield start


@pytest.fixture(scope="session")
def words_file(tmp_path_factory, words) -> Path:
    path = tmp_path_factory.mktemp("data") / "words.txt"
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tuned(made_once, tiny_bert, words_file) -> Path:
    """A tiny BERT that was tuned on words of English (mean pooling)."""

    def write(out: Path) -> None:
        from mirror_train import TrainConfig, load_recipe, load_training_data, tune

        recipe = load_recipe("word").replace(batch_size=50, epochs=1)
        config = TrainConfig(recipe=recipe, out=out, model=str(tiny_bert), pooling="mean")
        tune(load_training_data(words_file, language="en"), config)

    return made_once("tuned", write)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The embedded default, fetched beforehand; the tests themselves stay offline."""
    from mirror_rt import BundleError
    from mirror_train.model.model_folder import DEFAULT_MODEL, resolve_model

    try:
        return resolve_model(DEFAULT_MODEL, offline=True)[0]
    except BundleError as error:
        pytest.skip(f"the default model is not cached (bash tests/run.sh fetches it): {error}")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real evaluation data."""
    return data_folder()


@pytest.fixture
def cli(capfd) -> Callable[..., Result]:
    """Run `mirror-rt` in this process."""
    from mirror_rt.cli import main

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `mirror-rt` in a process of its own."""

    def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "mirror_rt.cli", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, check=False, **options)

    return run


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """A model hub of this test's own: where huggingface_hub looks, with an empty cache."""
    from huggingface_hub import constants

    with HubServer() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # before huggingface_hub retries
        yield server


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def command_in_child() -> Callable[[str], str]:
    """Run Python code in a process of its own; its standard output."""

    def run(code: str, **options) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False,
            **options,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    """A headless Chromium."""
    browser = Browser(find_browser(), tmp_path / "profile")
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def tiny_cross_encoder(made_once, words) -> Callable[[str], Path]:
    """The folder of a family's tiny cross-encoder with one label, made once."""
    return functools.cache(
        lambda family: made_once(
            f"cross-{family}", lambda out: make_model(family, out, words, labels=1)
        )
    )


@pytest.fixture(scope="session")
def tiny_sparse(made_once, words) -> Callable[..., Path]:
    """A family's tiny sparse encoder, as sentence-transformers saves it, made once."""

    def make(family: str, pooling: str, activation: str, looks_up: bool, out: Path) -> None:
        import torch
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Router, Transformer
        from sentence_transformers.sparse_encoder.modules import (
            SparseStaticEmbedding,
            SpladePooling,
        )

        masked = make_model(family, out / "masked", words, masked=True)
        text = Transformer(str(masked), transformer_task="fill-mask")
        modules = [text, SpladePooling(pooling, activation_function=activation)]
        if looks_up:
            generator = torch.Generator().manual_seed(0)
            weights = torch.rand(len(text.tokenizer.get_vocab()), generator=generator)
            table = SparseStaticEmbedding(text.tokenizer, weights)
            modules = [Router.for_query_document([table], modules)]
        SparseEncoder(modules=modules).save(str(out))

    return functools.cache(
        lambda family, pooling="max", activation="relu", looks_up=False: made_once(
            f"sparse/{family}-{pooling}-{activation}{'-table' * looks_up}",
            functools.partial(make, family, pooling, activation, looks_up),
        )
    )


@pytest.fixture(scope="session")
def tiny_reranker(made_once, tiny_cross_encoder) -> Callable[[str], Path]:
    """A family's tiny cross-encoder, exported once."""

    def export(family: str, out: Path) -> None:
        from mirror_export import ExportConfig, export_bundle  # which takes seconds

        export_bundle(ExportConfig(str(tiny_cross_encoder(family)), out))

    return functools.cache(
        lambda family: made_once(f"rerankers/{family}", functools.partial(export, family))
    )
