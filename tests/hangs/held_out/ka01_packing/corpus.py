import json
import random
from pathlib import Path

ROOT = Path(__file__).parent / "data"


def load_index(shard):
    return json.loads((ROOT / f"shard-{shard:02d}.json").read_text())


def documents(index, epoch, vocab):
    rng = random.Random(17 + epoch)
    for length in index["parts"][epoch]:
        yield [rng.randrange(vocab) for _ in range(length)]
