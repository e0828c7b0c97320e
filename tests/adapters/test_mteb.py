"""MTEB: two tasks of a few texts, evaluated as `mteb.evaluate` does, offline."""

import numpy as np
import pytest

pytest.importorskip("mteb")

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType

from mirror_rt.adapters.mteb import MirrorEncoder
from rounding import ANY_BATCH, of_correlation


def metadata(name, kind, score):
    return TaskMetadata(
        name=name, type=kind, main_score=score, description="A few texts of this test.",
        dataset={"path": "owner/none", "revision": "none"}, eval_langs=["eng-Latn"],
        reference="https://example.org", category="t2t", date=("2020-01-01", "2020-01-02"),
        domains=["Written"], license="not specified", bibtex_citation="",
    )  # fmt: skip


class TinySTS(AbsTaskSTS):
    metadata = metadata("TinySTS", "STS", "cosine_spearman")
    pairs = (("the river", "a river bank", 5), ("a road", "the sea", 0), ("rain", "the town", 1))

    def load_data(self, **_):
        first, second, scores = zip(*self.pairs, strict=True)
        self.dataset = DatasetDict(
            test=Dataset.from_dict(
                {"sentence1": list(first), "sentence2": list(second), "score": list(scores)}
            )
        )
        self.data_loaded = True


class TinyRetrieval(AbsTaskRetrieval):
    metadata = metadata("TinyRetrieval", "Retrieval", "ndcg_at_10")
    corpus: list[str]
    best: str

    def load_data(self, **_):
        corpus = [{"id": f"d{i}", "title": "", "text": text} for i, text in enumerate(self.corpus)]
        split = {
            "corpus": Dataset.from_list(corpus),
            "queries": Dataset.from_list([{"id": "q", "text": self.query}]),
            "relevant_docs": {"q": {f"d{self.corpus.index(self.best)}": 1}},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


def evaluate(model, task):
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return result.task_results[0].scores["test"][0]


def test_a_retrieval_task(model, documents, query, ranked):
    """The best of the corpus by the prompts for queries and documents is the relevant one."""
    task = TinyRetrieval()
    task.corpus, task.query = [*documents, ""], query
    for rank in (0, 1):
        task.best = ranked[rank]
        scores = evaluate(MirrorEncoder(str(model)), task)
        assert scores["recall_at_1"] == (1 if rank == 0 else 0)
        assert scores["ndcg_at_10"] == pytest.approx([1, 1 / np.log2(3)][rank], abs=1e-4)


def test_an_sts_task(model, encoder):
    """Its type has a prompt in the bundle."""
    one, two = (
        encoder.encode([pair[i] for pair in TinySTS.pairs], prompt_name="STS") for i in (0, 1)
    )
    scores = evaluate(MirrorEncoder(str(model)), TinySTS())
    cosines = (one * two).sum(axis=1)
    expected = np.corrcoef(cosines, [5, 0, 1])[0, 1]
    error = of_correlation(cosines, 2 * ANY_BATCH)
    assert scores["cosine_pearson"] == pytest.approx(expected, abs=error)


@pytest.mark.parametrize(
    ("prompts", "kind", "side", "expected"),
    [
        ({"T-query": "a ", "T": "b "}, "STS", "query", "a "),
        ({"T-query": "a ", "T": "b ", "STS": "c "}, "STS", None, "b "),
        ({"STS-query": "c ", "STS": "d ", "query": "e "}, "STS", "query", "c "),
        ({"STS": "d ", "query": "e "}, "STS", "query", "d "),
        ({"query": "e "}, "STS", "query", "e "),
        ({}, "STS", "query", "the question "),
        ({}, "STS", "document", "the town "),
        ({}, "STS", None, ""),
        (None, "STS", None, "as it is "),
        (None, "Retrieval", "query", "the question "),
    ],
)
def test_the_prompt(prompts, kind, side, expected, model, encoder):
    found = MirrorEncoder(model, prompts=prompts).encode(
        [{"text": ["river"]}, {"text": ["road", "town"]}],
        task_metadata=metadata("T", kind, "x"), hf_split="test", hf_subset="default",
        prompt_type=None if side is None else PromptType(side), batch_size=2,
    )  # fmt: skip
    by_hand = encoder.encode([expected + text for text in ("river", "road", "town")])
    np.testing.assert_allclose(found, by_hand, atol=ANY_BATCH)


def test_blank_texts_get_zeros_and_a_warning(model, encoder, caplog):
    found = MirrorEncoder(model, encode_kwargs={"truncate_dim": 8}).encode(
        [{"text": ["", "river", "  "]}],
        task_metadata=metadata("T", "Retrieval", "x"), hf_split="test", hf_subset="default",
    )  # fmt: skip
    assert not found[[0, 2]].any()
    np.testing.assert_allclose(found[1], encoder.encode("river", truncate_dim=8), atol=ANY_BATCH)
    assert "T: 2 blank texts get zeros" in caplog.text


def test_what_results_are_filed_under(model):
    encoder = MirrorEncoder(str(model), None, device="cpu", encode_kwargs={"truncate_dim": 8})
    assert isinstance(encoder, EncoderProtocol)
    meta = encoder.mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.max_tokens) == ("mirror-rt/bundle", 8, 128)
    assert len(meta.revision) == 40  # of the manifest, for a bundle here
    assert meta.experiment_kwargs == {"providers": "cpu", "truncate_dim": 8}
