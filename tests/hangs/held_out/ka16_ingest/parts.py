import time

import torch

BROKEN = {3}


class BrokenPart(Exception):
    pass


def build_vocabulary(seconds=3.5):
    end = time.monotonic() + seconds
    counts = torch.zeros(97, dtype=torch.long)
    turn = 0
    while time.monotonic() < end:
        generator = torch.Generator().manual_seed(turn % 50)
        ids = torch.randint(0, 97, (20_000,), generator=generator)
        counts += torch.bincount(ids, minlength=97)
        turn += 1
    return counts.argsort(descending=True).tolist()


def load_part(part, vocabulary):
    time.sleep(0.15 * (1 + part % 3))
    if part in BROKEN:
        raise BrokenPart(f"part {part} has a wrong checksum")
    generator = torch.Generator().manual_seed(part)
    index = torch.tensor(vocabulary)
    return index[torch.randint(0, 97, (60 + 10 * (part % 4), 8), generator=generator)]
