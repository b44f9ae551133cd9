import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, config, callbacks):
        self.model = DistributedDataParallel(model)
        self.config = config
        self.callbacks = callbacks
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        self.loss_fn = nn.CrossEntropyLoss()
        self.epoch = 0

    def train_epoch(self, data):
        self.model.train()
        for x, y in data.train_batches(self.config["steps_per_epoch"], self.config["batch"]):
            loss = self.loss_fn(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self, data):
        self.model.eval()
        x, y = data.validation()
        scores = self.model.module(x)
        metrics = {
            "val_loss": self.loss_fn(scores, y),
            "val_acc": (scores.argmax(1) == y).float().mean(),
        }
        for name in self.config["reduce_metrics"]:
            dist.all_reduce(metrics[name])
            metrics[name] /= dist.get_world_size()
        return {name: value.item() for name, value in metrics.items()}

    def fit(self, data):
        for self.epoch in range(self.config["epochs"]):
            self.train_epoch(data)
            metrics = self.validate(data)
            for callback in self.callbacks:
                callback.on_validation_end(self, metrics)
            if dist.get_rank() == 0:
                print(self.epoch, {k: round(v, 4) for k, v in metrics.items()}, flush=True)
