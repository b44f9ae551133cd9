import torch
import torch.distributed as dist

from server import Server
from worker import Worker


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        server = Server(range(1, world), lr=0.1)
        server.serve()
        print(f"{server.updates} updates", flush=True)
        final = server.params
    else:
        worker = Worker(rank)
        worker.work()
        final = torch.empty(36)
    dist.broadcast(final, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
