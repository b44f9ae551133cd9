import json
import os
import tempfile
from dataclasses import asdict, dataclass

import torch.distributed as dist


@dataclass
class Config:
    hidden: int = 16
    layers: int = 2
    lr: float = 0.05
    steps: int = 15


def node_cache(rank):
    """Each node has a scratch disk of its own; node 1 ran a job before."""
    folder = tempfile.mkdtemp(prefix=f"node{rank}-")
    if rank == 1:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(asdict(Config()), file)
    return folder


def load_config(folder):
    path = os.path.join(folder, "config.json")
    if os.path.exists(path):
        with open(path) as file:
            return Config(**json.load(file))
    box = [Config() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    with open(path, "w") as file:
        json.dump(asdict(box[0]), file)
    return box[0]
