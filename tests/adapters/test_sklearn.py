"""scikit-learn: pipelines, clones, searches over parameters, pickle."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from mirror_rt import ConfigError, InvalidTextError
from mirror_rt.adapters.sklearn import MirrorVectorizer
from rounding import ANY_BATCH

TEXTS = ["the river", "a road", "the old town", "rain", "a river bank", "the long road", "towns",
         "rain on the sea"]  # fmt: skip
LABELS = [0, 1, 0, 1, 0, 1, 0, 1]


def test_transform(model, encoder):
    vectorizer = MirrorVectorizer(model)
    expected = encoder.encode(TEXTS)
    for found in (vectorizer.fit_transform(TEXTS), vectorizer.transform(np.array(TEXTS)),
                  MirrorVectorizer(model).transform(iter(TEXTS))):  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)
    names = vectorizer.get_feature_names_out()
    assert (len(names), names[31]) == (32, "mirrorvectorizer31")


def test_a_search_over_parameters_is_pickled(model):
    pipeline = make_pipeline(MirrorVectorizer(str(model)), LogisticRegression(C=100))
    grid = {"mirrorvectorizer__encode_kwargs": [None, {"truncate_dim": 8}, {"prompt": "word "}]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(TEXTS, LABELS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_allclose(
        again.predict_proba(TEXTS), search.predict_proba(TEXTS), atol=ANY_BATCH
    )
    assert len(pickle.dumps(search)) < 40_000  # without the model


def test_clone(model, encoder):
    vectorizer = MirrorVectorizer(model, encode_kwargs={"truncate_dim": 8}).fit(TEXTS)
    copy = clone(vectorizer)
    assert copy.get_params() == vectorizer.get_params()
    assert copy.fit_transform(TEXTS).shape == (8, 8)
    assert copy._lazy.load() is vectorizer._lazy.load()  # one session
    assert clone(MirrorVectorizer(encoder)).fit_transform(TEXTS).shape == (8, 32)
    assert copy.set_params(encode_kwargs=None).fit_transform(TEXTS).shape == (8, 32)


def test_bad_input(model):
    with pytest.raises(InvalidTextError, match="item 1: expected str, got float"):
        MirrorVectorizer(model).fit_transform(["a", float("nan")])
    with pytest.raises(ConfigError, match="expected a list of texts, got one: 'a text'"):
        MirrorVectorizer(model).fit_transform("a text")
    with pytest.raises(ConfigError, match="model_kwargs takes no argument 'device'"):
        MirrorVectorizer(model, model_kwargs={"device": "cpu"}).fit()
    with pytest.raises(ConfigError, match=r"model must be .* a loaded Encoder, got 3"):
        MirrorVectorizer(3).fit()
