"""A pipeline of three stages with micro-batches, by hand."""
import torch
import torch.distributed as dist

from data import Batches
from stage import Stage

DIM, BATCH, MICRO, RECORDS, EPOCHS = 8, 16, 4, 60, 3


def plan(batch=None):
    """Number of micro-batches of this step and, on the first stage, their records."""
    if batch is None:
        return BATCH // MICRO, None
    chunks = list(batch.split(MICRO))
    return len(chunks), chunks


def steps(rank, data):
    if rank == 0:
        yield from data
    else:
        for _ in range(len(data)):
            yield None


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(DIM, MICRO, rank, world)
    target = torch.full((MICRO, DIM), 0.25)
    data = Batches(RECORDS, DIM, BATCH)
    for epoch in range(EPOCHS):
        loss = 0.0
        for batch in steps(rank, data):
            count, chunks = plan(batch)
            stage.forward_all(count, chunks)
            loss += stage.backward_all(target)
            stage.step()
        mean = torch.tensor(loss / len(data))
        dist.broadcast(mean, src=world - 1)
        if rank == 0:
            print(f"epoch {epoch} loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
