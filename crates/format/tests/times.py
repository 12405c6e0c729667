"""Writes times.tsv: units, calendar, value and the day by cftime."""

import pathlib
import random

import cftime

chance = random.Random(21)
lines = []
for calendar in ("standard", "gregorian", "proleptic_gregorian", "julian", "noleap", "365_day", "all_leap", "366_day", "360_day"):
    for units, scale in (
        ("days since 1850-01-01", 1),
        ("days since 0001-01-01 00:00:00", 1),
        ("hours since 1900-01-01 06:00:0.0", 24),
        ("minutes since 1582-10-04", 1440),
        ("seconds since 1970-01-01T00:00:00Z", 86400),
        ("days since 2000-02-28 12:30", 1),
        ("hours since 1990-1-1 00:00:00 +01:00", 24),
    ):
        for _ in range(9):
            value = chance.randint(-40_000, 90_000) * scale + chance.choice([0, 1, 3]) * scale / 4
            try:
                date = cftime.num2date(value, units, calendar, has_year_zero=True)
            except ValueError:
                continue
            if date.year > 1:
                lines.append(f"{units}\t{calendar}\t{value}\t{date.year:04}-{date.month:02}-{date.day:02}\n")
pathlib.Path(__file__).with_name("times.tsv").write_text("".join(lines))
