#!/usr/bin/env python3
"""A picture of the surface of a step: netCDF classic on standard input, PNG on standard output. Needs nothing but Python.

Blue is below rest, red above; the scale is the same for all steps, so that one can leaf through them.
"""
import array
import struct
import sys
import zlib

SCALE_M = 5.0
SHADES = 100


class Header:
    """What is needed of a classic file: where a variable of two dimensions begins."""

    def __init__(self, data):
        self.data, self.at = data, 4
        if data[:4] != b"CDF\1":
            sys.exit("quicklook: standard input is no netCDF file of the first form")
        self.number()
        self.lengths = [self.dimension() for _ in range(self.tag())]
        self.attributes()
        self.variables = dict(self.variable() for _ in range(self.tag()))

    def number(self):
        self.at += 4
        return struct.unpack_from(">I", self.data, self.at - 4)[0]

    def tag(self):
        """How many come."""
        self.number()
        return self.number()

    def name(self):
        length = self.number()
        name = self.data[self.at:self.at + length].decode()
        self.skip(length)
        return name

    def skip(self, length):
        """All is padded to four bytes."""
        self.at += -(-length // 4) * 4

    def dimension(self):
        self.name()
        return self.number()

    def attributes(self):
        for _ in range(self.tag()):
            self.name()
            size = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8}[self.number()]
            self.skip(self.number() * size)

    def variable(self):
        name = self.name()
        shape = [self.lengths[self.number()] for _ in range(self.number())]
        self.attributes()
        self.number(), self.number()
        return name, (shape, self.number())


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def colour(share):
    """From blue by white to red; small waves are to be seen, too."""
    pale = round(255 * (1 - abs(share) ** 0.6))
    return bytes((255, pale, pale) if share > 0 else (pale, pale, 255))


def main():
    data = sys.stdin.buffer.read()
    (rows, columns), begin = Header(data).variables["surface"]
    values = array.array("f", data[begin:begin + 4 * rows * columns])
    if sys.byteorder == "little":
        values.byteswap()
    colours = [colour(shade / SHADES) for shade in range(-SHADES, SHADES + 1)]
    pixels = [colours[SHADES + round(max(-1.0, min(1.0, value / SCALE_M)) * SHADES)] for value in values]
    # North is up.
    lines = b"".join(b"\0" + b"".join(pixels[row * columns:(row + 1) * columns]) for row in reversed(range(rows)))
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    sys.stdout.buffer.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


if __name__ == "__main__":
    main()
