import contextlib
import copy

import torch


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)

    @contextlib.contextmanager
    def applied(self, model):
        backup = copy.deepcopy(model.state_dict())
        model.load_state_dict(self.shadow.state_dict())
        model.eval()
        try:
            yield model
        finally:
            model.load_state_dict(backup)
            model.train()
