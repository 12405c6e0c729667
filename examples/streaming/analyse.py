#!/usr/bin/env python3
"""Prints the lowest, highest and mean surface of each record of a model's file, in one pass: `analyse.py SIDE < FILE`."""
import array
import math
import sys

size = 4 * int(sys.argv[1]) ** 2
number = 0
while record := sys.stdin.buffer.read(size):
    values = array.array("f", record)
    print(f"{number} {min(values):.6f} {max(values):.6f} {math.fsum(values) / len(values):.9f}", flush=True)
    number += 1
