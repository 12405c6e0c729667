//! Runs the commands of all pages of the book that show commands with their output, and compares the output.
//!
//! In a block `console`, lines that begin with `$ ` are commands and lines that begin with `> ` continue them. The lines below are the
//! output: `...` alone stands for any lines, and `[..]` for any text within a line. A block with `title=NAME` is written to the file NAME.
//! All commands of a page run in one `bash`, in a directory that holds only a link to `examples`. A comment `<!-- needs: numpy xarray -->`
//! lists the Python modules that a page needs.

use crate::cluster::can_mount;
use crate::require;
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Line of the transcript in front of the output of each command.
const MARK: &str = "@next-command@";

/// Maximum seconds of a page. A page on an idle machine needs a tenth of it.
const PAGE_SECONDS: &str = "180";

#[derive(Debug, PartialEq)]
struct Step {
    /// Line of the page.
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// Returns the commands and files of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // Language and attributes of the block around a line.
    let mut block: Option<&str> = None;
    for (index, line) in page.lines().enumerate() {
        let step = |command: String| Step {
            line: index + 1,
            command,
            expected: Vec::new(),
        };
        match block {
            None => {
                block = line.strip_prefix("```");
                if let Some((_, name)) = block.and_then(|info| info.split_once("title=")) {
                    steps.push(step(format!("cat > {name} <<'END-OF-FILE'")));
                }
            }
            Some(info) if line.starts_with("```") => {
                if info.contains("title=") {
                    steps.last_mut().unwrap().command.push_str("\nEND-OF-FILE");
                }
                block = None;
            }
            Some("console") => {
                if let Some(command) = line.strip_prefix("$ ") {
                    steps.push(step(command.to_owned()));
                    continue;
                }
                let last = steps.last_mut().expect("a block begins with a command");
                match line.strip_prefix('>') {
                    Some(more) if last.expected.is_empty() => {
                        let more = more.strip_prefix(' ').unwrap_or(more);
                        write!(last.command, "\n{more}").unwrap();
                    }
                    _ => last.expected.push(line.to_owned()),
                }
            }
            Some(info) if info.contains("title=") => {
                let last = steps.last_mut().unwrap();
                write!(last.command, "\n{line}").unwrap();
            }
            Some(_) => {}
        }
    }
    steps
}

/// Returns whether a line of output matches a line of a page.
fn line_matches(expected: &str, line: &str) -> bool {
    let Some((first, rest)) = expected.split_once("[..]") else {
        return expected == line;
    };
    let Some(line) = line.strip_prefix(first) else {
        return false;
    };
    let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    ends.any(|at| line_matches(rest, &line[at..]))
}

/// Returns whether the output of a command matches the lines of a page.
fn output_matches(expected: &[String], output: &[&str]) -> bool {
    match expected.split_first() {
        None => output.is_empty(),
        Some((any, rest)) if any == "..." => {
            (0..=output.len()).any(|skipped| output_matches(rest, &output[skipped..]))
        }
        Some((first, rest)) => output
            .split_first()
            .is_some_and(|(line, lines)| line_matches(first, line) && output_matches(rest, lines)),
    }
}

/// Returns a description of each step whose output in the transcript differs from the page.
fn mismatches(page: &str, steps: &[Step], transcript: &str) -> Vec<String> {
    let mark = format!("\n{MARK}\n");
    let mut outputs = transcript.split(&mark).skip(1);
    let mut found = Vec::new();
    for step in steps {
        let Step { line, command, .. } = step;
        let Some(output) = outputs.next() else {
            found.push(format!("{page}:{line}: was not reached: {command}"));
            break;
        };
        let output: Vec<&str> = output.trim_end_matches('\n').lines().collect();
        if !output_matches(&step.expected, &output) {
            let (expected, got) = (step.expected.join("\n"), output.join("\n"));
            found.push(format!(
                "{page}:{line}: $ {command}\n--- expected\n{expected}\n--- got\n{got}\n"
            ));
        }
    }
    if found.is_empty() && outputs.next().is_none() {
        found.push(format!("{page}: the last command did not end in time"));
    }
    found
}

/// Returns a command in the directory of a page, without variables of the environment such as `XDG_CONFIG_HOME`. Programs of the system
/// precede others in `PATH`, so Python is the system's.
fn program(name: &str, home: &Path) -> Command {
    let built = Path::new(env!("CARGO_BIN_EXE_tidemill")).parent().unwrap();
    let others = std::env::var("PATH").unwrap();
    let mut command = Command::new(name);
    command.env_clear().current_dir(home.join("page"));
    command.env(
        "PATH",
        format!("{}:/usr/bin:/bin:{others}", built.display()),
    );
    command.env("HOME", home).env("LANG", "C.UTF-8");
    // Root's cluster has another default.
    command.env("TIDEMILL_DIR", home.join(".local/share/tidemill"));
    command.stdin(Stdio::null());
    command
}

