"""Training with a small trainer class; some ranks run the variant with a profile."""
import torch.distributed as dist

from profiled import ProfiledTrainer
from trainer import Trainer


def choose(rank, profile_ranks=(2,)):
    return ProfiledTrainer if rank in profile_ranks else Trainer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = choose(rank)(rank, log_every=5)
    trainer.fit(steps=40)
    trainer.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
