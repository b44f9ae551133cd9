import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Scenes, collate
from task import Backbone, DetectionTask


def run_epoch(task, loader, optimizer, scheduler):
    total, count = 0.0, 0
    for images, targets in loader:
        loss = task.training_step(images, targets)
        if loss is None:
            continue
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
        count += 1
    return total, count


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(Backbone())
    task = DetectionTask(model)
    scenes = Scenes("annotations.json")
    sampler = DistributedSampler(scenes, shuffle=False)
    loader = DataLoader(scenes, batch_size=4, sampler=sampler, collate_fn=collate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * len(loader))
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total, count = run_epoch(task, loader, optimizer, scheduler)
        stats = torch.tensor([total, float(count)])
        dist.all_reduce(stats)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {stats[0] / stats[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
