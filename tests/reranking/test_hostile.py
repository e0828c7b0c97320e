"""Cross-encoders of strangers: any description loads and scores, or is a BundleError at load."""

import contextlib
import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror_rt import BundleError, Reranker
from mirror_rt.cli import main
from strange_json import anything, changed
from work_limits import little_work

fuzz = settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "100")), deadline=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip
PAIRS = [("the river", "runs"), ("a", "the old town " * 100), ("the old town " * 100, "a")]


@pytest.fixture(scope="module")
def own(tiny_reranker):
    return tiny_reranker("bert")


@pytest.fixture(scope="module")
def stranger(own, tmp_path_factory):
    """A copy of a bundle whose documents tests write anew."""
    return shutil.copytree(own, tmp_path_factory.mktemp("stranger") / "bundle")


def check_scores(folder, verify):
    load = Reranker.load
    with little_work(), contextlib.suppress(BundleError), load(folder, verify=verify) as reranker:
        labels = reranker.num_labels
        scores = reranker.predict(PAIRS, errors="nan")
        assert scores.shape == ((3,) if labels == 1 else (3, labels))


@fuzz
@given(data=st.data(), verify=st.booleans())
def test_any_manifest_of_a_cross_encoder(stranger, own, data, verify):
    shutil.copy(own / "tokenizer.json", stranger)
    document = json.loads((own / "mirror.json").read_text())
    scores = changed(document["scores"]).map(lambda scores: document | {"scores": scores})
    (stranger / "mirror.json").write_text(json.dumps(data.draw(scores | changed(document))))
    with little_work():
        assert main(["info", str(stranger)]) in (0, 1)
    check_scores(stranger, verify)


@fuzz
@given(document=anything | anything.map(lambda side: {"truncation_side": side}))
def test_any_configuration_of_a_tokenizer(stranger, own, document):
    for name in ("mirror.json", "tokenizer.json"):
        shutil.copy(own / name, stranger)
    path = stranger / "tokenizer_config.json"
    path.write_text(json.dumps(document))
    check_scores(stranger, verify=False)
    shutil.copy(own / path.name, stranger)


@fuzz
@given(data=st.data())
def test_any_post_processor_of_pairs(stranger, own, data):
    shutil.copy(own / "mirror.json", stranger)
    document = json.loads((own / "tokenizer.json").read_text())
    parts = changed(document["post_processor"]) | changed(document["post_processor"]["pair"]).map(
        lambda pair: document["post_processor"] | {"pair": pair}
    )
    document["post_processor"] = data.draw(parts | anything)
    (stranger / "tokenizer.json").write_text(json.dumps(document))
    check_scores(stranger, verify=False)
