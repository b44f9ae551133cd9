import torch
import torch.distributed as dist

from clip import Clipper
from layers import TinyLM

VOCAB = 22
DIM = 8


def batches(steps):
    gen = torch.Generator().manual_seed(5)
    for _ in range(steps):
        yield torch.randint(0, VOCAB, (6, 9), generator=gen)


def gather_norms(norm):
    out = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(out, torch.tensor([norm]))
    return torch.cat(out)


def train_step(model, opt, clip, tokens):
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    norm = clip()
    norms = gather_norms(norm)
    opt.step()
    return loss.item(), norms


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TinyLM(VOCAB, DIM)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    clip = Clipper(model, VOCAB, 1.0)
    for step, tokens in enumerate(batches(8)):
        loss, norms = train_step(model, opt, clip, tokens)
        if dist.get_rank() == 0:
            print(step, round(loss, 3), norms.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
