import copy

import torch
import torch.distributed as dist

from pipeline import Stage

STEPS = 60
SNAPSHOT_EVERY = 5


class SpikeGuard:
    """Goes back to the last snapshot if the loss has jumped."""

    def __init__(self, stage, factor=4.0):
        self.stage = stage
        self.factor = factor
        self.average = None
        self.saved = None
        self.snapshot()

    def snapshot(self):
        self.saved = copy.deepcopy((self.stage.step, self.stage.block.state_dict(), self.stage.optimizer.state_dict()))

    def restore(self):
        step, weights, moments = copy.deepcopy(self.saved)
        self.stage.step = step
        self.stage.block.load_state_dict(weights)
        self.stage.optimizer.load_state_dict(moments)

    def check(self, loss):
        if self.average is not None and loss > self.factor * self.average:
            print(f"loss {loss:.2f} after {self.average:.2f}: going back", flush=True)
            self.restore()
            return
        self.average = loss if self.average is None else 0.8 * self.average + 0.2 * loss
        if self.stage.step % SNAPSHOT_EVERY == 0:
            self.snapshot()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    stage = Stage(dist.get_rank(), dist.get_world_size())
    guard = SpikeGuard(stage)
    while stage.step < STEPS:
        loss = stage.run_step()
        guard.check(loss)
        if stage.last and stage.step % 5 == 0:
            print(f"step {stage.step}: loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
