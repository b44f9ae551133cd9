import json
import os

BASE = {"lr": 5e-3, "epochs": 12, "mode": "min", "patience": 4}
HERE = os.path.dirname(os.path.abspath(__file__))


def load_settings(node):
    """Defaults, updated by the file of this node if it has one."""
    cfg = dict(BASE)
    path = os.path.join(HERE, "nodes", f"node{node}.json")
    if os.path.exists(path):
        with open(path) as f:
            cfg.update(json.load(f))
    return cfg
