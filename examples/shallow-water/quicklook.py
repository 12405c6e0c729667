#!/usr/bin/env python3
"""Draws the surface of a step: netCDF classic on standard input, PNG on standard output. Needs only Python.

Blue is below the level of rest, red above. The scale is the same for all steps, so that pictures can be compared.
"""
import array
import struct
import sys
import zlib

SCALE_M = 5.0
SHADES = 100


class Header:
    """Header of a classic file, read as far as needed to find a variable of two dimensions."""

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
        """Reads a tag, and returns the number of entries after it."""
        self.number()
        return self.number()

    def name(self):
        length = self.number()
        name = self.data[self.at:self.at + length].decode()
        self.skip(length)
        return name

    def skip(self, length):
        """Skips bytes with their padding to four bytes."""
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
    """Returns a colour from blue over white to red, so that small waves are visible, too."""
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
    # The picture has north at the top.
    lines = b"".join(b"\0" + b"".join(pixels[row * columns:(row + 1) * columns]) for row in reversed(range(rows)))
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    sys.stdout.buffer.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


if __name__ == "__main__":
    main()
