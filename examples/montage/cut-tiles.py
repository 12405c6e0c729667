#!/usr/bin/env python3
"""Cuts one real telescope frame into ten overlapping exposures, as a survey would have taken them.

usage: cut-tiles.py FRAME.fits OUT WIDTH HEIGHT

The frame is a near-infrared image of the field of PSR J1740-3052 by ISAAC at the VLT (2006-04-13). The
exposures form three scans of 4, 3 and 3; each scan is slightly rotated against the previous scan. Every
exposure is resampled on its own grid, and has its own sloping background and noise, which Montage
levels. Eleven pairs of exposures overlap.
"""

import math
import pathlib
import sys

import numpy as np
from astropy.io import fits
from astropy.wcs import WCS
from scipy.ndimage import map_coordinates

# Position of the first exposure of each scan, and the step between two exposures, in pixels of the frame.
SCANS = [
    {"x": 165.0, "y": 140.0, "turn_deg": 0.0, "count": 4},
    {"x": 488.3, "y": 252.0, "turn_deg": 3.0, "count": 3},
    {"x": 799.8, "y": 140.0, "turn_deg": 6.0, "count": 3},
]
STEP = 225.0
# Width of an exposure in pixels of the frame.
SPAN = 325.0
# Half ranges of the background's offset and slopes, and the noise's sigma, in counts.
OFFSET, SLOPE, NOISE = 60.0, 25.0, 4.0
SEED = 2013


def plane(reference, centre, matrix):
    """Tangential projection."""
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = ["RA---TAN", "DEC--TAN"]
    wcs.wcs.crval = reference
    wcs.wcs.crpix = centre
    wcs.wcs.cd = matrix
    return wcs


def exposure(pixels, sky, scale, place, turn, size, random):
    """Returns the image and the projection of one exposure."""
    width, height = size
    grid = scale * SPAN / width
    along, across = grid * math.cos(turn), grid * math.sin(turn)
    wcs = plane(
        [float(v) for v in sky.pixel_to_world_values(*place)],
        [(width + 1) / 2, (height + 1) / 2],
        [[-along, -across], [-across, along]],
    )
    y, x = np.mgrid[0:height, 0:width]
    source_x, source_y = sky.world_to_pixel_values(*wcs.pixel_to_world_values(x, y))
    image = map_coordinates(pixels, [source_y, source_x], order=1, mode="nearest")
    image += random.uniform(-OFFSET, OFFSET)
    image += random.uniform(-SLOPE, SLOPE) * (x / width - 0.5)
    image += random.uniform(-SLOPE, SLOPE) * (y / height - 0.5)
    image += random.normal(0.0, NOISE, image.shape)
    return image.astype(">f4"), wcs


def header(wcs, scan, row):
    """Returns the header of an exposure."""
    head = fits.Header()
    head["EQUINOX"] = 2000.0
    for axis in (1, 2):
        head[f"CTYPE{axis}"] = wcs.wcs.ctype[axis - 1]
        head[f"CRVAL{axis}"] = wcs.wcs.crval[axis - 1]
        head[f"CRPIX{axis}"] = wcs.wcs.crpix[axis - 1]
        for other in (1, 2):
            head[f"CD{axis}_{other}"] = wcs.wcs.cd[axis - 1, other - 1]
    head["ORIGIN"] = "cut from a VLT/ISAAC frame"
    head["SCAN"], head["ROW"] = scan, row
    return head


def main():
    frame_path, out, width, height = sys.argv[1:]
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    size = int(width), int(height)
    with fits.open(frame_path) as frame:
        head, pixels = frame[0].header, frame[0].data.astype("f8")
    sky = plane(
        [head["CRVAL1"], head["CRVAL2"]],
        [head["CRPIX1"], head["CRPIX2"]],
        [[head["CD1_1"], 0.0], [0.0, head["CD2_2"]]],
    )
    random = np.random.default_rng(SEED)
    for scan, hang in enumerate(SCANS):
        turn = math.radians(hang["turn_deg"])
        for row in range(hang["count"]):
            down = row * STEP
            place = hang["x"] + math.sin(turn) * down, hang["y"] + math.cos(turn) * down
            image, wcs = exposure(pixels, sky, abs(head["CD1_1"]), place, turn, size, random)
            path = out / f"isaac_s{scan}_{row:03d}.fits"
            fits.PrimaryHDU(image, header(wcs, scan, row)).writeto(path, overwrite=True)


if __name__ == "__main__":
    main()
