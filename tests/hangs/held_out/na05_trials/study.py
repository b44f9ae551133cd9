import torch
import torch.distributed as dist

STOP = -1.0


class Study:
    """Hands out trials to whichever worker is free and collects their scores."""

    def __init__(self, trials, workers):
        self.queue = list(trials)
        self.workers = workers
        self.running = 0
        self.best = (float("inf"), -1.0)

    def assign(self, worker):
        if self.queue:
            number, rate = self.queue.pop(0)
            job = torch.tensor([float(number), rate])
            self.running += 1
        else:
            job = torch.tensor([STOP, 0.0])
        dist.send(job, dst=worker)

    def run(self):
        for worker in self.workers:
            self.assign(worker)
        report = torch.empty(2)
        while self.running:
            worker = dist.recv(report)
            self.running -= 1
            number, loss = report.tolist()
            if loss < self.best[0]:
                self.best = (loss, number)
                print(f"trial {number:.0f}: best so far {loss:.4f}", flush=True)
            self.assign(worker)
        return torch.tensor(self.best)
