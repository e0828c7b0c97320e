"""Encode by fastembed with a custom model in a local folder.

python with_fastembed.py BUNDLE TEXTS.json OUT.json
"""

import json
import sys
from pathlib import Path

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

folder, texts, out = map(Path, sys.argv[1:])
settings = json.loads((folder / "mirror.json").read_text())
TextEmbedding.add_custom_model(
    model="own/bundle",
    pooling=PoolingType.DISABLED,  # pooling is in the graph
    normalization=False,
    output_name="sentence_embedding",
    sources=ModelSource(hf="own/bundle"),  # required, but not used: the folder is given below
    dim=settings["dimension"],
    model_file="onnx/model.onnx",
)
model = TextEmbedding("own/bundle", specific_model_path=str(folder))
vectors = [vector.tolist() for vector in model.embed(json.loads(texts.read_text()))]
out.write_text(json.dumps({"sentence_embedding": vectors}))
