"""Find the thesauri that a system has, and their licences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mirror_rt.errors import ConfigError
from mirror_rt.languages.tags import lookup_chain

# Where Debian's packages (mythes-fr, wordnet-base) and LibreOffice's extensions put thesauri.
_FOLDERS = (  # below /
    "usr/share/mythes",
    "usr/share/myspell/dicts",
    "usr/lib/libreoffice/share/extensions/dict-*",
    "usr/lib64/libreoffice/share/extensions/dict-*",
    "opt/libreoffice*/share/extensions/dict-*",
    "Applications/LibreOffice.app/Contents/Resources/extensions/dict-*",
)
_WORDNET = ("/usr/share/wordnet", "/usr/local/WordNet-3.0/dict")


def find_thesaurus(language: str) -> Path:
    """Return the installed thesaurus of a language: a MyThes file, or for English WordNet's folder.

    $MIRROR_RT_THESAURI, a folder of MyThes files, is looked through before the system's folders.
    `pt-BR` finds th_pt_BR_v2.dat, else another of `pt`; `pt` finds th_pt_PT_v2.dat first, and `no`
    finds th_nb_NO_v2.dat.
    """
    if (found := _installed(language)) is not None:
        return found
    # Some packages have the name of a region.
    package = {"en": "en-us", "pt": "pt-br"}.get(language.lower(), language.lower())
    raise ConfigError(
        f"no thesaurus of {language!r} is installed: install Debian's mythes-{package} or "
        "LibreOffice's dictionary, put a MyThes file into the folder $MIRROR_RT_THESAURI, or pass "
        "a file"
    )


def has_thesaurus(language: str) -> bool:
    """Return whether a thesaurus of a language is installed."""
    return _installed(language) is not None


def own_folders(variable: str) -> list[Path]:
    """Return the folder that an environment variable names, if it is set; refuse one not there."""
    if not (own := os.environ.get(variable)):
        return []
    if not Path(own).is_dir():
        raise ConfigError(f"${variable} is {own!r}, which is no folder: correct it, or unset it")
    return [Path(own)]


def _installed(language: str) -> Path | None:
    folders = own_folders("MIRROR_RT_THESAURI")
    folders += [folder for pattern in _FOLDERS for folder in sorted(Path("/").glob(pattern))]
    files = [path for folder in folders for path in sorted(folder.glob("th*.dat"))]
    for name in _names(language):
        for path in files:
            if re.fullmatch(name, path.stem):
                return path
    english = lookup_chain(language)[-1] == "en"
    wordnets = (folder for folder in map(Path, _WORDNET) if (folder / "data.noun").is_file())
    return next(wordnets, None) if english else None


def _names(language: str) -> Iterator[str]:
    """Yield patterns of the names of a language's files, the best first."""
    chain = lookup_chain(language)
    for tag in [*chain, *(["nb"] if chain[-1] == "no" else [])]:
        name = tag.replace("-", "_")
        if name == tag:  # without a region: the one of the same name first, as in fr_FR
            yield rf"th_{name}_{name.upper()}(_.*)?"
        yield rf"th(es)?_{name}(_.*)?"


def thesaurus_license(path: Path, language: str | None) -> str | None:
    """Return the licence that a thesaurus or its Debian package declares; None for an unknown one.

    WordNet's files begin with their licence. Debian's copyright files are read where they are in
    the machine-readable format and name the thesauri of the language apart from other files.
    """
    if path.is_dir():
        head = next(path.glob("data.*")).read_bytes()[:4000].decode("utf-8", "replace")
        match = re.search(r"WordNet [\d.]+ Copyright", head)
        return None if match is None else match[0].replace("Copyright", "license")
    documents = path.resolve().parent.parent / "doc"
    short = (language or "").partition("-")[0]
    if not short:
        return None
    found = {
        license_
        for copyright_ in sorted(documents.glob(f"mythes-{short}*/copyright"))
        for license_ in _declared(copyright_.read_text(encoding="utf-8", errors="replace"), short)
    }
    return found.pop() if len(found) == 1 else None


def _declared(text: str, language: str) -> Iterator[str]:
    """Yield the licence of each paragraph whose files are thesauri of the language."""
    for paragraph in text.split("\n\n"):
        match = re.search(r"^License: *(\S.*)$", paragraph, re.MULTILINE)
        files = re.search(r"^Files:((?:.*\n)(?:[ \t].*\n)*)", paragraph + "\n", re.MULTILINE)
        if match and files and re.search(rf"\b{language}(_[A-Z]+)?/(\S*/)?th", files[1]):
            yield match[1]
