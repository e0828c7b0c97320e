"""Hooks of MkDocs: pages for files beside docs/ that the pages link to, and for the commands."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from mirror_rt.cli.commands import installed_commands
from mirror_rt.cli.parsing.parser import Parser

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository"  # the folder of the site for files beside docs/
COMMANDS = "reference/commands.md"
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
FIRST = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "CHANGELOG.md",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the commands, and every file beside docs/ that a page links to."""
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    waiting = [*FIRST, *(link for page in files.documentation_pages() for link in outside(page))]
    while waiting:
        uri = f"{OUTSIDE}/{waiting[0]}"
        source = ROOT / waiting.pop(0)
        if files.get_file_from_path(uri) is None and source.is_file():
            added = File.generated(config, uri, abs_src_path=str(source))
            files.append(added)
            if uri.endswith(".md"):
                waiting += outside(added)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between docs/ and the files beside it to their places in the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        start, target, anchor, end = match.groups()
        uri = uri_of(resolve(page.file.src_uri, target))
        if files.get_file_from_path(uri) is None:
            return match[0]  # MkDocs reports it
        return f"{start}{posixpath.relpath(uri, folder)}{anchor or ''}{end}"

    return LINK.sub(link, markdown)


def resolve(uri: str, target: str) -> str:
    """Return the path in the repository of a link `target` in the page `uri`."""
    inside = uri.removeprefix(f"{OUTSIDE}/")
    path = inside if inside != uri else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def uri_of(path: str) -> str:
    """Return the place in the site of a path in the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def outside(page: File) -> list[str]:
    """Return the paths in the repository, beside docs/, that a page links to."""
    found = (resolve(page.src_uri, match[2]) for match in LINK.finditer(page.content_string))
    return [path for path in found if not path.startswith(("docs/", ".."))]


def commands_page() -> str:
    """Return the reference of the commands: the help of each, as their parsers write it."""
    os.environ["COLUMNS"] = "76"  # as wide as a page is between its two lists
    sections = []
    for command in installed_commands().values():
        parser, text = Parser(prog="mirror-rt"), io.StringIO()
        command.add_to(parser.add_subparsers())
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            parser.parse_args([*command.name.split(), "--help"])
        sections.append(f"## mirror-rt {command.name}\n\n```text\n{text.getvalue()}```\n")
    wrapped = "<style>.md-typeset pre > code { white-space: pre-wrap; }</style>"  # long examples
    return "\n".join(["# Commands", "", wrapped, "", *sections])
