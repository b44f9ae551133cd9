import torch

from corpus import documents


class PackedStream:
    """Concatenates documents and cuts them into rows of equal length."""

    def __init__(self, index, seq_len, batch_size, vocab, max_doc=512):
        self.index = index
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.vocab = vocab
        self.max_doc = max_doc
        self.dropped = 0

    def rows(self, epoch):
        buffer = []
        need = self.seq_len + 1
        for doc in documents(self.index, epoch, self.vocab):
            if len(doc) > self.max_doc:
                self.dropped += 1
                continue
            buffer.extend(doc)
            while len(buffer) >= need:
                yield buffer[:need]
                buffer = buffer[self.seq_len:]

    def batches(self, epoch):
        rows = []
        for row in self.rows(epoch):
            rows.append(row)
            if len(rows) == self.batch_size:
                block = torch.tensor(rows)
                rows = []
                yield block[:, :-1], block[:, 1:]
