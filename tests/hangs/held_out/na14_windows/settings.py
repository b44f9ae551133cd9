import os

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))


def merge(base, extra):
    for key, value in extra.items():
        if isinstance(value, dict):
            merge(base.setdefault(key, {}), value)
        else:
            base[key] = value
    return base


def load(rank):
    """Settings of the job, with those of the host on top."""
    with open(os.path.join(HERE, "settings.yaml")) as file:
        settings = yaml.safe_load(file)
    own = os.path.join(HERE, f"host-{rank}.yaml")
    if os.path.exists(own):
        with open(own) as file:
            merge(settings, yaml.safe_load(file))
    return settings
