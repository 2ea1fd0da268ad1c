"""Pages of the caches, who has them, and the rows of the recurrent layers."""
from collections import deque

import numpy as np

PAGE = 8  # tokens


class Pages:
    """Which pages a sequence has. A page may be of several sequences, as long as none of them writes to it."""

    def __init__(self, count):
        self.free = list(range(count))[::-1]  # the page that was given back last is taken first
        self.users = np.zeros(count, int)
        self.table, self.length, self.shared = {}, {}, {}

    def take(self):
        page = self.free.pop()
        self.users[page] = 1
        return page

    def drop(self, page):
        self.users[page] -= 1
        if self.users[page] == 0:
            self.free.append(page)

    def keep(self, sequence, kept):
        """The sequence takes back all tokens but the first `kept`."""
        pages = -(-kept // PAGE)
        table = self.table[sequence]
        for page in table[pages:]:
            self.drop(page)
        del table[pages:]
        self.length[sequence] = kept
        self.shared[sequence] = min(self.shared[sequence], kept)

    def share(self, source, sequence, count):
        """A new sequence begins with `count` tokens of another."""
        pages = self.table[source][:-(-count // PAGE)]
        for page in pages:
            self.users[page] += 1
        self.table[sequence], self.length[sequence], self.shared[sequence] = list(pages), count, count

    def room(self, sequence, count, copy):
        """Slots for `count` more tokens; `copy(from, to)` copies a page of all caches."""
        if sequence not in self.table:
            self.table[sequence], self.length[sequence], self.shared[sequence] = [], 0, 0
        table, at = self.table[sequence], self.length[sequence]
        if at % PAGE and self.users[table[-1]] > 1:  # others read what would be written to
            own = self.take()
            copy(table[-1], own)
            self.drop(table[-1])
            table[-1] = own
        while len(table) * PAGE < at + count:
            table.append(self.take())
        self.length[sequence] = at + count
        return [table[n // PAGE] * PAGE + n % PAGE for n in range(at, at + count)]


class States:
    """States of recurrent layers: a row of the pool for the state after each token, so that any token can be gone back to."""

    def __init__(self, layers, taps, channels, heads, dim):
        self.window = {l: [] for l in layers}  # by row, the convolution's last inputs
        self.memory = {l: [] for l in layers}  # by row, what the delta net keeps
        self.free, self.users, self.rows = deque(), [], {}
        self.fresh = lambda: (np.zeros((taps - 1, channels), np.float32), np.zeros((heads, dim, dim), np.float32))

    def take(self):
        if not self.free:
            self.users.append(0)
            for l in self.window:
                window, memory = self.fresh()
                self.window[l].append(window)
                self.memory[l].append(memory)
            self.free.append(len(self.users) - 1)
        row = self.free.popleft()
        self.users[row] = 1
        return row

    def drop(self, row):
        self.users[row] -= 1
        if self.users[row] == 0:
            self.free.append(row)

    def keep(self, sequence, kept):
        # The first row is the state before the first token.
        for row in self.rows[sequence][kept + 1:]:
            self.drop(row)
        del self.rows[sequence][kept + 1:]

    def share(self, source, sequence, count):
        self.rows[sequence] = self.rows[source][:count + 1]
        for row in self.rows[sequence]:
            self.users[row] += 1

    def begin(self, sequence):
        """The rows of a sequence; its state before the first token is zero."""
        if not self.rows.get(sequence):
            self.rows[sequence] = [self.take()]
        rows = self.rows[sequence]
        if len(rows) == 1:
            for l in self.window:
                self.window[l][rows[0]][:] = 0
                self.memory[l][rows[0]][:] = 0
        return rows

    def grow(self, sequence):
        self.rows[sequence].append(self.take())
        return self.rows[sequence][-1]
