"""Compute token vectors by optimum, and pool them here.

python with_optimum.py BUNDLE TEXTS.json OUT.json
"""

import json
import sys
from pathlib import Path

import torch
from optimum.onnxruntime import ORTModelForFeatureExtraction
from transformers import AutoTokenizer

folder, texts, out = map(Path, sys.argv[1:])
model = ORTModelForFeatureExtraction.from_pretrained(
    folder, subfolder="onnx", file_name="model.onnx", local_files_only=True
)
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
batch = tokenizer(json.loads(texts.read_text()), padding=True, truncation=True, return_tensors="pt")
hidden = model(**batch).last_hidden_state
if json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"]:
    pooled = hidden[:, 0]
else:
    weights = batch["attention_mask"].unsqueeze(-1)
    pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
vectors = torch.nn.functional.normalize(pooled, dim=1).tolist()
out.write_text(json.dumps({"last_hidden_state": vectors}))
