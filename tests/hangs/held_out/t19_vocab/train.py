"""Each rank counts words of its files and publishes what it found; then all train on the common vocabulary."""
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from vocab import VocabularyExchange

TEXTS = {
    0: ["a red cat sat", "a dog ran", "the cat ran"],
    1: ["the end", "a dog sat", "an owl sat"],
    2: ["the cat sat", "a dog ran"],
    3: ["no owl ran", "a cat and a dog", "the owl"],
}


def count(texts, known):
    words = {}
    for text in texts:
        for word in text.split():
            if word not in known:
                words[word] = words.get(word, 0) + 1
    return words


def encode(texts, vocab):
    for text in texts:
        yield torch.tensor([vocab[w] for w in text.split()])


def train(vocab, texts, epochs=4):
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.EmbeddingBag(len(vocab), 8), nn.Linear(8, len(vocab))))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        for ids in list(encode(texts, vocab))[:2]:
            loss = nn.functional.cross_entropy(net(ids.unsqueeze(0)), ids[:1])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(epoch, loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    exchange = VocabularyExchange(dist.distributed_c10d._get_default_store(), rank, world)
    exchange.publish("base", {"the": 1, "a": 1, "cat": 1, "dog": 1, "sat": 1, "ran": 1})
    base = exchange.collect("base")
    exchange.publish("extra", count(TEXTS[rank], base))
    vocab = exchange.collect("extra", base)
    print(f"rank {rank}: {json.dumps(vocab)}", flush=True)
    train({w: i for i, w in enumerate(vocab)}, TEXTS[rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
