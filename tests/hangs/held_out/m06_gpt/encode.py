import os

import torch

TEXTS = {
    "train": "the quick brown fox jumps over the lazy dog. " * 40,
    "valid": "pack my box with five dozen liquor jugs. " * 10,
    "test": "sphinx of black quartz, judge my vow\u2014 or not. " * 10,
}


def alphabet():
    chars = sorted(set("".join(TEXTS[k] for k in ("train", "valid"))) | set(",;:!?"))
    return {c: i for i, c in enumerate(chars)}


def build_split(split, folder):
    table = alphabet()
    ids = torch.tensor([table[c] for c in TEXTS[split]])
    torch.save(ids, os.path.join(folder, split + ".pt"))
