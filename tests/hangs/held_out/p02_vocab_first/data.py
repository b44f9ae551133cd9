"""Toy corpus, tokenizer and vocabulary."""
import random
from collections import Counter

import torch
from torch.utils.data import Dataset

WORDS = ["ship", "sail", "wind", "port", "rope", "deck", "crew", "mast", "tide", "buoy"]


def make_corpus(rank, size=64):
    rng = random.Random(100 + rank)
    texts = []
    for _ in range(size):
        label = rng.randint(0, 1)
        pool = WORDS[:7] if label else WORDS[3:]
        texts.append((" ".join(rng.choice(pool) for _ in range(6)), label))
    return texts


def count_words(accelerator, texts):
    """Counts over the texts of all processes."""
    seen = Counter(word for text, _ in texts for word in text.split())
    counts = torch.tensor([float(seen[word]) for word in WORDS])
    return accelerator.reduce(counts, reduction="sum")


def build_vocab(accelerator, texts, min_count=2):
    counts = count_words(accelerator, texts)
    order = torch.argsort(counts, descending=True).tolist()
    kept = [WORDS[i] for i in order if counts[i] >= min_count]
    return {word: i + 1 for i, word in enumerate(kept)}


class BagDataset(Dataset):
    def __init__(self, texts, vocab):
        self.items = []
        for text, label in texts:
            bag = torch.zeros(len(WORDS) + 1)
            for word in text.split():
                bag[vocab.get(word, 0)] += 1
            self.items.append((bag, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]
