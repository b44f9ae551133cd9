import hashlib
import json
import os
from collections import Counter


class VocabCache:
    """The vocabulary of a corpus, in a folder by the hash of the corpus; other ranks read it from the store."""

    def __init__(self, folder, store, rank):
        self.folder = folder
        self.store = store
        self.rank = rank

    def path(self, corpus):
        digest = hashlib.sha256("\n".join(corpus).encode()).hexdigest()[:12]
        return os.path.join(self.folder, digest + ".json")

    def build(self, corpus, limit):
        counts = Counter(word for line in corpus for word in line.split())
        return [w for w, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:limit]]

    def publish(self, key, corpus, limit):
        path = self.path(corpus)
        if os.path.exists(path):
            with open(path) as f:
                return json.load(f)
        words = self.build(corpus, limit)
        with open(path, "w") as f:
            json.dump(words, f)
        self.store.set(key, json.dumps(words))
        return words

    def get(self, key, corpus, limit=64):
        if self.rank == 0:
            return self.publish(key, corpus, limit)
        return json.loads(self.store.get(key))
