//! Tests of TOML: the tree that it becomes, its errors word by word, and the properties that both forms have the same trees and no input
//! makes the parser panic.

use super::*;

const JOB: &str = r#"# Maxima.
[job]
name = "getmax"
workdir = "/scratch/getmax/"
limits = { time = "5m" }

[[task]]
name = "getmax.1"
kernel = "getmax.so"
input = ["1.dat"]
output = ["1.max"]

[[task]]
name = "getmax.2"
kernel = "getmax.so"
input = ["2.dat"]
output = ["2.max"]
[task.environment]
OMP_NUM_THREADS = 4
"#;

fn plain(mut group: SettingGroup) -> SettingGroup {
    without_positions(&mut group);
    group
}

/// Returns a tree with the order of settings and the kinds of arrays that TOML gives.
fn canonical(group: &SettingGroup) -> SettingGroup {
    fn value(v: &mut ScriptValue) {
        match &mut v.data {
            ValueData::Array(values) | ValueData::List(values) => {
                values.iter_mut().for_each(value);
                let values = std::mem::take(values);
                v.data = match is_array(&values) {
                    true => ValueData::Array(values),
                    false => ValueData::List(values),
                };
            }
            ValueData::Group(group) => {
                let settings = group.settings.iter_mut();
                settings.for_each(|setting| value(&mut setting.value));
            }
            _ => {}
        }
    }
    let mut group = plain(group.clone());
    for setting in &mut group.settings {
        value(&mut setting.value);
    }
    group.settings.sort_by(|a, b| a.name.cmp(&b.name));
    group
}

#[test]
fn toml_job_has_the_tree_of_libconfig() {
    let group = read(JOB);
    let same = r#"name = "getmax"; workdir = "/scratch/getmax/"; limits = { time = "5m"; };
        tasks = (
          { name = "getmax.1"; kernel = "getmax.so"; input = [ "1.dat" ]; output = [ "1.max" ]; },
          { name = "getmax.2"; kernel = "getmax.so"; input = [ "2.dat" ]; output = [ "2.max" ];
            environment = { OMP_NUM_THREADS = 4; }; }
        );"#;
    assert_eq!(plain(group.clone()), plain(read(same)));
    let at = |line, column| Position { line, column };
    assert_eq!(group.get("workdir").unwrap().value.at, at(4, 11));
    let ValueData::List(tasks) = data(&group, "tasks") else {
        panic!()
    };
    assert_eq!(tasks[1].at, at(13, 1));
    let ValueData::Group(task) = &tasks[1].data else {
        panic!()
    };
    assert_eq!(task.get("kernel").unwrap().at, at(15, 1));
    assert_eq!(task.get("input").unwrap().value.at, at(16, 9));
}

#[test]
fn toml_rule_has_the_tree_of_libconfig() {
    let group = read(
        "[job]\nname = 'a'\n[on]\nregex = '(?<n>\\d+)/x\\.nc'\nevent = 'writing'\nwhere = 'size >= 1MB'\ndepth = 2\n\
         [task]\nkernel = 'max'\noutput = ['{n}']\n",
    );
    let same = r#"name = "a"; regex = "(?<n>\d+)/x\.nc"; when = "streaming"; where = "size >= 1MB"; depth = 2;
        task = { kernel = "max"; output = [ "{n}" ]; };"#;
    assert_eq!(plain(group), plain(read(same)));
    let one = "[job]\n[on]\nfiles = 'a'\n[[task]]\nkernel = 'max'";
    assert!(matches!(data(&read(one), "task"), ValueData::Group(_)));
    let two = one.to_owned() + "\n[[task]]\nkernel = 'max'";
    assert_eq!(
        error(&two),
        "job.conf:6:1: a rule has one task: leave out this one, or make it a rule of its own"
    );
    let job = "[job]\n[task]\nkernel = 'max'";
    assert!(matches!(data(&read(job), "tasks"), ValueData::List(_)));
}

