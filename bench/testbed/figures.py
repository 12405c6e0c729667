"""Draws the testbed's results as SVG: the parts of the run time (Fig. 5 of the paper), the use of nodes and the transferred bytes (Fig. 7)."""
import os

COLOURS = {"compute": "#3b6ea5", "I/O": "#d98032", "shuffling": "#7d9d43", "slowest": "#8c4a4a", "fastest": "#c9a0a0",
           "links": "#5d5d8c", "published": "#3b6ea5", "taken": "#d98032", "executed": "#7d9d43", "stored": "#8c4a4a",
           "in place": "#3b6ea5", "client": "#8c4a4a", "write": "#3b6ea5", "stage_out": "#7d9d43", "analysis": "#d98032", "overhead": "#8c4a4a",
           "reading": "#d98032"}
BAR, GAP, GROUP, HEIGHT, LEFT, TOP = 26, 4, 34, 260, 70, 50


def bars(title, unit, groups):
    """`groups`: [(name, [[(part, value), ...] stacked bar, ...])]"""
    top = max((sum(v for _, v in bar) for _, all_bars in groups for bar in all_bars), default=0) or 1
    x, out, parts = LEFT, [], []
    for name, all_bars in groups:
        start = x
        for bar in all_bars:
            y = TOP + HEIGHT
            for part, value in bar:
                height = value / top * HEIGHT
                y -= height
                out.append(f'<rect x="{x}" y="{y:.1f}" width="{BAR}" height="{height:.1f}" fill="{COLOURS[part]}">'
                           f"<title>{name}, {part}: {value:.2f} {unit}</title></rect>")
                if part not in parts:
                    parts.append(part)
            out.append(f'<text x="{x + BAR / 2}" y="{y - 4:.1f}" text-anchor="middle">{sum(v for _, v in bar):.3g}</text>')
            x += BAR + GAP
        out.append(f'<text x="{(start + x - GAP) / 2}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{name}</text>')
        x += GROUP
    for number in range(5):
        y = TOP + HEIGHT - HEIGHT * number / 4
        out.append(f'<line x1="{LEFT - 8}" x2="{x - GROUP}" y1="{y}" y2="{y}" stroke="#ccc" stroke-width="0.6"/>'
                   f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{top * number / 4:.3g}</text>')
    for number, part in enumerate(parts):
        at = LEFT + number * 110
        out.append(f'<rect x="{at}" y="{TOP + HEIGHT + 34}" width="12" height="12" fill="{COLOURS[part]}"/>'
                   f'<text x="{at + 17}" y="{TOP + HEIGHT + 44}">{part}</text>')
    width = max(x, LEFT + len(parts) * 110 + 20)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 60}" '
            f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="{LEFT}" y="24" font-size="14">{title} ({unit})</text>{"".join(out)}</svg>\n')


def write(directory, rows):
    fig5 = [(row["mode"], [[("compute", row["compute_s"]), ("I/O", row["io_s"]), ("shuffling", row["shuffle_s"])]])
            for row in rows]
    fig7 = [(row["mode"], [[("compute", row["compute_s"]), ("shuffling", row["shuffle_s"])],
                           [("slowest", row["slowest_s"])], [("fastest", row["fastest_s"])]])
            for row in rows if "slowest_s" in row]
    moved = [(row["mode"], [[("links", row["link_bytes"] / 1e6)]]) for row in rows]
    charts = {"fig5.svg": ("Run time over all tasks", "s", fig5), "fig7a.svg": ("Node use", "s", fig7),
              "fig7b.svg": ("Bytes over links", "MB", moved)}
    for name, (title, unit, groups) in charts.items():
        with open(os.path.join(directory, name), "w") as file:
            file.write(bars(title, unit, groups))
        print(f"wrote {os.path.join(directory, name)}")
