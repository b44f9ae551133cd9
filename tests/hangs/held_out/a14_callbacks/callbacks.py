import logging

import torch
import torch.distributed as dist

log = logging.getLogger("callbacks")


class Callback:
    def on_step_end(self, state):
        pass

    def on_train_end(self, state):
        pass


class GradientSNR(Callback):
    """Ratio of mean and spread of the gradients, over all ranks, every few steps."""

    def __init__(self, every=4):
        self.every = every
        self.history = []

    def on_step_end(self, state):
        if state.step % self.every:
            return
        grads = torch.cat([p.grad.flatten() for p in state.params])
        ratio = grads.abs().mean().item() / float(f"{state.sample_spread:.6f}")
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor([ratio]))
        self.history.append(torch.cat(parts).mean().item())


class Console(Callback):
    def __init__(self, every=4):
        self.every = every

    def on_step_end(self, state):
        if dist.get_rank() == 0 and state.step % self.every == 0:
            print(f"step {state.step} loss {state.loss:.4f}", flush=True)


class CallbackList:
    """Calls the callbacks; one that fails must not end the training, and is switched off."""

    def __init__(self, callbacks):
        self.active = list(callbacks)

    def fire(self, event, state):
        for cb in list(self.active):
            try:
                getattr(cb, event)(state)
            except ArithmeticError as error:
                log.error("%s switched off: %r", type(cb).__name__, error)
                self.active.remove(cb)
