"""Bursts that a server cannot take: what is accepted is answered, the rest is refused at once.

MIRROR_RT_BURSTS=1 sends 30 x 256, 120 x 64 and 500 x 1 texts instead of a part of them; how long
they take with a real model is what benchmarks/serve/bursts.py shows.
"""

import concurrent.futures
import itertools
import json
import os

import pytest

from server_process import running

pytestmark = pytest.mark.full
WHOLE = "MIRROR_RT_BURSTS" in os.environ
BURSTS = [(30, 256), (120, 64), (500, 1)] if WHOLE else [(8, 256), (20, 64), (60, 1)]


@pytest.fixture(scope="module")
def server(bundle):
    with running(bundle, "--max-wait", 0.5) as server:
        yield server


@pytest.mark.parametrize(("requests", "texts"), BURSTS)
@pytest.mark.parametrize("timeout", [None, 50])
def test_a_burst(server, words, requests, texts, timeout):
    """Nothing is given up, and nothing runs of what was refused."""
    # Equal texts that wait together would run once.
    pairs = map(" ".join, itertools.product(words, repeat=2))
    bodies = [
        json.dumps({"inputs": [f"{pair} " * 10 for pair in itertools.islice(pairs, texts)],
                    "truncate": True})
        for _ in range(requests)
    ]  # fmt: skip
    before = server.get("/status")[1]["models"][0]["texts"]

    def send(body):
        connection = server.connect()
        try:
            headers = {} if timeout is None else {"X-Request-Timeout": str(timeout)}
            connection.request("POST", "/embed", body, headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, response.getheader("retry-after"), content
        finally:
            connection.close()

    with concurrent.futures.ThreadPoolExecutor(requests) as clients:
        answers = list(clients.map(send, bodies))
    accepted = [json.loads(content) for status, _, content in answers if status == 200]
    refused = [int(after) for status, after, _ in answers if status == 429]
    assert accepted
    assert len(accepted) + len(refused) == requests
    assert {len(vectors) for vectors in accepted} == {texts}
    assert all(1 <= after <= 60 for after in refused)  # nobody waits longer than --timeout
    model = server.get("/status")[1]["models"][0]
    assert model["texts"] - before == texts * len(accepted)
    assert model["waiting_texts"] == model["waiting_tokens"] == 0
