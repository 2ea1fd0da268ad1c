"""The persistent batch: a row for each live sequence, with its pages, its tokens and its states; and the pool of pages."""
from collections import deque

import numpy as np

PAGE = 8     # tokens
ROWS = 16    # sequences at a time
WIDEST = 64  # pages of a sequence


class Pool:
    """A page may be of several sequences, as long as none of them writes to it."""

    def __init__(self, count):
        self.free, self.users = deque(range(count)), np.zeros(count, int)

    def take(self):
        page = self.free.popleft()  # the page that was given back first is taken first
        self.users[page] = 1
        return page

    def drop(self, page):
        self.users[page] -= 1
        if self.users[page] == 0:
            self.free.append(page)


class Batch:
    """Rows 0..live-1 are used. If a sequence ends, the last row moves into its place."""

    def __init__(self, pool, states):
        self.pool, self.states = pool, states
        self.live, self.row, self.owner = 0, {}, [None] * ROWS
        self.table, self.pages = np.zeros((ROWS, WIDEST), int), np.zeros(ROWS, int)
        self.length = np.zeros(ROWS, int)   # cached tokens
        self.turned = np.zeros(ROWS, int)   # where the rotation of the next token stands
        self.ids, self.written = np.zeros((ROWS, PAGE * WIDEST), int), np.zeros(ROWS, int)

    def add(self, sequence):
        row = self.live
        self.live += 1
        self.row[sequence], self.owner[row] = row, sequence
        self.pages[row] = self.length[row] = self.turned[row] = self.written[row] = 0
        if self.states:
            self.states.zero(row, sequence)
        return row

    def end(self, sequence):
        hole, last = self.row.pop(sequence), self.live - 1
        for page in self.table[hole, :self.pages[hole]]:
            self.pool.drop(page)
        if hole != last:
            moved = self.owner[last]
            for field in (self.table, self.pages, self.length, self.turned, self.ids, self.written):
                field[hole] = field[last]
            self.owner[hole], self.row[moved] = moved, hole
            if self.states:
                self.states.move(last, hole)
        self.live = last

    def take_back(self, sequence, kept):
        if kept == 0:
            return self.end(sequence)
        row = self.row[sequence]
        pages = -(-kept // PAGE)
        for page in self.table[row, pages:self.pages[row]]:
            self.pool.drop(page)
        self.pages[row] = pages
        gone = self.length[row] - kept
        self.turned[row] -= gone
        self.written[row] -= gone
        self.length[row] = kept
        if self.states:
            self.states.restore(row, sequence, kept)

    def share(self, source, sequence, count):
        """A new sequence begins with `count` tokens of another."""
        row, of = self.add(sequence), self.row[source]
        pages = -(-count // PAGE)
        self.table[row, :pages], self.pages[row] = self.table[of, :pages], pages
        for page in self.table[row, :pages]:
            self.pool.users[page] += 1
        self.length[row] = self.written[row] = count
        self.turned[row] = count
        self.ids[row, :count] = self.ids[of, :count]
        if self.states:
            self.states.share(source, of, sequence, row, count)

    def grow(self, row, tokens, copy):
        """The tokens go to the row: their positions, rotations and slots. `copy(from, to)` copies a page of all caches."""
        at, count, table = self.length[row], len(tokens), self.table[row]
        if at % PAGE and self.pool.users[table[self.pages[row] - 1]] > 1:  # others read what would be written to
            own, of = self.pool.take(), table[self.pages[row] - 1]
            copy(of, own)
            self.pool.drop(of)
            table[self.pages[row] - 1] = own
        while self.pages[row] * PAGE < at + count:
            table[self.pages[row]] = self.pool.take()
            self.pages[row] += 1
        self.ids[row, self.written[row]:self.written[row] + count] = tokens
        self.written[row] += count
        turns = np.arange(self.turned[row], self.turned[row] + count)
        self.turned[row] += count
        self.length[row] = at + count
        n = np.arange(at, at + count)
        return n, self.ids[row, n], turns, table[n // PAGE] * PAGE + n % PAGE


class States:
    """What recurrent layers keep, by row of the batch. A journal of each sequence's inputs, and a mark of the state at each end of a pass,
    so that any earlier state can be computed again."""

    def __init__(self, layers, taps, channels, heads, dim):
        self.taps = taps
        self.window = {l: np.zeros((ROWS, taps - 1, channels), np.float32) for l in layers}  # the convolution's last inputs
        self.memory = {l: np.zeros((ROWS, heads, dim, dim), np.float32) for l in layers}     # of the delta net: [heads, value, key]
        self.journal, self.marks = {}, {}

    def zero(self, row, sequence):
        for l in self.window:
            self.window[l][row], self.memory[l][row] = 0, 0
            self.journal[sequence, l] = []  # (input of the convolution, key, value, decay, beta) of each token
        self.marks[sequence] = {0: {l: np.zeros_like(self.memory[l][row]) for l in self.window}}

    def move(self, last, hole):
        for l in self.window:
            self.window[l][hole] = self.window[l][last]
            self.memory[l][hole] = self.memory[l][last]

    def mark(self, row, sequence, length):
        self.marks[sequence][length] = {l: self.memory[l][row].copy() for l in self.memory}

    def again(self, sequence, l, kept):
        """The window and the memory after `kept` tokens: from the last mark before them, token by token."""
        start = max(n for n in self.marks[sequence] if n <= kept)
        m = self.marks[sequence][start][l]
        told = self.journal[sequence, l]
        window = np.zeros_like(self.window[l][0])
        for i, item in enumerate(told[max(0, kept - self.taps + 1):kept][::-1]):
            window[-1 - i] = item[0]
        for _, k, v, decay, beta in told[start:kept]:
            m = advance(m, k, v, decay, beta)
        return window, m

    def restore(self, row, sequence, kept):
        for l in self.window:
            self.window[l][row], self.memory[l][row] = self.again(sequence, l, kept)
            del self.journal[sequence, l][kept:]
        self.marks[sequence] = {n: m for n, m in self.marks[sequence].items() if n <= kept}
        self.mark(row, sequence, kept)

    def share(self, source, of, sequence, row, count):
        for l in self.window:
            self.window[l][row], self.memory[l][row] = self.again(source, l, count)
            self.journal[sequence, l] = list(self.journal[source, l][:count])
        self.marks[sequence] = {n: m for n, m in self.marks[source].items() if n <= count}
        self.mark(row, sequence, count)


def advance(m, k, v, decay, beta):
    """A token of the gated delta rule, written to the state [heads, value, key]."""
    m = m * np.exp(decay)[:, None, None]
    delta = (v - (m @ k[:, :, None])[:, :, 0]) * beta[:, None]
    return m + delta[:, :, None] * k[:, None]
