import torch
import torch.distributed as dist

from schedule import OneFOneB
from stage import IGNORE, MICRO, SEQ, VOCAB, Link, build_stage

NUM_MICRO = 4
STEPS = 8


def make_batch(step):
    gen = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (NUM_MICRO, MICRO, SEQ), generator=gen)
    labels = tokens.roll(-1, dims=-1)
    prompt_len = (torch.arange(NUM_MICRO) + step) % 4
    for mb in range(NUM_MICRO):
        labels[mb, :, : int(prompt_len[mb])] = IGNORE
    if step == 3:  # a long system prompt fills the window
        labels[1] = IGNORE
    return tokens, labels


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = build_stage(rank, world)
    opt = torch.optim.SGD(module.parameters(), lr=0.05)
    link = Link(rank, world)
    for step in range(STEPS):
        tokens, labels = make_batch(step)
        sched = OneFOneB(module, link, rank, world, NUM_MICRO)
        if rank == world - 1:
            sched.run_last(labels)
        else:
            sched.run_inner(tokens)
        link.flush()
        opt.step()
        opt.zero_grad()
        loss = torch.tensor([sched.loss_sum / NUM_MICRO])
        dist.broadcast(loss, src=world - 1)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
