"""Running metrics, logged by one process."""
from accelerate import PartialState

state = PartialState(cpu=True)


class Running:
    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.losses = []
        self.seen = 0

    def add(self, loss, count):
        self.losses.append(loss.detach())
        self.seen += count

    def mean(self):
        total = sum(self.losses) / len(self.losses)
        self.losses.clear()
        return self.accelerator.gather(total.reshape(1)).mean().item()


@state.on_main_process
def show(epoch, running, lr):
    print(f"epoch {epoch}: loss {running.mean():.4f}, lr {lr:.5f}, {running.seen} samples", flush=True)
