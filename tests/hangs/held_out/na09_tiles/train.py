"""Mosaics of satellite tiles: several sweeps, each with band statistics of all ranks."""
import time

import torch
import torch.distributed as dist

from catalog import BANDS, Catalog


class Ledger:
    """Progress of the sweeps, in the store of the job."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world

    def commit(self, sweep, tiles):
        self.store.set(f"sweep/{sweep}/{self.rank}", str(tiles))

    def settle(self, sweep):
        keys = [f"sweep/{sweep}/{r}" for r in range(self.world)]
        self.store.wait(keys)
        return sum(int(self.store.get(key)) for key in keys)


def process(catalog, numbers, sweep):
    sums = torch.zeros(BANDS)
    for number in numbers:
        sums += catalog.read(number, sweep).mean(dim=(1, 2))
        time.sleep(0.03)
    return sums


def sweeps(catalog, ledger, rank, count=20):
    for sweep in range(count):
        todo = catalog.clear(sweep)
        if not todo:
            print(f"rank {rank}: no clear tiles", flush=True)
            return
        sums = process(catalog, todo, sweep)
        ledger.commit(sweep, len(todo))
        tiles = ledger.settle(sweep)
        dist.all_reduce(sums)
        if rank == 0:
            print(f"sweep {sweep}: {tiles} tiles, {(sums / tiles).tolist()}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("mosaic", dist.distributed_c10d._get_default_store())
    sweeps(Catalog(rank), Ledger(store, rank, world), rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
