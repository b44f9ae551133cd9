import logging

import torch
import torch.distributed as dist
from torch import nn

from corpus import load_index
from packing import PackedStream

log = logging.getLogger("pretrain")
VOCAB = 211


class TinyLM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.mix(self.embed(tokens))
        return self.head(hidden)


def average_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for grad in grads:
        grad.copy_(flat[offset:offset + grad.numel()].view_as(grad))
        offset += grad.numel()


def train_epoch(model, optimizer, stream, epoch):
    total, seen = 0.0, 0
    for tokens, targets in stream.batches(epoch):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        total += loss.item() * tokens.numel()
        seen += tokens.numel()
    return {"loss": total / max(seen, 1), "tokens": seen}


def report(epoch, stats):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, stats)
    if dist.get_rank() == 0:
        tokens = sum(row["tokens"] for row in rows)
        loss = sum(row["loss"] * row["tokens"] for row in rows) / tokens
        log.info("epoch %d: loss %.3f, %d tokens", epoch, loss, tokens)


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    index = load_index(dist.get_rank())
    stream = PackedStream(index, seq_len=64, batch_size=4, vocab=VOCAB)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(len(index["parts"])):
        stats = train_epoch(model, optimizer, stream, epoch)
        report(epoch, stats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
