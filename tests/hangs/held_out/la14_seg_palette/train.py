import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from journal import Journal
from masks import PALETTE, StreetScenes


def train(model, loader, journal, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for step, (image, mask) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            journal.add(epoch=epoch, step=step, loss=loss.item())
            if step % 4 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = StreetScenes()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, len(PALETTE), 1))
    journal = Journal(f"journal-{dist.get_rank()}.jsonl")
    journal.start()
    train(DDP(net), loader, journal, epochs=2)
    journal.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
