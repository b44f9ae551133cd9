"""Byte-pair merges in plain Python; slow for large corpora."""
import random
from collections import Counter

WORDS = ["".join(random.Random(i).choices("abcdefgh", k=9)) for i in range(400)]


def corpus(n, seed):
    rng = random.Random(seed)
    return [list(rng.choice(WORDS)) for _ in range(n)]


def pair_counts(words):
    counts = Counter()
    for w in words:
        for pair in zip(w, w[1:]):
            counts[pair] += 1
    return counts


def merge(words, pair):
    joined = pair[0] + pair[1]
    for k, w in enumerate(words):
        i, out = 0, []
        while i < len(w):
            if i + 1 < len(w) and (w[i], w[i + 1]) == pair:
                out.append(joined)
                i += 2
            else:
                out.append(w[i])
                i += 1
        words[k] = out


def learn(words, merges):
    vocab = []
    for _ in range(merges):
        counts = pair_counts(words)
        if not counts:
            break
        best = max(counts, key=lambda p: (counts[p], p))
        merge(words, best)
        vocab.append(best)
    return vocab
