import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = '''
import sys
rows = [line.split() for line in open(sys.argv[1])]
bad = 0
for i, (ref, hyp) in enumerate(rows):
    if abs(float(ref) - float(hyp)) > float(sys.argv[2]):
        bad += 1
        print("row %06d: reference %s hypothesis %s out of tolerance %s" % (i, ref, hyp, sys.argv[2]))
print("errors", bad, "of", len(rows))
'''


class Scorer:
    """Calls the scoring tool of the benchmark on the predictions of this rank."""

    def __init__(self, rank, tolerance):
        self.folder = Path(tempfile.mkdtemp(prefix=f"score{rank}_"))
        self.tool = self.folder / "score.py"
        self.tool.write_text(TOOL)
        self.tolerance = tolerance

    def __call__(self, reference, hypothesis):
        table = self.folder / "table.txt"
        with open(table, "w") as f:
            for r, h in zip(reference.tolist(), hypothesis.tolist()):
                f.write(f"{r:.6f} {h:.6f}\n")
        proc = subprocess.Popen(
            [sys.executable, "-S", str(self.tool), str(table), str(self.tolerance)],
            stdout=subprocess.PIPE,
            text=True,
        )
        code = proc.wait()
        if code:
            raise RuntimeError(f"scoring failed with {code}")
        last = proc.stdout.read().splitlines()[-1].split()
        return int(last[1]), int(last[3])
