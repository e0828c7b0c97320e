"""Serve sentence-transformers by FastAPI, as most people write it; $MODEL is the model's folder.

MODEL=FOLDER uvicorn serve_sentence_transformers:app
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(os.environ["MODEL"], device="cpu")
model.max_seq_length = 512  # as the others


class Request(BaseModel):
    inputs: list[str]


@app.post("/embed")
def embed(request: Request):
    return model.encode(request.inputs, normalize_embeddings=True).tolist()
