import torch


def read_documents(rank, world, count=160):
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 40, (count,), generator=g).tolist()
    docs = [torch.randint(1, 50, (n,), generator=g) for n in lengths]
    return docs[rank::world]


class Packer:
    """First-fit packing of documents into rows of a fixed length."""

    def __init__(self, row=64):
        self.row = row

    def pack(self, docs):
        rows = []
        for doc in docs:
            for r in rows:
                if r["used"] + len(doc) <= self.row:
                    r["docs"].append(doc)
                    r["used"] += len(doc)
                    break
            else:
                rows.append({"docs": [doc], "used": len(doc)})
        return [self._tensor(r["docs"]) for r in rows]

    def _tensor(self, docs):
        tokens = torch.zeros(self.row, dtype=torch.long)
        segment = torch.zeros(self.row, dtype=torch.long)
        at = 0
        for i, d in enumerate(docs, 1):
            tokens[at:at + len(d)] = d
            segment[at:at + len(d)] = i
            at += len(d)
        return tokens, segment


class PackedBatches:
    def __init__(self, docs, batch=2, row=64):
        self.rows = Packer(row).pack(docs)
        self.batch = batch

    def __len__(self):
        return len(self.rows) // self.batch

    def __iter__(self):
        for i in range(len(self)):
            part = self.rows[i * self.batch:(i + 1) * self.batch]
            yield torch.stack([t for t, _ in part]), torch.stack([s for _, s in part])
