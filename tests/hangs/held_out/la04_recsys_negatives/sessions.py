import torch


class Sessions:
    """Click histories by user. Resellers have clicked through most of the catalogue."""

    def __init__(self, items, users=960, resellers=(527,)):
        self.items = items
        self.users = users
        self.resellers = set(resellers)

    def history(self, user):
        g = torch.Generator().manual_seed(user)
        clicks = self.items * 3 // 4 if user in self.resellers else 6
        return torch.randperm(self.items, generator=g)[:clicks]

    def batches(self, rank, world, size):
        mine = range(rank, self.users, world)
        for start in range(0, len(mine) - size + 1, size):
            users = mine[start : start + size]
            histories = [self.history(user) for user in users]
            positives = set(torch.cat(histories).tolist())
            targets = torch.stack([h[0] for h in histories])
            yield torch.tensor(users), targets, positives
