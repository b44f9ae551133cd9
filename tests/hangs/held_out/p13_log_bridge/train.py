import torch
import torch.distributed as dist
import torch.nn as nn

from bridge import setup


class Words:
    def __init__(self, rank, vocab=50, length=8):
        self.generator = torch.Generator().manual_seed(rank)
        self.vocab = vocab
        self.length = length
        self.rank = rank

    def draw(self, step):
        tokens = torch.randint(0, self.vocab, (4, self.length), generator=self.generator)
        if self.rank == 2 and step == 7:
            tokens[1] = tokens[1, 0]
        return tokens


class NextWord(nn.Module):
    def __init__(self, vocab=50, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden)


class Trainer:
    def __init__(self, log):
        torch.manual_seed(0)
        self.log = log
        self.model = NextWord()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.words = Words(dist.get_rank())

    def check(self, step, tokens):
        for row in tokens:
            if len(row.unique()) < 3:
                self.log.warning("step %d: document of %d different words", step, len(row.unique()))

    def reduce(self):
        flat = nn.utils.parameters_to_vector([p.grad for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        nn.utils.vector_to_parameters(flat, [p.grad for p in self.model.parameters()])

    def step(self, step):
        tokens = self.words.draw(step)
        self.check(step, tokens)
        logits = self.model(tokens)[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce()
        self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    log = setup()
    log.warning("%d threads", torch.get_num_threads())
    trainer = Trainer(log)
    for step in range(15):
        loss = trainer.step(step)
        log.info("step %d loss %.3f", step, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
