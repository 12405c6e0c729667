#!/usr/bin/env python3
"""Checks text and structure against budgets that only fall.

    scripts/tidy.py [--list CHECK] [--write]

Each check counts something that this project wants less of: a construction of sentences, a replaced word, a long table cell, SQL outside
of the metadata layer. `scripts/tidy-budgets.json` has the count that is allowed: a higher count fails. `--write` lowers the budgets to
the counts of now and never raises one. `--list CHECK` prints the places of one check, such as `docs/what` or `sql`.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGETS = os.path.join(ROOT, "scripts/tidy-budgets.json")

PERSONS = r"(?:users?|people|person|persons|scientists?|engineers?|administrators?|operators?|owners?|authors?|readers?|writers?|attackers?|callers?|somebody|someone|anyone|anybody|nobody|everybody|those|one)"

# Constructions of sentences: CONTRIBUTING.md has the rules.
SENTENCES = {
    "who": re.compile(r"\b[Ww]ho(?:ever)?\b"),
    "what": re.compile(r"\b[Ww]hat (?:is|was|are|it|they|has|had|others|comes|lies|goes|a|the|no|can)\b"),
    "of-which": re.compile(r"\bof (?:which|whom|what)\b"),
    "is-told": re.compile(r"\b(?:is|are|was|were|be|been) (?:told|said)\b"),
    "is-there": re.compile(r"\b(?:is|are|was|were) there\b(?! (?:a|an|any|no)\b)"),
    "nature": re.compile(r"\b(?:lies|goes|gone|comes|away)\b"),
    "anew": re.compile(r"\b(?:anew|given up|gives up|meanwhile|beside|behind|reckoned|had)\b"),
}
AFTER_PERSON = re.compile(rf"\b{PERSONS},? who(?:ever)?\b")
QUESTION = re.compile(r"\?\s*$")

# Words that the glossary replaces.
WORDS = ["folder", "element", "bridge", "room", "warehouse", "mend", "damaged", "recipe", "asleep", "reckoned", "medium"]

SENTENCE_WORDS_MAX = 30
CELL_WORDS_MAX = 12
SUBJECT_MAX = 72
# Subjects are checked from here on.
SUBJECTS_SINCE = "be6982e8"


def files(*names):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, name))]


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def prose(text):
    """The sentences of Markdown or of a comment, with the line on which each begins; code, quotes, links' targets and tables are left out."""
    text = re.sub(r"```.*?(?:```|\Z)", lambda cut: "\n" * cut.group().count("\n"), text, flags=re.S)
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    text = re.sub(r'"[^"\n]*"|“[^”\n]*”', "a quote", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    block, begin = [], 0
    lines = text.split("\n") + [""]
    for number, line in enumerate(lines, 1):
        ends = not line.strip() or line.lstrip().startswith(("|", "#", "- ", "* ")) or re.match(r"\s*\d+\. ", line)
        if ends and block:
            yield from sentences(" ".join(block), begin)
            block = []
        if line.strip() and not line.lstrip().startswith("|"):
            if not block:
                begin = number
            block.append(re.sub(r"^\s*(?:#+|[-*]|\d+\.) ", "", line).strip())


def sentences(text, line):
    for sentence in re.split(r"(?<=[.!?:;])\s+", text):
        if len(sentence.split()) > 2:
            yield line, sentence


def cells(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            for cell in line.strip().strip("|").split("|"):
                yield number, cell.strip()


COMMENT = re.compile(r"^\s*//[/!]?( ?.*)$")


def comments(text):
    """Comments of Rust and of protocol files as Markdown, each line where it was."""
    return "\n".join(found.group(1)[1:] if (found := COMMENT.match(line)) else "" for line in text.split("\n"))


def trailing(text):
    """As `comments`, with comments behind code."""
    return "\n".join(line.split("//", 1)[1].lstrip("/!") if "//" in line and "://" not in line else "" for line in text.split("\n"))


ERRORS = re.compile(r'#\[error\(\s*"((?:[^"\\]|\\.)*)"|\b(?:bail|ensure|anyhow)!\(\s*(?:[^"]*?,\s*)?"((?:[^"\\]|\\.)*)"')
TEST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")


def errors(text):
    return [(text.count("\n", 0, found.start()) + 1, found.group(1) or found.group(2)) for found in ERRORS.finditer(text)]


def texts():
    """Each kind of text: its sentences as (place, sentence)."""
    found = collections.defaultdict(list)
    for name in files("*.md"):
        kind = "decisions" if name.startswith("docs/decisions/") else "changelog" if name == "CHANGELOG.md" else "docs"
        text = read(name)
        found[kind] += [(f"{name}:{line}", sentence) for line, sentence in prose(text)]
        for line, cell in cells(text):
            found[kind] += [(f"{name}:{line}", sentence) for line, sentence in sentences(re.sub(r"`[^`]*`", "`code`", cell), line)]
    for name in files("crates/*.rs", "tests/*.rs", "fuzz/*.rs", "bench/*.rs"):
        text = read(name)
        kind = "help" if name.startswith("crates/cli/src/command") or name == "crates/cli/src/args.rs" else "comments"
        found[kind] += [(f"{name}:{line}", sentence) for line, sentence in prose(comments(text))]
        found["errors"] += [(f"{name}:{line}", sentence) for line, sentence in errors(text)]
        for test in TEST.finditer(text):
            line = text.count("\n", 0, test.start()) + 1
            found["tests"].append((f"{name}:{line}", test.group(1).replace("_", " ")))
    for name in files("crates/wire/proto/*.proto"):
        found["protocol"] += [(f"{name}:{line}", sentence) for line, sentence in prose(trailing(read(name)))]
    return found


def matches(rule, sentence):
    if QUESTION.search(sentence):
        return False
    if rule == "who":
        sentence = AFTER_PERSON.sub("", sentence)
    return SENTENCES[rule].search(sentence)


def check_texts(found):
    for kind, all_of in texts().items():
        for place, sentence in all_of:
            for rule in SENTENCES:
                if matches(rule, sentence):
                    found[f"{kind}/{rule}"].append(f"{place}: {sentence[:140]}")
            if kind in ("docs", "help", "errors", "protocol"):
                for word in WORDS:
                    if re.search(rf"\b{word}s?\b", sentence, re.I):
                        found[f"{kind}/word-{word}"].append(f"{place}: {sentence[:140]}")
            if kind == "docs" and len(sentence.split()) > SENTENCE_WORDS_MAX:
                found["docs/long-sentence"].append(f"{place}: {sentence[:140]}")
    for name in files("*.md"):
        if name.startswith("docs/decisions/"):
            continue
        for line, cell in cells(read(name)):
            if len(cell.split()) > CELL_WORDS_MAX:
                found["docs/long-cell"].append(f"{name}:{line}: {cell[:140]}")


def anchor(heading):
    heading = re.sub(r"`|\[|\]\([^)]*\)", "", heading.lstrip("#"))
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def check_links(found):
    pages = {name: re.sub(r"```.*?(?:```|\Z)", "", read(name), flags=re.S) for name in files("*.md")}
    anchors = {name: {anchor(line) for line in text.split("\n") if line.startswith("#")} for name, text in pages.items()}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, heading = target.partition("#")
            page = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            # `make book` writes these pages.
            if page.startswith("docs/reference/"):
                continue
            if not os.path.exists(os.path.join(ROOT, page)) or heading and heading not in anchors.get(page, {heading}):
                found["links"].append(f"{name}: {target}")
    summary = read("docs/SUMMARY.md")
    for name in pages:
        page = os.path.relpath(name, "docs")
        if name.startswith("docs/") and page != "SUMMARY.md" and f"]({page})" not in summary:
            found["links"].append(f"docs/SUMMARY.md: no line for {page}")


def sources(text):
    """Returns the paths of source files in back-ticks, with braces expanded."""
    for path in re.findall(r"`([a-z_-]+/[\w/{},-]+(?:\.rs|/)?)`", text):
        before, braces, after = re.match(r"([^{]*)(?:\{([^}]*)\})?(.*)", path).groups()
        yield from (before + one + after for one in (braces or "").split(","))


def check_sources(found):
    """Pages that lead to sources name paths that exist: ARCHITECTURE.md below `crates/`, the tables of limits also without `src/`."""
    crates = os.listdir(os.path.join(ROOT, "crates"))
    for name in ("ARCHITECTURE.md", "docs/limits.md", "docs/limits-jobs.md"):
        for path in sources(read(name)):
            crate, rest = path.split("/", 1)
            places = [f"crates/{path}", f"crates/{crate}/src/{rest}"]
            if crate in crates and not any(os.path.exists(os.path.join(ROOT, place)) for place in places):
                found["sources"].append(f"{name}: {path}")
        for constant, path in re.findall(r"`([A-Z][A-Z_]+)`, `([a-z-]+/[\w/]+\.rs)`", read(name)):
            crate, rest = path.split("/", 1)
            place = os.path.join(ROOT, f"crates/{crate}/src/{rest}")
            if not os.path.exists(place) or not re.search(rf"\b{constant}\b", read(f"crates/{crate}/src/{rest}")):
                found["sources"].append(f"{name}: {constant}, {path}")


RECORD_LINES = {
    "status": re.compile(r"^Status: (?:accepted\b|superseded by \[\d{4}\]\()", re.M),
    "date": re.compile(r"^Date: \d{4}-\d{2}$", re.M),
}
RECORD_HEADINGS = ["Context", "Decision", "Consequences", "Alternatives"]


def check_decisions(found):
    """Decision records follow the template of `docs/decisions/README.md`, are numbered without gaps and stand in its index."""
    index = read("docs/decisions/README.md")
    for number, name in enumerate(sorted(files("docs/decisions/[0-9]*.md")), 1):
        text, base = read(name), os.path.basename(name)
        lacks = [part for part, pattern in RECORD_LINES.items() if not pattern.search(text)]
        if re.findall(r"^## (.+)$", text, re.M) != RECORD_HEADINGS:
            lacks.append(f"headings {', '.join(RECORD_HEADINGS)}")
        if not base.startswith(f"{number:04}-") or not text.startswith(f"# {base[:4]}: "):
            lacks.append(f"number {number:04}")
        if f"]({base})" not in index:
            lacks.append("line in the index")
        found["decisions"] += [f"{name}: no {part}" for part in lacks]


def check_subjects(found):
    listed = subprocess.run(["git", "log", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"], cwd=ROOT, capture_output=True, text=True)
    # A shallow clone does not have the commit.
    for line in listed.stdout.splitlines() if listed.returncode == 0 else []:
        subject = line.split(" ", 1)[1]
        if len(subject) > SUBJECT_MAX or not re.match(r"[a-z0-9/_.,+ -]+: [a-z]", subject) or re.search(r";|\b(who|what|which)\b", subject):
            found["subjects"].append(line)


# An indented `type` is an associated type, whose name the trait decides.
TYPE = re.compile(r"^(?:\s*(?:pub(?:\([a-z ]+\))? )?(?:struct|enum|trait)|(?:pub(?:\([a-z ]+\))? )?type) (\w+)", re.M)
# Tables of a statement that writes: each table of the server has one file with such statements.
WRITTEN = re.compile(r'"\\?\s*(?:INSERT(?: OR \w+)? INTO|UPDATE(?: OR \w+)?|DELETE FROM|REPLACE INTO) ([a-z_]+)')
SQL = re.compile(r'"\\?\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|REPLACE)\b')


def check_structure(found):
    names = collections.defaultdict(list)
    writers = collections.defaultdict(set)
    for name in files("crates/*/src/*.rs"):
        if "/tests/" in name or name.endswith("/tests.rs"):
            continue
        text = read(name)
        text = re.split(r"^\s*#\[cfg\(test\)\]\s*\n\s*mod ", text, flags=re.M)[0]
        for defined in TYPE.finditer(text):
            names[defined.group(1)].append(name)
        if name.startswith("crates/server/src/") and not name.startswith("crates/meta/src/"):
            found["sql"] += [f"{name}:{text.count(chr(10), 0, one.start()) + 1}" for one in SQL.finditer(text)]
            if re.search(r"^use rusqlite|\brusqlite::", text, re.M):
                found["rusqlite"].append(name)
        if name == "crates/meta/src/schema.rs":
            found["tables"] += re.findall(r"CREATE TABLE (\w+)", text)
        elif name.startswith("crates/meta/src/"):
            for written in WRITTEN.finditer(re.sub(r"^\s*//.*$", "", text, flags=re.M)):
                # The table of replicas has one module, with a file for each reason.
                writers[written.group(1)].add(re.sub(r"/replicas/\w+\.rs$", "/replicas", name))
        if re.search(r"^\s*(?:pub(?:\([a-z ]+\))? )?const \w*PERIOD\w*: Duration", text, re.M):
            found["period"].append(name)
    found["writers"] += [f"{table}: {', '.join(sorted(files))}" for table, files in sorted(writers.items()) if len(files) > 1]
    for name, places in names.items():
        if len(places) > 2 and name not in ("Args", "Error", "Result"):
            found["type-names"].append(f"{name}: {', '.join(places)}")


def check_lines(found):
    counted = subprocess.run([os.path.join(ROOT, "scripts/lines.sh")], capture_output=True, text=True, check=True)
    for line in counted.stdout.splitlines():
        count, name = line.split(None, 1)
        found[f"lines/{name}"] = range(int(count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="CHECK", help="print the places of one check")
    parser.add_argument("--write", action="store_true", help="lower budgets to the counts of now")
    args = parser.parse_args()
    found = collections.defaultdict(list)
    for check in (check_texts, check_links, check_sources, check_decisions, check_subjects, check_structure, check_lines):
        check(found)
    if args.list:
        for place in found.get(args.list, []):
            print(place)
        return 0
    budgets = {}
    if os.path.exists(BUDGETS):
        with open(BUDGETS) as file:
            budgets = json.load(file)
    counts = {check: len(found[check]) for check in sorted({*found, *budgets})}
    over = [check for check, count in counts.items() if count > budgets.get(check, count if not budgets else 0)]
    under = [check for check, count in counts.items() if count < budgets.get(check, 0)]
    for check in over:
        print(f"tidy: {check}: {counts[check]}, and {budgets.get(check, 0)} are allowed; see them: scripts/tidy.py --list {check}", file=sys.stderr)
    if args.write:
        kept = {check: min(count, budgets.get(check, count)) for check, count in counts.items()}
        with open(BUDGETS, "w") as file:
            json.dump({check: count for check, count in kept.items() if count}, file, indent=0)
            file.write("\n")
    elif under:
        print(f"tidy: {len(under)} counts are below their budgets; keep the gain: scripts/tidy.py --write")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
