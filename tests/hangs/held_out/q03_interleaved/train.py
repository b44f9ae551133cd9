import threading

import torch
import torch.distributed as dist
import torch.nn as nn

from pipe import Pipe

MICRO, BATCH, DIM = 5, 6, 14


class Heartbeat:
    """Tells the store every half second that the rank is alive."""

    def __init__(self, store, rank):
        self.store, self.key = store, f"alive/{rank}"
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)

    def beat(self):
        while not self.stop.wait(0.5):
            self.store.add(self.key, 1)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()


def make_stage(rank):
    torch.manual_seed(rank)
    layers = [nn.Linear(DIM, DIM), nn.Tanh()]
    if rank % 2:
        layers.append(nn.LayerNorm(DIM))
    return nn.Sequential(*layers)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    pipe = Pipe(stage, nn.functional.mse_loss, (BATCH, DIM), MICRO)
    store = dist.distributed_c10d._get_default_store()
    with Heartbeat(store, rank):
        for step in range(8):
            x = torch.randn(MICRO, BATCH, DIM, generator=torch.Generator().manual_seed(step))
            loss = pipe.run(list(x), list(x.flip(2)))
            optimizer.step()
            optimizer.zero_grad()
            if step % 4 == 3:
                value = torch.tensor([loss])
                dist.broadcast(value, src=world - 1)
                if rank == 0:
                    print(f"step {step}: {value.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
