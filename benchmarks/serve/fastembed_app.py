"""Serve fastembed by FastAPI, as most people write it; $MODEL is the folder of the model.

MODEL=FOLDER uvicorn serve_fastembed:app
"""

import os

from fastapi import FastAPI
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from pydantic import BaseModel

# Its own all-MiniLM-L6-v2 comes from a hub; a local folder has to be added as a custom model.
TextEmbedding.add_custom_model(
    model="local/model",
    pooling=PoolingType.MEAN,
    normalization=True,
    sources=ModelSource(hf="local/model"),
    dim=384,
    model_file="onnx/model.onnx",
)
app = FastAPI()
model = TextEmbedding("local/model", specific_model_path=os.environ["MODEL"])


class Request(BaseModel):
    inputs: list[str]


@app.post("/embed")
def embed(request: Request):
    return [vector.tolist() for vector in model.embed(request.inputs)]
