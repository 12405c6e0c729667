#!/usr/bin/env python3
"""Writes the reference of the gRPC protocols as Markdown, from the comments of the .proto files.

    scripts/api_reference.py OUTPUT
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROTOCOLS = ["tidemill.proto", "labels.proto"]
BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
FIELD = re.compile(r"(?:(optional|repeated) )?([\w.]+(?:<[\w., ]+>)?) (\w+) = (\d+);")
VALUE = re.compile(r"(\w+) = (\d+);")


class Block:
    def __init__(self, kind, name, comment):
        self.kind, self.name, self.comment, self.rows = kind, name, comment, []


def parse(name, text):
    """Returns the package, the comment of the file, and its services, messages and enumerations in order."""
    package, head, blocks, open_blocks, comment = "", None, [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        code, _, trailing = line.strip().partition("//")
        code, trailing = code.strip(), trailing.strip()
        if not code:
            comment = comment + [trailing] if trailing else []
            continue
        above, comment = " ".join(comment), []
        remark = " ".join(part for part in (above, trailing) if part)
        if code.startswith("syntax"):
            head = above
        elif code.startswith("package "):
            package = code[len("package "):-1]
        elif found := BLOCK.fullmatch(code):
            kind, named, closed = found.groups()
            block = Block(kind, named, remark)
            if kind != "oneof":
                blocks.append(block)
            if not closed:
                open_blocks.append(block)
        elif code == "}":
            open_blocks.pop()
        elif found := CALL.fullmatch(code):
            open_blocks[-1].rows.append((*found.groups(), remark))
        elif open_blocks and open_blocks[-1].kind == "enum" and (found := VALUE.fullmatch(code)):
            open_blocks[-1].rows.append((*found.groups(), remark))
        elif open_blocks and (found := FIELD.fullmatch(code)):
            label, kind, named, tag = found.groups()
            choice = open_blocks[-1].name if open_blocks[-1].kind == "oneof" else ""
            message = next(block for block in reversed(open_blocks) if block.kind == "message")
            message.rows.append((tag, named, label or "", kind, choice, remark))
        elif not code.startswith(("reserved ", "option ", "import ")):
            sys.exit(f"{name}:{number}: this line is not known: {code}")
    return package, head or "", blocks


def prose(text):
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]|{}#~])", r"\\\1", part) for part in parts[::2]]
    text = "`".join(parts)
    return re.sub(r"(?<!\S)\(?docs/([\w/-]+)\.md", lambda found: found.group().replace(f"docs/{found.group(1)}.md", f"[{found.group(1)}](../{found.group(1)}.md)"), text)


def capital(text):
    return text[:1].upper() + text[1:]


class Page:
    def __init__(self):
        self.lines = []

    def add(self, *lines):
        self.lines += [*lines, ""]

    def table(self, header, rows):
        self.add("| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(row) + " |" for row in rows))


def linked(names, prefix, kind):
    """Returns a type with links to the messages and enumerations of this protocol."""
    return re.sub(r"\w+", lambda found: f"[{found.group()}](#{prefix}{found.group().lower()})" if found.group() in names else found.group(), kind).replace("<", "&lt;").replace(">", "&gt;")


def protocol(page, name):
    with open(os.path.join(ROOT, "crates/wire/proto", name), encoding="utf-8") as file:
        package, head, blocks = parse(name, file.read())
    prefix = package.replace(".", "") + "-"
    names = {block.name for block in blocks if block.kind != "service"}
    kind = lambda text: linked(names, prefix, text)
    page.add(f"## Package {package}")
    page.add(f"`crates/wire/proto/{name}`. {prose(head)}")
    for block in blocks:
        anchor = f"{prefix}{block.name.lower()}"
        page.add(f'### {capital(block.kind)} {block.name} {{#{anchor}}}')
        page.add(prose(capital(block.comment)))
        if block.kind == "service":
            stream = lambda text: "stream of " if text else ""
            page.table(["call", "request", "answer", "meaning"], [(f"`{call}`", stream(first) + kind(request), stream(second) + kind(reply), prose(remark)) for call, first, request, second, reply, remark in block.rows])
        elif block.kind == "enum":
            page.table(["number", "value", "meaning"], [(number, f"`{value}`", prose(remark)) for value, number, remark in block.rows])
        elif block.rows:
            page.table(["number", "field", "type", "meaning"], [(number, f"`{field}`", " ".join(part for part in (label, kind(of)) if part) + (f", one of `{choice}`" if choice else ""), prose(remark)) for number, field, label, of, choice, remark in block.rows])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    page = Page()
    page.add("# Protocol (gRPC)")
    page.add("This page lists the services, calls, messages and fields of the protocols. [Network](../network.md) describes addresses, certificates and tokens. A repeated field is a list. An optional field can be absent.")
    for name in PROTOCOLS:
        protocol(page, name)
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(page.lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
