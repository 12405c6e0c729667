//! Tests of the documentation: every command of a code block parses, flags and keys in the text exist, and the book has every page.

use super::pages as reference_pages;
use crate::args::{Cli, command_line};
use crate::config::keys::keys;
use clap::{Command, CommandFactory};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Values for placeholders, in the order of the attempts.
const DUMMIES: [&str; 8] = ["x", "1", "/x", "x:/x", "1s", "1MiB", "unix:/x", "1.2.3.4:5"];
/// Maximum number of placeholders of a command that get different values.
const PLACEHOLDERS_MAX: usize = 3;
/// Words before a command that run it.
const RUNNERS: [&str; 14] = [
    "$", "sudo", "env", "time", "exec", "nohup", "if", "then", "else", "do", "while", "until", "!",
    "setsid",
];
/// Code that is no shell.
const OTHER_CODE: [&str; 9] = [
    "toml",
    "json",
    "python",
    "libconfig",
    "c",
    "rust",
    "xml",
    "diff",
    "cpp",
];
/// Flags of other programs: of kernels, of the simulation, of Cargo and of an example of the planner.
const FOREIGN: [&str; 14] = [
    "batches",
    "bit-rot",
    "bursts",
    "charts",
    "drains",
    "hooks",
    "keep-going",
    "labels",
    "lines",
    "multi-writer",
    "no-default-features",
    "offsets",
    "rules",
    "suspends",
];
/// Texts that begin with the program's name and are no commands: contexts of keys.
const CONTEXTS: [&str; 3] = [
    "tidemill 2026-11-25 ",
    "tidemill credential ",
    "tidemill encrypt",
];
/// Names of users in examples, which this host does not have.
const USERS: [&str; 3] = ["alice", "bob", "nagios"];
/// Sections of job files, whose settings the schema has.
const SCHEMA: &str = include_str!("../../../../examples/job.schema.json");

