"""Encode files of any size into files of vectors, resumably: see docs/guides/bulk.md."""

from mirror_rt.bulk.dataset import DatasetReport, encode_dataset, merge_manifest
from mirror_rt.bulk.options import BulkConfig, DatasetConfig
from mirror_rt.bulk.run import BulkReport, encode_file

__all__ = [
    "BulkConfig",
    "BulkReport",
    "DatasetConfig",
    "DatasetReport",
    "encode_dataset",
    "encode_file",
    "merge_manifest",
]
