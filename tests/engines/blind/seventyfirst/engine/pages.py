"""Pages of the caches and who has them; rows of the pool of recurrent states and what they were after each token."""
from collections import deque

import numpy as np

PAGE = 8   # tokens
POOL = 12  # rows of recurrent states


class Pages:
    """A page may be of several sequences, as long as none of them writes to it. The page that has been free longest is taken first."""

    def __init__(self, count):
        self.free = deque(range(count))
        self.users = np.zeros(count, int)
        self.table, self.length, self.shared = {}, {}, {}

    def take(self):
        page = self.free.popleft()
        self.users[page] = 1
        return page

    def drop(self, page):
        self.users[page] -= 1
        if self.users[page] == 0:
            self.free.append(page)

    def keep(self, sequence, kept):
        """The sequence takes back all tokens but the first `kept`."""
        table, pages = self.table[sequence], -(-kept // PAGE)
        for page in table[pages:]:
            self.drop(page)
        self.table[sequence] = table[:pages]
        self.length[sequence] = kept
        self.shared[sequence] = min(self.shared[sequence], kept)

    def share(self, source, sequence, count):
        """A new sequence begins with `count` tokens of another."""
        table = self.table[source][:-(-count // PAGE)]
        self.users[table] += 1
        self.table[sequence], self.length[sequence], self.shared[sequence] = table, count, count

    def room(self, sequence, count, copy):
        """Slots for `count` more tokens; `copy(from, to)` copies a page of all caches."""
        table, at = self.table.setdefault(sequence, []), self.length.setdefault(sequence, 0)
        self.shared.setdefault(sequence, 0)
        if at % PAGE and self.users[table[-1]] > 1:  # others read what would be written to
            own = self.take()
            copy(table[-1], own)
            self.drop(table[-1])
            table[-1] = own
        while len(table) * PAGE < at + count:
            table.append(self.take())
        self.length[sequence] = at + count
        n = np.arange(at, at + count)
        return np.array(table)[n // PAGE] * PAGE + n % PAGE


class States:
    """A row of the pool for each sequence, which its passes read and write, and copies after each token, to go back to."""

    def __init__(self, layers, taps, channels, heads, dim):
        self.window = {l: np.zeros((POOL, taps - 1, channels), np.float32) for l in layers}  # the convolution's last inputs
        self.memory = {l: np.zeros((POOL, heads, dim, dim), np.float32) for l in layers}     # what the delta net keeps
        self.free, self.row, self.saved = list(range(POOL))[::-1], {}, {}

    def save(self, sequence, l, windows, memories):
        """What layer l has after each of the tokens of a pass."""
        kept = self.saved[sequence][l]
        kept += [(w.copy(), m.copy()) for w, m in zip(windows, memories)]

    def restore(self, sequence, kept):
        for l, saved in self.saved[sequence].items():
            window, memory = saved[kept]
            self.window[l][self.row[sequence]] = window
            self.memory[l][self.row[sequence]] = memory

    def keep(self, sequence, kept):
        if kept == 0:
            self.free.append(self.row.pop(sequence))
            del self.saved[sequence]
            return
        self.restore(sequence, kept)
        for saved in self.saved[sequence].values():
            del saved[kept + 1:]

    def share(self, source, sequence, count):
        self.row[sequence] = self.free.pop()
        self.saved[sequence] = {l: saved[:count + 1] for l, saved in self.saved[source].items()}
        self.restore(sequence, count)

    def begin(self, sequence):
        """The row of a sequence. A sequence that joins begins with zeros."""
        if sequence not in self.row:
            row = self.row[sequence] = self.free.pop()
            for l in self.window:
                self.window[l][row] = 0
                self.memory[l][row] = 0
            self.saved[sequence] = {l: [(self.window[l][row].copy(), self.memory[l][row].copy())] for l in self.window}
        return self.row[sequence]
