"""Speculative decoding: rank 0 drafts K tokens with a small model, rank 1 verifies them with the large one."""
import torch.distributed as dist

from channel import Channel
from models import EOS, CountingLM

VOCAB, K = 24, 4


class Drafter:
    def __init__(self, chan):
        self.model = CountingLM(VOCAB, errs_on=(6, 13))
        self.chan = chan

    def draft(self, last):
        tokens = []
        while len(tokens) < K:
            last = self.model.greedy(last)
            tokens.append(last)
            if last == EOS:
                break
        return tokens

    def generate(self, start):
        out = [start]
        while out[-1] != EOS:
            draft = self.draft(out[-1])
            self.chan.put_draft(draft)
            accepted = self.chan.get_count()
            out += draft[:accepted]
            if accepted < len(draft):
                out.append(self.chan.get_token())
        return out


class Verifier:
    def __init__(self, chan):
        self.model = CountingLM(VOCAB)
        self.chan = chan

    def accept(self, last, draft):
        n = 0
        for token in draft:
            if self.model.greedy(last) != token:
                break
            last = token
            n += 1
        return n, last

    def follow(self, start):
        last = start
        while last != EOS:
            draft = self.chan.get_draft()
            n, last = self.accept(last, draft)
            self.chan.put_count(n)
            if n < K:
                last = self.model.greedy(last)
                self.chan.put_token(last)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    chan = Channel(1 - rank, K)
    worker = Drafter(chan) if rank == 0 else Verifier(chan)
    for start in (16, 20, 11):
        if rank == 0:
            print(start, "->", worker.generate(start), flush=True)
        else:
            worker.follow(start)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
