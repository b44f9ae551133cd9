import torch

from balance import WIDTH


class TaskPool:
    """Tasks are rows; the first column is the round at which a task expires."""

    def __init__(self, rank):
        self.rank = rank
        self.round = 0
        self.tasks = []
        self.gen = torch.Generator().manual_seed(rank)

    def arrive(self):
        count = [4, 6, 9, 4][self.rank] if self.round < 5 else 4
        late = self.rank == 2 and self.round == 6  # a burst that was held up in a queue
        if late:
            count = 30
        for _ in range(count):
            task = torch.randn(WIDTH, generator=self.gen)
            task[0] = self.round if late else self.round + 50
            self.tasks.append(task)

    def drop_expired(self):
        self.tasks = [t for t in self.tasks if t[0] > self.round]

    def take(self, n):
        out, self.tasks = self.tasks[-n:], self.tasks[:-n]
        return out

    def extend(self, rows):
        self.tasks.extend(rows.unbind(0))

    def process(self, model, n=4):
        done = self.take(min(n, len(self.tasks)))
        self.round += 1
        if not done:
            return torch.zeros(1)
        return model(torch.stack(done)).sum().detach().reshape(1)
