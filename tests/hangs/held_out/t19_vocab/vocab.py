import json


class VocabularyExchange:
    """Words by way of the job's store: one key for each rank and round."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world

    def key(self, name, rank):
        return f"vocab/{name}/{rank}"

    def publish(self, name, words):
        if not words:
            return
        self.store.set(self.key(name, self.rank), json.dumps(words))

    def collect(self, name, known=()):
        merged = dict(known)
        for r in range(self.world):
            if r == self.rank:
                continue
            words = json.loads(self.store.get(self.key(name, r)))
            for word, n in words.items():
                merged[word] = merged.get(word, 0) + n
        return dict(sorted(merged.items()))
