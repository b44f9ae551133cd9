import torch


@torch.no_grad()
def beam_search(decoder, image, width=4, length=14, end=0):
    beams = [((), 0.0)]
    finished = []
    for _ in range(length):
        options = []
        for tokens, score in beams:
            logp = decoder.next_token(image, tokens).log_softmax(0)
            top = logp.topk(width)
            options += [(tokens + (int(t),), score + float(v)) for v, t in zip(top.values, top.indices)]
        options.sort(key=lambda option: option[1], reverse=True)
        beams = []
        for tokens, score in options[:width]:
            if tokens[-1] == end:
                finished.append((tokens, score / len(tokens)))
            else:
                beams.append((tokens, score))
        if not beams:
            break
    finished += [(tokens, score / len(tokens)) for tokens, score in beams]
    return max(finished, key=lambda option: option[1])[0]
