"""Latency statistics of a stream, window by window."""
import time

import torch
import torch.distributed as dist

import settings as config
from aggregate import Aggregator


def stream(rank, size):
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.empty(size).exponential_(1.0, generator=generator)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    settings = config.load(rank)
    aggregator = Aggregator(settings)
    for number, window in zip(range(64), stream(rank, settings["window"])):
        aggregator.add(window)
        report = aggregator.report(number)
        if report and rank == 0:
            print(number, report, flush=True)
        time.sleep(0.15)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
