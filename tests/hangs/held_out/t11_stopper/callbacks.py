import torch.distributed as dist


class Callback:
    def on_epoch_end(self, loop, epoch, value):
        pass


class Callbacks(Callback):
    def __init__(self, items):
        self.items = items

    def on_epoch_end(self, loop, epoch, value):
        for item in self.items:
            item.on_epoch_end(loop, epoch, value)


class Progress(Callback):
    def on_epoch_end(self, loop, epoch, value):
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {value:.4f}", flush=True)


class EarlyStopping(Callback):
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def on_epoch_end(self, loop, epoch, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.bad >= self.patience:
            loop.should_stop = True