/// Runs the steps in one `bash` and returns everything that they print.
fn transcript(steps: &[Step], home: &Path) -> String {
    let mut script = "trap 'tidemill down --force; kill $(jobs -p)' EXIT\n".to_owned();
    for step in steps {
        writeln!(script, "printf '\\n{MARK}\\n'\n{}", step.command).unwrap();
    }
    writeln!(script, "printf '\\n{MARK}\\n'").unwrap();
    std::fs::write(home.join("script"), script).unwrap();
    // A pipe would stay open as long as any process of the page runs.
    let output = File::create(home.join("transcript")).unwrap();
    let errors = output.try_clone().unwrap();
    let mut command = program("timeout", home);
    command.args(["--kill-after=60", PAGE_SECONDS, "bash", "../script"]);
    command.stdout(output).stderr(errors).status().unwrap();
    let printed = std::fs::read(home.join("transcript")).unwrap();
    String::from_utf8_lossy(&printed).into_owned()
}

/// Runs a page, and returns its mismatches.
fn run(name: &str, page: &str) -> Vec<String> {
    let directory = tempfile::Builder::new()
        .prefix("tidemill-e2e-")
        .tempdir()
        .unwrap();
    let home = directory.path();
    // Kernels of nodes of root read only directories that are open to all users.
    std::fs::set_permissions(home, Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(home.join("page")).unwrap();
    let examples = std::fs::canonicalize(Path::new(ROOT).join("examples")).unwrap();
    std::os::unix::fs::symlink(examples, home.join("page/examples")).unwrap();
    if let Some((_, needs)) = page.split_once("<!-- needs: ") {
        let (modules, _) = needs.split_once("-->").unwrap();
        let modules: Vec<&str> = modules.split_whitespace().collect();
        let import = format!("import {}", modules.join(", "));
        let imported = program("python3", home).args(["-c", &import]).output();
        if !imported.unwrap().status.success() {
            require::skip(&format!("{name} needs Python with: {import}"));
            return Vec::new();
        }
    }
    let steps = steps(page);
    mismatches(name, &steps, &transcript(&steps, home))
}

/// Returns the names of all pages below the directory.
fn pages(directory: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![directory]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn commands_of_book_print_documented_output() {
    if !can_mount() {
        return;
    }
    let mut wrong = Vec::new();
    for path in pages(Path::new(ROOT).join("docs")) {
        let page = std::fs::read_to_string(&path).unwrap();
        if page.contains("\n```console\n") {
            let name = path.strip_prefix(ROOT).unwrap().display().to_string();
            wrong.extend(run(&name, &page));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn steps_of_page_include_files_and_continued_commands() {
    let page =
        "```toml title=a.toml\n[job]\n```\n\n```console\n$ cat <<E\n> x\n>\n> E\nx\n$ pwd\n```\n";
    let step = |line, command: &str, expected: &[&str]| Step {
        line,
        command: command.to_owned(),
        expected: expected.iter().map(|&line| line.to_owned()).collect(),
    };
    let expected = [
        step(1, "cat > a.toml <<'END-OF-FILE'\n[job]\nEND-OF-FILE", &[]),
        step(6, "cat <<E\nx\n\nE", &["x"]),
        step(11, "pwd", &[]),
    ];
    assert_eq!(steps(page), expected);
}

#[test]
fn differing_output_is_reported_with_page_and_line() {
    let page = "```console\n$ a\none [..] ms\n...\nlast\n$ b\n```\n";
    let steps = steps(page);
    let of = |a: &str, b: &str| {
        let transcript = format!("\n{MARK}\n{a}\n{MARK}\n{b}\n{MARK}\n");
        mismatches("p.md", &steps, &transcript)
    };
    assert!(of("one 5 ms\nlast\n", "").is_empty());
    assert!(of("one 5 ms\ntwo\n\nlast\n", "").is_empty());
    for (a, b, place) in [
        ("one 5 s\nlast\n", "", "p.md:2: $ a\n"),
        ("one 5 ms\n", "", "p.md:2: $ a\n"),
        ("one 5 ms\nlast\nmore\n", "", "p.md:2: $ a\n"),
        ("one 5 ms\nlast\n", "more\n", "p.md:6: $ b\n"),
    ] {
        let found = of(a, b);
        assert!(
            found.len() == 1 && found[0].starts_with(place),
            "{a}: {found:?}"
        );
    }
    let found = mismatches("p.md", &steps, &format!("\n{MARK}\none 1 ms\nlast\n"));
    assert!(found[0].starts_with("p.md:6: was not reached"), "{found:?}");
}
