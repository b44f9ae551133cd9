import time

import torch
import torch.distributed as dist

from stage import Mailbox, Source, layer


def first(box, source):
    net = layer(6, 6)
    while source.sizes:
        box.put(net(source.pull()))
    else:
        box.stop()


def middle(box):
    net = layer(6, 6)
    while (x := box.get(6)) is not None:
        if len(x) > 1:
            box.put(net(x))
    else:
        box.stop()


def last(box):
    total, seen = 0.0, 0
    while (x := box.get(6)) is not None:
        total += x.sum().item()
        seen += len(x)
        time.sleep(0.3)
    print(f"{seen} rows, mean {total / seen:.3f}", flush=True)
    return seen


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    box = Mailbox(rank)
    seen = 0
    with torch.no_grad():
        if rank == 0:
            first(box, Source([4, 7, 1, 3, 5, 1, 8] * 3))
        elif rank == 1:
            middle(box)
        else:
            seen = last(box)
    n = torch.tensor([seen])
    dist.broadcast(n, src=2)
    print(rank, "agrees on", n.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
