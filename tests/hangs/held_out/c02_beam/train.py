"""Evaluate a summarizer with sharded weights: each rank decodes its own documents."""
import torch
import torch.distributed as dist

from beam import summarize
from sharded import Decoder

VOCAB, DIM = 30, 12


def documents(rank, world):
    gen = torch.Generator().manual_seed(11)
    lengths = [6, 6, 6, 5, 5, 5, 7, 4, 7]
    docs = [(torch.randint(1, VOCAB, (8,), generator=gen), n) for n in lengths]
    return docs[rank::world]


class Evaluator:
    def __init__(self, model):
        self.model = model
        self.summaries = []

    def run(self, docs):
        for prompt, usual in docs:
            with torch.no_grad():
                self.summaries.append(summarize(self.model, prompt, length=usual))
            self.progress()

    def progress(self):
        total = torch.tensor([len(self.summaries[-1]), 1])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print("mean length", total[0].item() / total[1].item(), flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Decoder(VOCAB, DIM, world, rank)
    evaluator = Evaluator(model)
    evaluator.run(documents(rank, world))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
