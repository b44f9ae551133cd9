import json
import os
import tempfile
from dataclasses import dataclass, fields


@dataclass
class Config:
    lr: float = 0.05
    steps: int = 40
    sync: str = "allreduce"
    log_every: int = 10

    def load(self, path):
        with open(path) as f:
            values = json.load(f)
        for field in fields(self):
            if field.name in values:
                setattr(self, field.name, values[field.name])
        return self


def user_file():
    """The user's settings, as the launcher's web form writes them on the head node."""
    path = os.path.join(tempfile.mkdtemp(prefix="conf"), "settings.json")
    with open(path, "w") as f:
        json.dump({"lr": 0.02, "sync": "gather"}, f)
    return path
