import torch
import torch.distributed as dist


class EMA:
    def __init__(self, decay, sync_every):
        self.decay = decay
        self.sync_every = sync_every
        self.shadow = None

    @torch.no_grad()
    def on_step(self, step, model, batch):
        flat = torch.nn.utils.parameters_to_vector(model.parameters())
        if self.shadow is None:
            self.shadow = flat.clone()
        self.shadow.lerp_(flat, 1 - self.decay)
        if step % self.sync_every == 0:
            dist.broadcast(self.shadow, src=0)
