import torch.distributed as dist

from data import Corpus
from stage import Stage


def run_epoch(stage, corpus, epoch):
    total, n = 0.0, 0
    for x, y in corpus.batches():
        total += stage.step(x, y)
        n += 1
    if stage.last:
        print(f"epoch {epoch} loss {total / n:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    corpus = Corpus()
    for epoch in range(3):
        run_epoch(stage, corpus, epoch)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
