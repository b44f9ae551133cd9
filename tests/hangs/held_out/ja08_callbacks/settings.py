import importlib
import json
import os


def merge(base, extra):
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value
    return base


def load(folder, local_rank):
    """The settings of all devices, with those of a single device over them if there are any."""
    with open(os.path.join(folder, "base.json")) as file:
        settings = json.load(file)
    path = os.path.join(folder, f"local{local_rank}.json")
    if os.path.exists(path):
        with open(path) as file:
            merge(settings, json.load(file))
    return settings


def build_callbacks(table):
    found = []
    for target, options in sorted(table.items(), key=lambda item: item[1]["order"]):
        module, name = target.split(":")
        arguments = {key: value for key, value in options.items() if key != "order"}
        found.append(getattr(importlib.import_module(module), name)(**arguments))
    return found
