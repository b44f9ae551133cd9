import time

import torch
import torch.distributed as dist

from tasks import STOP, work

TASKS = 30


class Dispatcher:
    """Rank 0 gives a task to whoever asks for one."""

    def __init__(self, world):
        self.world = world
        self.results = []

    def run(self):
        stopped = 0
        task = 0
        request = torch.empty(2)
        while stopped < self.world - 1:
            worker = dist.recv(request)
            if request[0] >= 0:
                self.results.append(float(request[1]))
            if task < TASKS:
                answer = task
                task += 1
            else:
                answer = STOP
                stopped += 1
            dist.send(torch.tensor([answer]), worker)
        return sum(self.results)


class Worker:
    def __init__(self, rank):
        self.rank = rank
        self.done = 0

    def run(self):
        message = torch.tensor([-1.0, 0.0])
        task = torch.empty(1, dtype=torch.int64)
        while True:
            dist.send(message, 0)
            dist.recv(task, 0)
            number = int(task)
            if number == STOP:
                break
            time.sleep(0.1 * self.rank)
            message = torch.cat([torch.tensor([float(number)]), work(number)])
            self.done += 1
        return float(self.done)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    value = Dispatcher(world).run() if rank == 0 else Worker(rank).run()
    values = [None] * world if rank == 0 else None
    dist.gather_object(value, values, dst=0)
    if rank == 0:
        print(f"sum {values[0]:.3f}, tasks by worker {values[1:]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
