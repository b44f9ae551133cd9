"""Files between ranks, polled; and a key in the store that appears late."""
import json
import os
import tempfile
import time
from datetime import timedelta

import torch.distributed as dist

ROOT = None


def open_folder(rank):
    global ROOT
    box = [tempfile.mkdtemp(prefix="exchange_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    ROOT = box[0]


def drop(name, value):
    path = os.path.join(ROOT, name)
    with open(path + ".tmp", "w") as f:
        json.dump(value, f)
    os.replace(path + ".tmp", path)


def pick_up(name):
    while True:
        try:
            with open(os.path.join(ROOT, name)) as f:
                return json.load(f)
        except FileNotFoundError:
            time.sleep(0.1)


def store():
    return dist.PrefixStore("late", dist.distributed_c10d._get_default_store())


def wait_for(key):
    s = store()
    s.wait([key], timedelta(seconds=300))
    return s.get(key).decode()
