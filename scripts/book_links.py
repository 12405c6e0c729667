#!/usr/bin/env python3
"""Copies the files of the repository to which pages of the built book link into the book, and checks that all links resolve.

    scripts/book_links.py DIRECTORY
"""
import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Directory of the copies in the book.
FILES = "files"
# These pages repeat others, with other paths.
REPEATED = ("print.html", "toc.html", "404.html")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.text, self.ids, self.links = text, set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name == "href" and tag == "a" and value and not urllib.parse.urlsplit(value).scheme:
                self.links.add(value)


def pages_of(top):
    found = {}
    for directory, _, names in os.walk(top):
        for name in names:
            if name.endswith(".html") and name not in REPEATED:
                path = os.path.normpath(os.path.join(directory, name))
                with open(path, encoding="utf-8") as file:
                    found[path] = Page(file.read())
    return found


def target(path, link):
    link = urllib.parse.unquote(link.partition("#")[0])
    return os.path.normpath(os.path.join(os.path.dirname(path), link)) if link else path


def source(top, path, link):
    """Returns the path in the repository of a link that leads out of the book; `None` if it stays there or leads nowhere."""
    inside = os.path.relpath(target(path, link), top)
    if not inside.startswith("../"):
        return None
    named = inside[len("../"):]
    # mdbook takes each `.md` for a page.
    for name in (re.sub(r"\.html$", ".md", named), named):
        if os.path.exists(os.path.join(ROOT, name)):
            return name
    return None


def copy(top, name):
    listed = subprocess.run(["git", "ls-files", "--", name], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.splitlines():
        to = os.path.join(top, FILES, file)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, file), to)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    top = os.path.normpath(sys.argv[1])
    for path, page in pages_of(top).items():
        text = page.text
        for link in page.links:
            to = link
            if name := source(top, path, link):
                copy(top, name)
                to = os.path.relpath(os.path.join(top, FILES, name), os.path.dirname(path))
            elif not os.path.exists(target(path, link)):
                # mdbook names the page of a README.md so.
                to = re.sub(r"(^|/)README\.html", r"\1index.html", link)
            text = text.replace(f'href="{link}"', f'href="{to}"')
        if text != page.text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    pages, broken = pages_of(top), []
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            found, heading = target(path, link), urllib.parse.unquote(link.partition("#")[2])
            if not os.path.exists(found) or heading and found in pages and heading not in pages[found].ids:
                broken.append(f"{os.path.relpath(path, top)}: {link}")
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
