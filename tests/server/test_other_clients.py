"""The clients of other servers as they are, from pip and npm, each set in its environment."""

import os
import re
import subprocess

import pytest

from interop.environments import CLIENTS
from server_process import ServerProcess

# docs/reference/http.md has their reasons.
NAMED = {
    "cohere v2 embed, int8": "refused by name",
    "cohere v2 embed, clustering": "refused by name",
    "infinity_client models": "fails",
    "langchain VoyageAIEmbeddings": "fails",
    "litellm huggingface/": "fails",
    "litellm infinity/ rerank": "fails",
    "voyageai embed, int8": "fails",
    "voyageai contextualized_embed": "fails",
}


@pytest.fixture(scope="module")
def url(bundle, tiny_reranker):
    ranks = tiny_reranker("bert")
    names = [f"vectors={bundle}", f"ranks={ranks}", "*"]
    aliases = [word for name in names for word in ("--model-alias", name)]
    server = ServerProcess(bundle, ranks, *aliases, "--max-wait", 60)
    server.wait_until_ready()
    yield f"http://127.0.0.1:{server.port}"
    assert server.stop() == 0
    assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.full
@pytest.mark.interop
@pytest.mark.parametrize("name", CLIENTS)
def test_every_call_works_or_is_named(name, url):
    tool = CLIENTS[name]
    tool.require()
    program = "node" if name == "npm" else tool.python
    # Offline, Hugging Face's client would not ask this server either; so the hub is nowhere.
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [program, tool.script, url], cwd=tool.folder, env=environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    outcomes = re.findall(
        r"^(.+?): (works|fails|refused by name|not installed)\b", done.stdout, re.MULTILINE
    )
    found = {call: what for call, what in outcomes if what != "not installed"}
    assert found
    assert found == {call: NAMED.get(call, "works") for call in found}, done.stdout
