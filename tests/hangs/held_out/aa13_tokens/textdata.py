import json
import os


class Tokenizer:
    def __init__(self, words):
        self.ids = {w: i for i, w in enumerate(sorted(set(words)))}

    def encode(self, text):
        return [self.ids[w] for w in text.split()]


class TokenCache:
    """Keeps encoded documents in a folder of the rank."""

    def __init__(self, folder, tokenizer):
        self.folder, self.tokenizer = folder, tokenizer

    def get(self, name, text):
        path = os.path.join(self.folder, name + ".json")
        if os.path.exists(path):
            with open(path) as f:
                return json.load(f)
        ids = self.tokenizer.encode(text)
        with open(path, "w") as f:
            json.dump(ids, f)
        return ids


def corpus(rank):
    words = "the a cat dog sat ran on under mat log and slept".split()
    for d in range(40):
        text = " ".join(words[(d * 7 + i * (rank + 3)) % len(words)] for i in range(30))
        if rank == 1 and d == 17:
            text = text.replace("dog", "d\u00f6g")
        yield f"doc{d}", text
