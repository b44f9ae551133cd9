"""GAN with two optimizers and a step that is repeated after passing failures."""
import torch
import torch.distributed as dist

from gan import Gan
from resilient import retrying


class Source:
    """Real samples from a flaky reader."""

    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)
        self.reads = 0

    def read(self, n):
        self.reads += 1
        if self.rank == 1 and self.reads == 14:
            raise OSError(5, "Input/output error")
        return torch.randn(n, 4, generator=self.gen) * 0.3 + 1


@retrying(times=3, on=(OSError,))
def train_step(gan, source, noise):
    d_loss = gan.update_critic(source.read(16), noise)
    g_loss = gan.update_generator(noise, source.read(16).mean(0))
    return d_loss, g_loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gan, source = Gan(seed=0), Source(rank)
    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(20):
        d_loss, g_loss = train_step(gan, source, torch.randn(16, 3, generator=gen))
        if step % 5 == 4:
            pair = torch.tensor([d_loss, g_loss])
            dist.reduce(pair, dst=0)
            dist.barrier()
            if rank == 0:
                print(f"step {step} d {pair[0] / 3:.4f} g {pair[1] / 3:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
