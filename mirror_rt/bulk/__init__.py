"""Files of texts to files of vectors: any size, several formats, resumable. See docs/bulk.md."""

from mirror_rt.bulk.run import BulkConfig, BulkReport, encode_file

__all__ = ["BulkConfig", "BulkReport", "encode_file"]
