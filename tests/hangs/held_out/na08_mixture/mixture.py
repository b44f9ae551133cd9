import itertools
import random

SIZES = {"web": 90, "code": 45, "dialog": 14}


def documents(name, rank, world):
    return [(name, n) for n in range(SIZES[name])][rank::world]


class Mixture:
    """Draws `picks` documents from several corpora by weight, equally on all ranks."""

    def __init__(self, weights, picks, rank, world, seed):
        self.names = list(weights)
        self.weights = list(weights.values())
        self.picks = picks
        self.rng = random.Random(seed)
        self.sources = {}
        for name in self.names:
            docs = documents(name, rank, world)
            self.sources[name] = iter(docs) if name == "dialog" else itertools.cycle(docs)
        self.served = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.served == self.picks:
            raise StopIteration
        self.served += 1
        name = self.rng.choices(self.names, self.weights)[0]
        return next(self.sources[name])
