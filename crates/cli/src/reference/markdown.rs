//! Markdown from the texts of the help.

use std::fmt::Write as _;

/// Path from a page below `docs/reference/` to `docs/`.
#[derive(Clone, Copy)]
pub(super) struct ToDocs(pub(super) &'static str);

/// Characters around words that are no part of flags, names and paths.
const AROUND: [char; 10] = ['(', ')', '"', '\'', '.', ',', ';', ':', '?', '!'];

impl ToDocs {
    /// Returns a text of the help as Markdown: flags, variables and attributes as code, and names of pages as links.
    pub(super) fn prose(self, text: &str) -> String {
        let parts = text
            .split('`')
            .enumerate()
            .map(|(index, part)| match index % 2 {
                0 => self.words(part),
                _ => format!("`{part}`"),
            });
        parts.collect()
    }

    fn words(self, text: &str) -> String {
        let joined: Vec<String> = text.split(' ').map(|word| self.word(word)).collect();
        joined.join(" ")
    }

    fn word(self, word: &str) -> String {
        let start = word.trim_start_matches(AROUND);
        let core = start.trim_end_matches(AROUND);
        let (before, after) = (&word[..word.len() - start.len()], &start[core.len()..]);
        let page = core
            .strip_prefix("docs/")
            .filter(|page| page.ends_with(".md"));
        let shown = match page {
            Some(page) => format!("[{}]({}{page})", page.trim_end_matches(".md"), self.0),
            None if is_code(core) => format!("`{core}`"),
            None => escaped(core),
        };
        format!("{}{shown}{}", escaped(before), escaped(after))
    }

    /// Returns the text after the options of a command: examples and commands as code blocks, all else as paragraphs.
    pub(super) fn notes(self, text: &str, heading: &str) -> String {
        let (mut out, mut code, mut lines) = (String::new(), Vec::new(), Vec::new());
        // The empty line ends the last block.
        for line in text.lines().chain([""]) {
            if let Some(line) = line.strip_prefix("  ") {
                self.end_paragraph(&mut out, &mut lines, heading);
                code.push(line);
                continue;
            }
            end_code(&mut out, &mut code);
            match line {
                "" => self.end_paragraph(&mut out, &mut lines, heading),
                line => lines.push(line),
            }
        }
        out
    }

    fn end_paragraph(self, out: &mut String, lines: &mut Vec<&str>, heading: &str) {
        let paragraph = std::mem::take(lines).join(" ");
        let _ = match paragraph.as_str() {
            "" => Ok(()),
            "Examples:" => write!(out, "{heading} Examples\n\n"),
            text => write!(out, "{}\n\n", self.prose(text)),
        };
    }
}

fn end_code(out: &mut String, code: &mut Vec<&str>) {
    if !code.is_empty() {
        let _ = write!(out, "```text\n{}\n```\n\n", std::mem::take(code).join("\n"));
    }
}

fn is_code(word: &str) -> bool {
    let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
    let is_flag =
        flag.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()));
    is_flag
        || [
            "TIDEMILL_",
            "$TIDEMILL_",
            "user.tidemill.",
            "/dev/",
            "/proc/",
        ]
        .iter()
        .any(|start| word.starts_with(start))
}

/// Escapes the characters that Markdown interprets.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\*_<>[]|#~{}".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns text as code in a cell of a table.
pub(super) fn code(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("`{}`", text.replace('|', "\\|")),
    }
}

/// Writes a table.
pub(super) fn table<const N: usize>(out: &mut String, header: [&str; N], rows: &[[String; N]]) {
    let _ = writeln!(out, "| {} |\n|{}", header.join(" | "), "---|".repeat(N));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_marks_flags_and_links_pages() {
        let docs = ToDocs("../");
        let text = "Path of <user> (with --all); see docs/find.md, `a*b` and a_b.";
        let expected =
            "Path of \\<user\\> (with `--all`); see [find](../find.md), `a*b` and a\\_b.";
        assert_eq!(docs.prose(text), expected);
    }

    #[test]
    fn notes_have_examples_in_code_blocks() {
        let text = "Examples:\n  tidemill ls\n  tidemill cat a\n\nTwo\nlines.";
        let expected = "## Examples\n\n```text\ntidemill ls\ntidemill cat a\n```\n\nTwo lines.\n\n";
        assert_eq!(ToDocs("").notes(text, "##"), expected);
    }
}
