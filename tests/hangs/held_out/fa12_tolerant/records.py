import json

import torch

LABELS = {"cat": 0, "dog": 1, "bird": 2}


def make_lines(rank, count=80):
    gen = torch.Generator().manual_seed(rank)
    names = sorted(LABELS)
    lines = []
    for i in range(count):
        kind = names[int(torch.randint(0, 3, (), generator=gen))]
        if rank == 1 and i == 37:
            kind = "Bird"
        values = torch.randn(5, generator=gen).round(decimals=3).tolist()
        lines.append(json.dumps({"label": kind, "x": values}))
    return lines


def parse(lines):
    rows = [json.loads(line) for line in lines]
    x = torch.tensor([row["x"] for row in rows])
    y = torch.tensor([LABELS[row["label"]] for row in rows])
    return x, y
