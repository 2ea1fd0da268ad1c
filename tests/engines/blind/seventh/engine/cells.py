"""The cache of all sequences: cells, each with the position of its token and the set of sequences that it belongs to."""
import numpy as np

CELLS = 4096
UNIT = 32  # cells that are looked at are a multiple of it
HOLES = 8  # so many are closed


def blocks(rows):
    return rows.reshape(len(rows), -1, 32)


class Rows:
    """Keys or values of a layer, cell by cell, in the cache's format."""

    def __init__(self, heads, width, kind):
        self.kind, self.shape = kind, (heads, width)
        n = heads * width
        if kind in ("q8_0", "q4_0"):
            self.codes, self.scales = np.zeros((CELLS, n // 32, 32), np.int8), np.zeros((CELLS, n // 32), np.float16)
        else:
            self.rows = np.zeros((CELLS, heads, width), np.float16 if kind == "f16" else np.float32)

    def put(self, cells, x):
        if self.kind == "q8_0":
            b = blocks(x)
            d = np.abs(b).max(-1) / np.float32(127)
            by = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
            v = b * by[..., None]
            self.codes[cells] = np.trunc(v + np.copysign(np.float32(0.5), v))
            self.scales[cells] = d
        elif self.kind == "q4_0":
            b = blocks(x)
            top = np.take_along_axis(b, np.abs(b).argmax(-1)[..., None], -1)[..., 0]
            d = top / np.float32(-8)
            by = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
            self.codes[cells] = np.minimum(np.trunc(b * by[..., None] + np.float32(8.5)), 15) - 8
            self.scales[cells] = d
        else:
            self.rows[cells] = x

    def get(self, cells):
        if self.kind in ("q8_0", "q4_0"):
            x = self.scales[cells].astype(np.float32)[..., None] * self.codes[cells]
            return x.reshape(len(x), *self.shape)
        return self.rows[cells].astype(np.float32)

    def copy(self, source, to):
        for part in ("codes", "scales", "rows"):
            if hasattr(self, part):
                getattr(self, part)[to] = getattr(self, part)[source]


class Cells:
    def __init__(self):
        self.position = np.full(CELLS, -1, np.int64)
        self.owners = np.zeros(CELLS, np.uint64)
        self.head = 0    # where the search for free cells begins
        self.high = 0    # no cell from here on was ever used
        self.where = {}  # of each sequence, the cells of its positions

    def bit(self, sequence):
        return np.uint64(1) << np.uint64(sequence)

    def find(self, count):
        """Free cells, the first ones after the head."""
        at = (self.head + np.arange(CELLS)) % CELLS
        found = at[self.owners[at] == 0][:count]
        assert len(found) == count, "the cache is full"
        self.head = int(found[-1] + 1) % CELLS
        self.high = max(self.high, int(found.max()) + 1)
        return found

    def add(self, sequences):
        """Cells for the rows of a pass, and the positions of these."""
        cells, positions = self.find(len(sequences)), []
        for cell, s in zip(cells, sequences):
            table = self.where.setdefault(s, [])
            self.position[cell] = len(table)
            self.owners[cell] = self.bit(s)
            positions.append(len(table))
            table.append(int(cell))
        return cells, positions

    def share(self, source, sequence, count):
        """A sequence begins with the first tokens of another."""
        table = self.where[source][:count]
        self.where[sequence] = list(table)
        for cell in table:
            self.owners[cell] |= self.bit(sequence)

    def keep(self, sequence, count):
        """A sequence keeps its first tokens; cells that are nobody's are free."""
        gone = np.array(self.where[sequence][count:], np.int64)
        del self.where[sequence][count:]
        self.owners[gone] &= ~self.bit(sequence)
        free = gone[self.owners[gone] == 0]
        self.position[free] = -1
        if len(free):
            self.head = min(self.head, int(free.min()))

    def compact(self):
        """Moves the last cells into the holes: from where, and where to."""
        used, holes = (np.flatnonzero((self.owners[:self.high] != 0) == is_used) for is_used in (True, False))
        if len(holes) < HOLES:
            return holes[:0], holes[:0]
        count = int((holes < len(used)).sum())
        source, to = used[::-1][:count], holes[:count]
        self.position[to], self.owners[to] = self.position[source], self.owners[source]
        self.position[source], self.owners[source] = -1, 0
        moved = dict(zip(source.tolist(), to.tolist()))
        for table in self.where.values():
            table[:] = [moved.get(cell, cell) for cell in table]
        self.high = self.head = len(used)
        return source, to

    def seen(self):
        return min(-(-self.high // UNIT) * UNIT, CELLS)

    def mask(self, sequences, cells, count):
        """Which cells each row sees."""
        mine = (self.owners[None, :count] & np.array([self.bit(s) for s in sequences])[:, None]) != 0
        return mine & (self.position[None, :count] <= self.position[cells][:, None])
