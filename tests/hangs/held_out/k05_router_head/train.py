import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import MultiTask
from data import task_batches


def log_metrics(rank, step, values):
    names = sorted(values)
    t = torch.tensor([values[n] for n in names])
    rows = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, t)
    if rank == 0:
        print(step, dict(zip(names, torch.stack(rows).mean(0).tolist())), flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(MultiTask(), bucket_cap_mb=0.001)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, batch in enumerate(task_batches(rank, 30)):
        loss = model(batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log_metrics(rank, step, {"loss": loss.item(), "rows": float(len(batch["x"]))})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
