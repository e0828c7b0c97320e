"""The OpenAPI document against the server: schemathesis sends what it allows, and what it forbids.

MIRROR_RT_SCHEMA_EXAMPLES says how many examples it makes of each operation (10).
"""

import os
import subprocess
import sys

import pytest

from mirror_rt.server.http.openapi import openapi_document

EXAMPLES = os.environ.get("MIRROR_RT_SCHEMA_EXAMPLES", "10")


@pytest.mark.full
def test_every_answer_is_in_the_document(
    start_server, bundle, tiny_reranker, tiny_sparse, tmp_path
):
    """No 5xx; statuses, types and bodies are documented; what the schema forbids is refused.

    That what it allows is accepted cannot be: it knows nothing of a model's languages and limits.
    """
    reranker, words = tiny_reranker("bert"), tiny_sparse("bert")
    server = start_server(bundle, reranker, words, "--model-alias", f"tiny={bundle}",
                          "--model-alias", f"ranks={reranker}",
                          "--model-alias", f"words={words}")  # fmt: skip
    # A time that is over is told before a fault of the body that is met later.
    refusals = [400, 401, 404, 408, 413, 415, 422, 429, "5xx"]
    (tmp_path / "schemathesis.toml").write_text(
        f"[checks]\nnegative_data_rejection.expected-statuses = {refusals}\n"
    )
    line = [
        sys.executable, "-m", "schemathesis.cli", "--no-color", "run",
        f"http://127.0.0.1:{server.port}/openapi.json", "--phases", "coverage,fuzzing",
        "--max-examples", EXAMPLES, "--generation-deterministic",
        "--continue-on-failure", "--no-shrink",
        "--exclude-checks", "positive_data_acceptance", "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    operations = sum(map(len, openapi_document()["paths"].values()))
    assert f"Tested: {operations}" in done.stdout, done.stdout
    assert server.get("/ready")[0] == 200
    assert server.stop() == 0
    assert not [line for line in server.lines if "Traceback" in line or '"error"' in line]
