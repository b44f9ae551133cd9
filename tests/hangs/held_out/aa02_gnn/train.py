import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from graph import NODES_PER_RANK, FeatureStore, NeighbourSampler, build_edges
from model import Sage


def batches(rank, size):
    first = rank * NODES_PER_RANK
    for at in range(first, first + NODES_PER_RANK, size):
        yield list(range(at, at + size))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    store = FeatureStore(rank, world, 8)
    sampler = NeighbourSampler(build_edges(world), store, fanouts=(3, 2))
    model = DistributedDataParallel(Sage(8, 16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        for seeds in batches(rank, 4):
            features, layers = sampler.sample(seeds)
            out = model(seeds, features, layers)
            target = torch.tensor([n % 3 for n in seeds])
            loss = F.cross_entropy(out, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print("epoch", epoch, "loss", round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
