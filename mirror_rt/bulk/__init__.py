"""Encode files of any size into files of vectors, resumably: see docs/guides/bulk.md."""

from mirror_rt.bulk.run import BulkConfig, BulkReport, encode_file

__all__ = ["BulkConfig", "BulkReport", "encode_file"]
