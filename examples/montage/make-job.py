#!/usr/bin/env python3
"""Writes the job file of a mosaic.

usage: make-job.py DATA WORKDIR

  DATA      directory of get-data.sh
  WORKDIR   directory of the cluster for the files of DATA/images and DATA/plan, such as /montage

Writes DATA/montage.toml, the job file, and DATA/commands.tsv, the same tasks for offline.sh and
check-inputs.py. The columns of commands.tsv are name, inputs, outputs and command, with spaces between
words.
"""

import pathlib
import sys

import ipac


def task(name, command, inputs, outputs):
    """Returns a task; its kernel is the first word of its command."""
    return {"name": name, "command": command.split(), "in": inputs, "out": outputs}


def project(image):
    return task(
        f"project.{image}",
        f"mProjectPP -X {image}.fits p{image}.fits region.hdr",
        [f"{image}.fits", "region.hdr"],
        [f"p{image}.fits", f"p{image}_area.fits"],
    )


def difference(fit, plus, minus):
    pair = fit.removeprefix("fit.").removesuffix(".txt")
    diff = f"diff.{pair}.fits"
    return task(
        f"difference.{pair}",
        f"mDiffFit -s {fit} {plus}.fits {minus}.fits {diff} region.hdr",
        [f"{plus}.fits", f"{plus}_area.fits", f"{minus}.fits", f"{minus}_area.fits", "region.hdr"],
        [diff, fit],
    )


def background(image):
    return task(
        f"background.{image}",
        f"mBackground -t p{image}.fits c{image}.fits pimages.tbl corrections.tbl",
        [f"p{image}.fits", f"p{image}_area.fits", "pimages.tbl", "corrections.tbl"],
        [f"c{image}.fits", f"c{image}_area.fits"],
    )


def mosaic(data):
    """Returns all tasks of the mosaic, in a possible order of execution."""
    images = sorted(path.stem for path in (data / "images").glob("*.fits"))
    projected = {
        int(row["cntr"]): row["file"].removesuffix(".fits")
        for row in ipac.rows(data / "plan/pimages.tbl")
    }
    fits = [
        (row["stat"], projected[int(row["cntr1"])], projected[int(row["cntr2"])])
        for row in ipac.rows(data / "plan/fitlist.tbl")
    ]
    levelled = [f"c{image}.fits" for image in images]
    areas = [f"c{image}_area.fits" for image in images]
    return [
        *(project(image) for image in images),
        *(difference(*fit) for fit in fits),
        task(
            "concatenate-fits",
            "mConcatFit fitlist.tbl fits.tbl .",
            ["fitlist.tbl", *(fit for fit, _, _ in fits)],
            ["fits.tbl"],
        ),
        task(
            "model-background",
            "mBgModel -i 10000 pimages.tbl fits.tbl corrections.tbl",
            ["pimages.tbl", "fits.tbl"],
            ["corrections.tbl"],
        ),
        *(background(image) for image in images),
        task(
            "list-images",
            "mImgtbl -t cimages.tbl . newcimages.tbl",
            ["cimages.tbl", *levelled],
            ["newcimages.tbl"],
        ),
        task(
            "add",
            "mAdd newcimages.tbl region.hdr mosaic.fits",
            ["newcimages.tbl", "region.hdr", *levelled, *areas],
            ["mosaic.fits", "mosaic_area.fits"],
        ),
        task(
            "view",
            "mViewer -gray mosaic.fits 1% 99.8% gaussian-log -out mosaic.png",
            ["mosaic.fits"],
            ["mosaic.png"],
        ),
    ]


def words(values):
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def job_file(tasks, workdir):
    """Returns the tasks as a job file."""
    tables = [
        f'\n[[task]]\nname = "{t["name"]}"\nkernel = "{t["command"][0]}"\n'
        f'args = {words(t["command"][1:])}\n'
        f'input = {words(t["in"])}\n'
        f'output = {words(t["out"])}\n'
        for t in tasks
    ]
    return f'[job]\nname = "montage"\nworkdir = "{workdir}"\n' + "".join(tables)


def main():
    if len(sys.argv) != 3 or not sys.argv[2].startswith("/"):
        sys.exit(__doc__.split("\n\n")[1])
    data, workdir = pathlib.Path(sys.argv[1]), sys.argv[2]
    tasks = mosaic(data)
    (data / "montage.toml").write_text(job_file(tasks, workdir))
    lines = [
        "\t".join([t["name"], *(" ".join(t[key]) for key in ("in", "out", "command"))])
        for t in tasks
    ]
    (data / "commands.tsv").write_text("\n".join(lines) + "\n")
    kernels = {t["command"][0] for t in tasks}
    print(f"montage: {data / 'montage.toml'}: {len(tasks)} tasks, {len(kernels)} kernels")


if __name__ == "__main__":
    main()
