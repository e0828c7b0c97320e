"""Encode in ten lines of onnxruntime and tokenizers.

python with_onnxruntime.py BUNDLE TEXTS.json OUT.json
"""

import json
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts, out = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx")
names = [node.name for node in session.get_inputs()]
vectors = []
for encoding in map(tokenizer.encode, json.load(open(texts))):  # noqa: SIM115, PTH123
    ids = np.array([encoding.ids])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    feeds = {name: feeds[name] for name in names}
    vectors.append(session.run(["sentence_embedding"], feeds)[0][0].tolist())
json.dump({"sentence_embedding": vectors}, open(out, "w"))  # noqa: SIM115, PTH123
