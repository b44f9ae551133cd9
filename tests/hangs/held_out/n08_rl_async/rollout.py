import asyncio
import random

import torch


class Env:
    """A walk on a line; an episode ends at either border."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    async def episode(self, policy, start):
        pos, steps = start, []
        while abs(pos) < 3 and len(steps) < 30:
            obs = torch.tensor([pos / 3.0, 1.0])
            probs = policy(obs).softmax(-1)
            action = int(self.rng.random() < probs[1].item())
            steps.append((obs, action))
            pos += 1 if action else -1
            await asyncio.sleep(0)
        return steps, float(pos >= 3)


class Collector:
    def __init__(self, rank, envs=3):
        self.envs = [Env(rank * 10 + i) for i in range(envs)]
        self.starts = random.Random(rank)
        self.limit = 2 + (rank == 2)

    async def _serve(self, env, policy, tasks, out):
        while True:
            start = await tasks.get()
            steps, reward = await env.episode(policy, start)
            if not steps:
                continue
            out.append((torch.stack([s for s, _ in steps]), torch.tensor([a for _, a in steps]), reward))
            tasks.task_done()

    async def _collect(self, policy, episodes):
        tasks, out = asyncio.Queue(), []
        for _ in range(episodes):
            tasks.put_nowait(self.starts.randint(-self.limit, self.limit))
        servers = [asyncio.create_task(self._serve(e, policy, tasks, out)) for e in self.envs]
        await tasks.join()
        for s in servers:
            s.cancel()
        return out

    @torch.no_grad()
    def collect(self, policy, episodes=4):
        return asyncio.run(self._collect(policy, episodes))
