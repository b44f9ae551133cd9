import torch.distributed as dist


class EarlyStopping:
    """Rank 0 validates; the others learn from the store whether to go on."""

    def __init__(self, rank, patience=2):
        self.rank = rank
        self.patience = patience
        self.best = float("inf")
        self.bad = 0
        self.store = dist.PrefixStore("early-stopping", dist.distributed_c10d._get_default_store())

    def decide(self, epoch, value):
        if value < self.best - 1e-4:
            self.best = value
            self.bad = 0
        else:
            self.bad += 1
        if self.bad >= self.patience:
            print(f"epoch {epoch}: no better for {self.bad} epochs", flush=True)
            return True
        self.store.set(f"verdict-{epoch}", "go on")
        return False

    def should_stop(self, epoch, value=None):
        if self.rank == 0:
            return self.decide(epoch, value)
        return self.store.get(f"verdict-{epoch}") == b"stop"
