"""Looks at weights whose gradients are suspiciously large."""


class WeightWatch:
    def __init__(self, model, limit=0.5):
        self.model = model
        self.limit = limit
        self.norms = {}

    def _is_spiking(self, grad):
        local = grad.to_local()
        return local.numel() > 0 and local.abs().max().item() > self.limit

    def update(self, step):
        for name, param in self.model.named_parameters():
            if param.grad is None:
                continue
            if self._is_spiking(param.grad):
                full = param.full_tensor()
                self.norms[step, name] = full.norm().item()

    def worst(self):
        if not self.norms:
            return None
        return max(self.norms, key=self.norms.get)
