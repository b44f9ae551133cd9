from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sink import JsonSink, NullSink

HERE = Path(__file__).parent
WARMUP_EPOCHS = 2


def make_sink():
    if dist.get_rank() == 0:
        return JsonSink(HERE / "out" / "metrics.jsonl")
    return NullSink()


def epoch_batches(epoch, count=12):
    generator = torch.Generator().manual_seed(epoch * 100 + dist.get_rank())
    for _ in range(count):
        x = torch.randn(32, 10, generator=generator)
        yield x, (x.sum(1) > 0).long()


def train_epoch(net, optimizer, sink, epoch):
    for number, (x, y) in enumerate(epoch_batches(epoch)):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        record = {"epoch": epoch, "batch": number, "loss": loss.item()}
        if epoch >= WARMUP_EPOCHS:
            record["norm"] = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        sink.write(record)


def accuracy(net, epoch):
    right = torch.zeros(2)
    with torch.no_grad():
        for x, y in epoch_batches(10_000 + epoch, count=3):
            right += torch.tensor([(net.module(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    sink = make_sink()
    for epoch in range(6):
        train_epoch(net, optimizer, sink, epoch)
        sink.flush()
        score = accuracy(net, epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
