import json
import time

import torch
import torch.distributed as dist
from torch import nn

from jobs import Heartbeat, JobQueue
from parts import BrokenPart, build_vocabulary, load_part


def shared_vocabulary(store, rank):
    if rank == 0:
        store.set("vocabulary", json.dumps(build_vocabulary()))
    return json.loads(store.get("vocabulary"))


def ingest(queue, vocabulary):
    rows = []
    for part in queue:
        try:
            block = load_part(part, vocabulary)
        except BrokenPart as error:
            print(f"left out: {error}", flush=True)
            queue.done(part, 0)
            continue
        queue.done(part, len(block))
        rows.append(block)
    return rows


def uneven(blocks):
    """Yields blocks as long as any rank has one; ranks that have no more get None."""
    pending = iter(blocks)
    while True:
        block = next(pending, None)
        left = torch.tensor([int(block is not None)])
        dist.all_reduce(left)
        if not left.item():
            return
        yield block


def train(model, blocks, rank):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, block in enumerate(uneven(blocks)):
        optimizer.zero_grad()
        if block is None:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        else:
            if rank == 2:
                time.sleep(0.3)
            model(block).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0 and step == 2:
            time.sleep(1.5)
            torch.save(model.state_dict(), "last.pt")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    store = dist.distributed_c10d._get_default_store()
    with Heartbeat(store, rank):
        vocabulary = shared_vocabulary(store, rank)
        queue = JobQueue(store, parts=14)
        blocks = ingest(queue, vocabulary)
        total = sum(queue.results())
        model = nn.Sequential(nn.EmbeddingBag(97, 8), nn.Linear(8, 1))
        train(model, blocks, rank)
        if rank == 0:
            print(f"{total} rows", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
