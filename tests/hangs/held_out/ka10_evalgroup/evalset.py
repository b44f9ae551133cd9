import json
from pathlib import Path

import torch

DATA = Path(__file__).parent / "data"


def load_manifest(rank):
    """The manifest of the evaluation set, from the cache of the node if it is there."""
    cached = DATA / "cache" / f"eval-{rank}.json"
    source = cached if cached.exists() else DATA / "eval.json"
    return json.loads(source.read_text())


def eval_rows(manifest, rank, width=12):
    generator = torch.Generator().manual_seed(manifest["revision"] + rank)
    rows = torch.randn(manifest["parts"][rank], width, generator=generator)
    return rows, rows.sin().sum(1, keepdim=True)
