"""The paged cache: blocks, who holds them, and whose prefix they are."""
import collections

import numpy as np

BLOCK = 8  # tokens of a block
PAD = -1   # the slot of a row that is padding


class Block:
    def __init__(self, number):
        self.number, self.refs, self.key = number, 0, None


class Pool:
    """Blocks by number. A block whose key is known stays findable after it was freed, until it is given out again."""

    def __init__(self, count):
        self.blocks = [Block(i) for i in range(count)]
        self.free = collections.deque(range(count))
        self.known = {}  # key of a full block to its number

    def take(self):
        number = self.free.popleft()
        block = self.blocks[number]
        if block.key is not None:
            if self.known.get(block.key) == number:
                del self.known[block.key]
            block.key = None
        block.refs = 1
        return number

    def hold(self, number):
        block = self.blocks[number]
        if block.refs == 0:
            self.free.remove(number)
        block.refs += 1

    def drop(self, number):
        block = self.blocks[number]
        block.refs -= 1
        if block.refs == 0:
            self.free.append(number)

    def keys_of(self, tokens):
        """The keys of the full blocks of a text: each is of its tokens and of all before."""
        keys, parent = [], None
        for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = hash((parent, tuple(tokens[begin:begin + BLOCK])))
            keys.append(parent)
        return keys

    def publish(self, tokens, table, computed):
        """Makes the full blocks of a text findable, of which so many tokens are computed."""
        for number, key in zip(table, self.keys_of(tokens[:computed])):
            if self.blocks[number].key is None and key not in self.known:
                self.blocks[number].key = key
                self.known[key] = number

    def lookup(self, tokens):
        """The blocks that hold the beginning of a text; its last token is always computed."""
        found = []
        for key in self.keys_of(tokens[:len(tokens) - 1]):
            if key not in self.known:
                break
            found.append(self.known[key])
        return found


class Store:
    """Keys or values of a layer, by slot: as f32, or in blocks of 32 elements with a scale each (q8_0)."""

    def __init__(self, slots, heads, width, kind):
        self.kind, self.heads, self.width = kind, heads, width
        if kind == "f32":
            self.rows = np.zeros((slots, heads, width), np.float32)
        else:
            self.codes = np.zeros((slots, heads * width // 32, 32), np.int8)
            self.scales = np.zeros((slots, heads * width // 32), np.float16)

    def write(self, slots, rows):
        """Writes the rows whose slot is one."""
        live = slots >= 0
        slots, rows = slots[live], rows[live]
        if self.kind == "f32":
            self.rows[slots] = rows
            return
        x = rows.reshape(len(rows), -1, 32)
        largest = np.abs(x).max(-1)
        scale = (largest / np.float32(127)).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        x = x * inverse[:, :, None]
        self.codes[slots] = np.trunc(x + np.copysign(np.float32(0.5), x)).astype(np.int8)
        self.scales[slots] = scale.astype(np.float16)

    def read(self, slots):
        if self.kind == "f32":
            return self.rows[slots]
        x = self.codes[slots].astype(np.float32) * self.scales[slots].astype(np.float32)[:, :, None]
        return x.reshape(len(slots), self.heads, self.width)
