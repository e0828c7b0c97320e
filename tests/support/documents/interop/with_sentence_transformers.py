"""Encode by sentence-transformers, with the backend whose weights are in the folder.

python with_sentence_transformers.py FOLDER TEXTS.json OUT.json
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

folder, texts, out = map(Path, sys.argv[1:])
if (folder / "model.safetensors").is_file():
    backend, options = "torch", {}
else:
    backend, options = "onnx", {"model_kwargs": {"file_name": "onnx/model.onnx"}}
model = SentenceTransformer(
    str(folder), backend=backend, device="cpu", local_files_only=True, **options
)
out.write_text(json.dumps({backend: model.encode(json.loads(texts.read_text())).tolist()}))
