"""Cases of what clients, proxies and attackers send, byte by byte, with the required answers.

A case holds the bytes that a connection sends, with pauses and the end of the client's side among
them, the statuses of all answers in their order, and whether the server then closes the connection.
Every case names its section of RFC 9112 (or, if the name starts with 9110, of RFC 9110). Nothing
here depends on the server that is tested.
"""

from __future__ import annotations

from http_corpus import bodies, connections, heads, upgrades
from http_corpus.messages import Case

__all__ = ["Case", "all_cases"]


def all_cases() -> list[Case]:
    """Return all cases; their names are unique."""
    makers = (
        heads.request_lines,
        heads.targets,
        heads.hosts,
        heads.fields,
        heads.control_characters,
        heads.sizes,
        heads.expectations,
        heads.repeated_headers,
        heads.content_codings,
        bodies.lengths,
        bodies.codings,
        bodies.chunk_sizes,
        bodies.chunk_extensions,
        bodies.trailers,
        bodies.json_bodies,
        connections.pipelines,
        connections.persistence,
        connections.half_closed,
        connections.cut_off,
        connections.segments,
        connections.slow,
        connections.early_answers,
        connections.old_version,
        upgrades.upgrades,
        upgrades.split_upgrades,
    )
    cases = [case for maker in makers for case in maker()]
    names = [case.section for case in cases]
    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}
    return cases
