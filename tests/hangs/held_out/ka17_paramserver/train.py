import torch
import torch.distributed as dist

from roles import SERVER, Server, Worker

PLAN = {1: (60, 0.01), 2: (35, 0.04), 3: (12, 0.35)}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    workers = list(range(1, dist.get_world_size()))
    group = dist.new_group(workers)
    dist.barrier()
    if rank == SERVER:
        server = Server(workers)
        server.run()
        print(f"{server.pushes} pushes", flush=True)
        server.export()
    else:
        worker = Worker(rank, *PLAN[rank])
        worker.run()
        error = (worker.weights - worker.target).abs().max().reshape(1)
        dist.all_reduce(error, op=dist.ReduceOp.MAX, group=group)
        if rank == 1:
            print(f"largest error {error.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