/// Contents of the book.
const SUMMARY: &str = include_str!("../../../../docs/SUMMARY.md");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages with their names.
fn pages() -> Vec<(String, String)> {
    let root = root();
    let mut found = vec![root.join("README.md")];
    let below = |directory: &str| {
        let entries = std::fs::read_dir(root.join(directory))
            .into_iter()
            .flatten();
        entries
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    for directory in ["docs", "docs/papers", "docs/tutorials"] {
        found.extend(below(directory));
    }
    found.extend(below("examples").iter().map(|path| path.join("README.md")));
    found.retain(|path| path.extension().is_some_and(|end| end == "md") && path.exists());
    found.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    found.into_iter().map(read).collect()
}

/// Splits a page into the lines of its code blocks for a shell, with joined continuations, and its prose.
fn parted(text: &str) -> (Vec<String>, String) {
    let (mut code, mut prose) = (Vec::new(), String::new());
    let (mut fence, mut shell, mut console) = (None, false, false);
    let mut joined = String::new();
    for line in text.lines() {
        let start = line.trim_start();
        let ticks = start.len() - start.trim_start_matches('`').len();
        match fence {
            None if ticks >= 3 => {
                fence = Some(ticks);
                shell = !OTHER_CODE.contains(&start[ticks..].trim());
                console = start[ticks..].trim() == "console";
            }
            None => {
                prose.push_str(line);
                prose.push('\n');
            }
            Some(open) if ticks >= open => fence = None,
            // All other lines of a console are output.
            Some(_) if console && !line.starts_with(['$', '>']) => {}
            Some(_) if shell => match line.strip_suffix('\\') {
                Some(part) => joined.push_str(part),
                None => code.push(std::mem::take(&mut joined) + line),
            },
            Some(_) => {}
        }
    }
    (code, prose)
}

/// Returns the index after the parenthesis that closes the one before `start`.
fn closing(text: &[char], start: usize) -> usize {
    let mut depth = 1;
    for (index, c) in text.iter().enumerate().skip(start) {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        if depth == 0 {
            return index + 1;
        }
    }
    text.len()
}

/// The words of shell commands.
#[derive(Default)]
struct Shell {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
}

impl Shell {
    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        self.commands.push(std::mem::take(&mut self.words));
    }

    fn add(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    /// Takes a quoted text; returns the index after it.
    fn quoted(&mut self, text: &[char], start: usize) -> usize {
        let quote = text[start];
        self.word.get_or_insert_default();
        let mut at = start + 1;
        while at < text.len() && text[at] != quote {
            if quote == '"' && text[at] == '$' && text.get(at + 1) == Some(&'(') {
                at = self.substituted(text, at);
                continue;
            }
            at += usize::from(quote == '"' && text[at] == '\\');
            self.add(text.get(at).copied().unwrap_or(quote));
            at += 1;
        }
        at + 1
    }

    /// Takes `$(…)`; returns the index after it.
    fn substituted(&mut self, text: &[char], start: usize) -> usize {
        let end = closing(text, start + 2);
        let inner: String = text[start + 2..end - 1].iter().collect();
        self.commands.extend(split(&inner));
        self.word.get_or_insert_default().push_str("$X");
        end
    }

    /// Skips a redirection; returns the index after it.
    fn redirected(&mut self, text: &[char], start: usize) -> usize {
        match &self.word {
            Some(word) if word.chars().all(|c| c.is_ascii_digit()) => self.word = None,
            _ => self.end_word(),
        }
        let skip = |from: usize, which: &dyn Fn(char) -> bool| {
            from + text[from..].iter().take_while(|c| which(**c)).count()
        };
        let at = skip(start, &|c| "<>&".contains(c));
        let at = skip(at, &|c| c == ' ');
        skip(at, &|c| !" ;|&)".contains(c))
    }
}

/// Returns the length of a placeholder such as `<user>`.
fn placeholder(text: &[char]) -> Option<usize> {
    let end = text.iter().position(|c| *c == '>')?;
    let inner = &text[1..end];
    let is_name = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    (!inner.is_empty() && inner.iter().all(is_name) && inner[0] != ' ').then_some(end + 1)
}

/// Returns the commands of a line of a shell, without quotes, redirections and comments.
fn split(line: &str) -> Vec<Vec<String>> {
    let text: Vec<char> = line.chars().collect();
    let mut shell = Shell::default();
    let mut at = 0;
    while let Some(&c) = text.get(at) {
        match c {
            '\'' | '"' => {
                at = shell.quoted(&text, at);
                continue;
            }
            '$' if text.get(at + 1) == Some(&'(') => {
                at = shell.substituted(&text, at);
                continue;
            }
            '<' if placeholder(&text[at..]).is_some() => {
                shell.word.get_or_insert_default().push_str("$X");
                at += placeholder(&text[at..]).unwrap_or(1);
                continue;
            }
            '<' | '>' => {
                at = shell.redirected(&text, at);
                continue;
            }
            '#' if shell.word.is_none() => {
                let comment: String = text[at..].iter().collect();
                let alternative = comment.split_once("or: ").map(|(_, code)| split(code));
                shell.end_command();
                shell.commands.extend(alternative.into_iter().flatten());
                break;
            }
            ' ' | '\t' => shell.end_word(),
            '|' | ';' | '&' | '(' | ')' => shell.end_command(),
            '\\' => {
                at += 1;
                shell.add(text.get(at).copied().unwrap_or(' '));
            }
            c => shell.add(c),
        }
        at += 1;
    }
    shell.end_command();
    shell.commands
}

/// Returns the arguments of `tidemill`, if the command runs it.
fn arguments(words: &[String]) -> Option<&[String]> {
    let is_prompt = |word: &str| word.len() < 16 && word.ends_with(['$', '#', '%']);
    let mut rest = words;
    loop {
        let (first, after) = rest.split_first()?;
        let first = first.trim_start_matches("ExecStart=");
        if first == "tidemill" || first.ends_with("/tidemill") {
            return Some(after);
        }
        let sets = first
            .split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        let runs = RUNNERS.contains(&first) || is_prompt(first) || sets;
        rest = match first {
            "ssh" => after.get(1..)?,
            "-u" => after.get(1..)?,
            _ if runs => after,
            _ => return None,
        };
    }
}

fn is_placeholder(word: &str) -> bool {
    let value = word.rsplit('=').next().unwrap_or_default();
    let letters = value.chars().filter(|c| c.is_alphabetic()).count();
    let is_name = letters > 0
        && value
            .chars()
            .all(|c| c.is_ascii_uppercase() || "_-/:.,~@".contains(c) || c.is_ascii_digit());
    word.contains(['$', '…', '%']) || is_name || USERS.contains(&word)
}

/// Returns the error of clap for these arguments; `None` if they parse with some values of the placeholders.
fn refused(line: &Command, arguments: &[String]) -> Option<String> {
    let parse = |arguments: &[String]| {
        let words = ["tidemill".to_owned()]
            .into_iter()
            .chain(arguments.iter().cloned());
        match line.clone().try_get_matches_from(words) {
            Err(error) if error.use_stderr() => Some(error.to_string()),
            _ => None,
        }
    };
    let first = parse(arguments)?;
    let mut places: Vec<usize> = (0..arguments.len())
        .filter(|at| is_placeholder(&arguments[*at]))
        .collect();
    places.truncate(PLACEHOLDERS_MAX);
    let attempts = DUMMIES.len().pow(u32::try_from(places.len()).unwrap());
    for attempt in 0..attempts {
        let mut tried = arguments.to_vec();
        let mut choice = attempt;
        for at in &places {
            let dummy = DUMMIES[choice % DUMMIES.len()];
            choice /= DUMMIES.len();
            tried[*at] = match tried[*at].split_once('=') {
                Some((name, _)) => format!("{name}={dummy}"),
                None => dummy.to_owned(),
            };
        }
        parse(&tried)?;
    }
    Some(first)
}

/// Returns the subcommand that the words name, and the words after it; `None` if the first word is no command.
fn resolved<'a, 'w>(line: &'a Command, words: &'w [String]) -> Option<(&'a Command, &'w [String])> {
    let mut command = line;
    let mut rest = words;
    while let Some((first, after)) = rest.split_first() {
        let Some(next) = command.find_subcommand(first) else {
            break;
        };
        (command, rest) = (next, after);
    }
    (rest.len() < words.len()).then_some((command, rest))
}

/// Returns the flags among the words that the command does not have.
fn unknown_flags(command: &Command, words: &[String]) -> Vec<String> {
    let known: BTreeSet<&str> = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .chain(["help", "version"])
        .collect();
    let flags = words.iter().take_while(|word| *word != "--");
    let flags = flags.filter_map(|word| flag(word));
    flags
        .filter(|name| !known.contains(name))
        .map(|name| format!("{}: --{name}", command.get_name()))
        .collect()
}

/// Returns the name of a long flag.
fn flag(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--")?.split(['=', ' ']).next()?;
    let name = name.trim_end_matches(['…', ',', ']', ')', '.']);
    (name.starts_with(|c: char| c.is_ascii_lowercase())).then_some(name)
}

/// Returns the faults of one command: it does not parse, or ends with `…` and has unknown flags.
fn faults(line: &Command, arguments: &[String]) -> Vec<String> {
    let words: Vec<String> = arguments
        .iter()
        .map(|word| word.replace(['[', ']'], ""))
        .collect();
    let open = words.iter().any(|word| word == "…" || word == "...");
    let Some((command, rest)) = resolved(line, &words) else {
        return refused(line, &words).into_iter().collect();
    };
    match open {
        true => unknown_flags(command, rest),
        false => refused(line, arguments)
            .and_then(|first| refused(line, &words).map(|_| first))
            .into_iter()
            .collect(),
    }
}

/// Returns the texts between backticks.
fn spans(prose: &str) -> Vec<String> {
    let in_block = |block: &str| -> Vec<String> {
        let inside = block.split('`').skip(1).step_by(2);
        inside.map(|span| span.replace('\n', " ")).collect()
    };
    prose.split("\n\n").flat_map(in_block).collect()
}

fn built() -> Command {
    let mut line = command_line();
    line.build();
    line
}

fn all_flags(command: &Command, found: &mut BTreeSet<String>) {
    found.extend(
        command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .map(str::to_owned),
    );
    for subcommand in command.get_subcommands() {
        all_flags(subcommand, found);
    }
}

#[test]
fn commands_in_code_blocks_parse() {
    let line = built();
    let (mut found, mut checked) = (Vec::new(), 0);
    for (page, text) in pages() {
        for code in parted(&text).0 {
            for words in split(&code) {
                let Some(arguments) = arguments(&words) else {
                    continue;
                };
                checked += 1;
                let faults = faults(&line, arguments);
                found.extend(
                    faults
                        .iter()
                        .map(|fault| format!("{page}: {code}\n  {fault}")),
                );
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} of {checked}:\n{}",
        found.len(),
        found.join("\n")
    );
    assert!(checked > 200, "only {checked} commands");
}

#[test]
fn examples_of_the_help_parse() {
    fn check(line: &Command, command: &Command, found: &mut Vec<String>) {
        let notes = command.get_after_help().map(ToString::to_string);
        let notes = notes.unwrap_or_default().replace("\\\n", "");
        let examples = notes
            .lines()
            .filter(|text| text.starts_with("  ") && text.contains("tidemill "));
        for example in examples {
            // A description follows two spaces.
            let code = example.trim().split("  ").next().unwrap_or_default();
            for words in split(code) {
                let Some(arguments) = arguments(&words) else {
                    continue;
                };
                let faults = faults(line, arguments);
                found.extend(faults.iter().map(|fault| format!("{example}\n  {fault}")));
            }
        }
        for subcommand in command.get_subcommands() {
            check(line, subcommand, found);
        }
    }
    let mut found = Vec::new();
    check(&built(), &Cli::command(), &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn commands_and_flags_in_the_text_exist() {
    let line = built();
    let mut flags = BTreeSet::from(FOREIGN.map(str::to_owned));
    all_flags(&line, &mut flags);
    let mut found = Vec::new();
    for (page, text) in pages() {
        let texts = spans(&parted(&text).1);
        let no_context = |span: &String| !CONTEXTS.iter().any(|start| span.starts_with(start));
        for span in texts.into_iter().filter(no_context) {
            let words: Vec<String> = span
                .split_whitespace()
                .map(|word| word.trim_matches(['[', ']', '(', ')']).to_owned())
                .collect();
            let named = words.first().is_some_and(|word| word == "tidemill");
            let rest = if named { &words[1..] } else { &words[..] };
            let faults = match resolved(&line, rest) {
                Some((command, after)) => unknown_flags(command, after),
                None if named
                    && rest
                        .first()
                        .is_some_and(|word| !word.starts_with(['-', '…'])) =>
                {
                    vec!["no such command".to_owned()]
                }
                None => rest
                    .first()
                    .and_then(|word| flag(word))
                    .filter(|name| !flags.contains(*name))
                    .map(|name| format!("no such flag: --{name}"))
                    .into_iter()
                    .collect(),
            };
            found.extend(
                faults
                    .iter()
                    .map(|fault| format!("{page}: `{span}`: {fault}")),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Returns pairs of a key and a section in the text, as in `` `cores` of `[node]` ``.
fn keys_of_sections(prose: &str) -> Vec<(String, String)> {
    let parts: Vec<&str> = prose.split('`').collect();
    let pairs = parts.windows(4).skip(1).step_by(2).filter_map(|part| {
        let section = part[2].strip_prefix('[')?.trim_matches(['[', ']']);
        let joined = [" of ", " in "].contains(&part[1].replace('\n', " ").as_str());
        let key = part[0].split([' ', '=', '.']).next()?.to_owned();
        joined.then(|| (key, section.to_owned()))
    });
    pairs.collect()
}

#[test]
fn keys_in_the_text_are_in_their_sections() {
    let line = Cli::command();
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    let known = keys(&line);
    let (mut found, mut checked) = (Vec::new(), 0);
    for (page, text) in pages() {
        for (key, section) in keys_of_sections(&parted(&text).1) {
            let setting = &schema["$defs"][&section]["properties"][&key];
            let is_key = known
                .iter()
                .any(|one| one.section == section && one.name() == key);
            checked += 1;
            if setting.is_null() && !is_key {
                found.push(format!("{page}: `{key}` of `[{section}]`"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked > 0);
}

#[test]
fn wrong_flags_and_commands_are_found() {
    let line = built();
    let wrong = |code: &str| {
        let commands = split(code);
        commands
            .iter()
            .filter_map(|words| arguments(words))
            .flat_map(|words| faults(&line, words))
            .count()
    };
    for right in [
        "tidemill ls /",
        "$ sudo -u x tidemill node drain NODE --wait  # comment",
        "tidemill --json status | jq . && tidemill job show $(tidemill submit job.toml) > out 2>&1",
        "tidemill node run --id 1 …",
        "ssh <host> tidemill submit $FILE",
    ] {
        assert_eq!(wrong(right), 0, "{right}");
    }
    for bad in [
        "tidemill ls --no-such /",
        "cat x | sudo tidemill nodes",
        "tidemill node run --idd 1 …",
        "echo $(tidemill set /a copies=2)",
        "A=b tidemill node drain x",
    ] {
        assert_eq!(wrong(bad), 1, "{bad}");
    }
    let prose = "The key `cores` of `[node]`, and `a = 1` in\n`[server]`.";
    let pairs = [("cores", "node"), ("a", "server")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(keys_of_sections(prose), pairs);
}

#[test]
fn summary_of_the_book_lists_every_page() {
    for (name, _) in reference_pages() {
        let listed = SUMMARY.contains(&format!("](reference/{name})"));
        assert!(listed, "docs/SUMMARY.md has no line for reference/{name}");
    }
    let listed = SUMMARY.matches("](reference/").count();
    // The program does not write the reference of the protocol.
    assert_eq!(listed, reference_pages().len() + 1, "docs/SUMMARY.md");
}

#[test]
fn pages_have_one_title_and_closed_code_blocks() {
    for (name, text) in reference_pages() {
        let mut code = false;
        let mut titles = 0;
        for line in text.lines() {
            code ^= line.starts_with("```");
            titles += usize::from(!code && line.starts_with("# "));
        }
        assert!(!code && titles == 1, "{name}: {text}");
    }
}