#[test]
fn toml_settings_keep_the_order_of_the_text() {
    let group = read("[job]\nz = { y = 1, b = 2 }\na.c = 1\na.b = 2\n");
    let names = |group: &SettingGroup| {
        let names = group.settings.iter().map(|setting| &*setting.name);
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&group), "z a");
    for (name, order) in [("z", "y b"), ("a", "c b")] {
        let ValueData::Group(inner) = data(&group, name) else {
            panic!()
        };
        assert_eq!(names(inner), order);
    }
}

#[test]
fn toml_errors_name_place_and_reason() {
    let cases = [
        (
            "[job]\nname = 'a'\n[tasks]\nb = 1",
            "3:2: a job file has no \"tasks\" outside of its tables; did you mean \"task\"? It may have: job, task, on, hook",
        ),
        (
            "[[job]]\nname = 'a'",
            "1:3: \"job\" should be a table [job]; its type is array",
        ),
        (
            "[on]\nfile = 'a'",
            "2:1: [on] has no setting \"file\"; did you mean \"files\"? It may have: files, regex, event, where, batch, depth",
        ),
        (
            "[job]\n[on]\nevent = 'closed'",
            "2:2: [on] needs the setting \"files\", as in files = \"run-*/*.nc\", or \"regex\"",
        ),
        (
            "[on]\nevent = 'open'",
            "2:9: event \"open\" does not exist; it may be \"closed\" or \"writing\"",
        ),
        (
            "[job]\n\" share\" = 1",
            "2:1: \" share\" can't be the name of a setting: give letters, digits, '-', '_', '*' or '.', and a letter or '*' first",
        ),
        (
            "[job]\na = 1979-05-27",
            "2:5: no setting is a date or a time; write text in quotes",
        ),
        (
            "[job]\na = inf",
            "2:5: \"inf\" is not a number; write text in quotes",
        ),
        (
            "[job]\na = 9223372036854775808",
            "2:5: 9223372036854775808 does not fit in a 64-bit number",
        ),
        (
            "[job]\npattern = 'a'\n[on]\nfiles = 'b'",
            "4:1: setting \"pattern\" is given twice, first at 2:1; remove one",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), format!("job.conf:{message}"), "{text:?}");
    }
    for (text, start) in [
        ("[job]\na = 1\na = 2", "3:1: the script is not TOML: "),
        ("[job]\na = b\n", "2:"),
        ("[job\n", "1:"),
    ] {
        let error = error(text);
        assert!(error.starts_with(&format!("job.conf:{start}")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn toml_depth_is_bounded() {
    let depth = MAX_DEPTH as usize;
    let arrays = |depth: usize| format!("[job]\na = {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse("job.toml", arrays(depth).as_bytes()).is_ok());
    let dots = |depth: usize| format!("[job]\n{}a = 1", "a.".repeat(depth));
    assert!(parse("job.toml", dots(depth).as_bytes()).is_ok());
    let mixed = format!("[job]\nx = {}", "{ a.a.a.a = [".repeat(70));
    let strange = format!("[job]\nx = {}", "{ a.a.a.a = [ }}".repeat(70));
    for text in [
        arrays(depth + 1),
        arrays(100_000),
        dots(depth + 1),
        dots(100_000),
        mixed,
        strange,
    ] {
        assert!(error(&text).contains("deep in each other"), "{text}");
    }
    let quoted = "[job]\na = '[[[' # [[[\nb = \"\"\"[[[\\\"\"\"\"\"\"\nc.d = 1.5"
        .replace("[[[", &"[".repeat(100));
    assert!(parse("job.toml", quoted.as_bytes()).is_ok());
}

#[test]
fn toml_of_job_is_canonical() {
    let group = read(include_str!("../listing1.conf"));
    let text = group.to_toml();
    let start = "[job]\nname = \"getmax\"\nworkdir = \"/scratch/getmax/\"\n\n[[task]]\nname = \"getmax.1\"\nkernel = \"getmax.so\"\n\
                 input = [\"1.dat\"]\noutput = [\"1.max\"]\n\n[[task]]\n";
    assert!(text.starts_with(start), "{text}");
    assert_eq!(read(&text).to_string(), group.to_string());
}

#[test]
fn toml_of_rule_is_canonical() {
    let group = read(
        r#"name = "m"; workdir = "/c"; pattern = "in/{n}\?.nc"; when = "sealed"; task = { kernel = "max"; a.b = "it's"; };"#,
    );
    let text = "[job]\nname = \"m\"\nworkdir = \"/c\"\n\n[on]\nfiles = 'in/{n}\\?.nc'\nevent = \"closed\"\n\n\
                [task]\nkernel = \"max\"\n\"a.b\" = \"it's\"\n";
    assert_eq!(group.to_toml(), text);
    assert_eq!(plain(read(text)), plain(group));
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[A-Za-z*][-A-Za-z0-9_*.]{0,8}",
        1 => "pattern|when|where|batch|depth|task|tasks|hook|job|on|files|event",
    ]
}

fn any_root() -> impl Strategy<Value = SettingGroup> {
    let when = prop_oneof!["sealed", "streaming", "other"].prop_map(ValueData::Text);
    let value = prop_oneof![4 => any_data(), 1 => when];
    prop::collection::btree_map(any_name(), value, 0..8).prop_map(group_of)
}

proptest! {
    #[test]
    fn toml_of_tree_parses_to_the_same_tree(group in any_root()) {
        let text = group.to_toml();
        let back = parse("x", text.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(canonical(&back), canonical(&group));
    }

    #[test]
    fn libconfig_of_toml_of_libconfig_is_the_same(group in any_root()) {
        let first = parse("x", group.to_string().as_bytes()).unwrap();
        let second = parse("x", first.to_toml().as_bytes()).unwrap();
        let third = parse("x", second.to_string().as_bytes()).unwrap();
        prop_assert_eq!(canonical(&third), canonical(&first));
    }

    #[test]
    fn toml_parser_never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse("x", &[b"[job]\n", bytes.as_slice()].concat());
    }

    #[test]
    fn toml_parser_never_panics_on_similar_text(
        text in "(\\[job\\]|\\[on\\]|\\[\\[task\\]\\]|[a-c]|[=,.]|[\\[\\]{}]|\"|'|\"\"\"|'''|\\\\|#|\n|[0-9eExX+-]|files|true|é| ){0,60}",
    ) {
        let text = format!("[job]\n{text}");
        if let Err(error) = parse("x", text.as_bytes()) {
            let lines = u32::try_from(text.lines().count()).unwrap();
            prop_assert!(error.at.line <= lines + 1);
        }
    }
}

#[test]
fn toml_table_of_arguments_becomes_an_array() {
    let task = |args: &str| format!("[job]\n[[task]]\nkernel = 'reduce'\n{args}\n");
    let table = task("args = { op = \"mean\", variable = '{v}', n = 3, 2d = 0.5, all = true }");
    let array = task("args = [\"op=mean\", \"variable={v}\", \"n=3\", \"2d=0.5\", \"all=true\"]");
    assert_eq!(plain(read(&table)), plain(read(&array)));
    let one = "[job]\n[task]\n[task.args]\nop = \"mean\"\n";
    let same = "[job]\n[task]\nargs = [\"op=mean\"]\n";
    assert_eq!(plain(read(one)), plain(read(same)));
    for (args, message) in [
        (
            "args = { Op = 1 }",
            "4:10: \"Op\" can't be the name of an argument: give lower-case letters, digits, '_' and '-', or write args as an array of strings",
        ),
        (
            "args = { op = [1] }",
            "4:15: argument \"op\" must be a string, a number or a boolean, not an array",
        ),
        (
            "args = { op = 1979-05-27 }",
            "4:15: no setting is a date or a time; write text in quotes",
        ),
    ] {
        assert_eq!(error(&task(args)), format!("job.conf:{message}"));
    }
}
