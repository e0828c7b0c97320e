"""Addresses that no file system of this installation reaches."""

import sys

import pyarrow
import pyarrow.fs
import pytest

from mirror_rt.errors import DataError, MissingDependencyError
from mirror_rt.io.storage import Folder


def test_an_unknown_address():
    with pytest.raises(DataError, match=r"nowhere://x: neither pyarrow nor fsspec .*nowhere"):
        Folder.at("nowhere://x")


class _WithoutS3:
    @staticmethod
    def from_uri(where):
        raise pyarrow.ArrowNotImplementedError("Got S3 URI but Arrow compiled without S3 support")


@pytest.mark.parametrize("absent", ["s3fs", "fsspec.core"])
def test_an_absent_package_is_named(monkeypatch, absent):
    """pyarrow without S3, as some builds are; then fsspec needs s3fs, and is needed itself."""
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _WithoutS3)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(
        MissingDependencyError, match=rf"s3://texts/2026: .*not installed: .*{absent}"
    ):
        Folder.at("s3://texts/2026")
