use super::*;
use proptest::prelude::*;

const RULE: &str = r#"
name = "monthly"; workdir = "/climate";
pattern = "run-{n}/*.nc";
task = { kernel = "wordcount"; output = [ "out/{n}-{stem}.txt" ]; };
"#;

fn refused(text: &str) -> String {
    Rule::read("r.conf", text).unwrap_err().to_string()
}

#[test]
fn rule_creates_job_of_matching_file() {
    let rule = Rule::read("r.conf", RULE).unwrap();
    assert_eq!((rule.name.as_str(), rule.depth), ("monthly", 8));
    assert!(rule.matches("/climate/run-07/a.nc"));
    for other in [
        "/climate/run-07/b/a.nc",
        "/climate/run-07/.a.nc",
        "/climate/run-07/a.ncx",
        "/climates/run-07/a.nc",
        "/climate",
        "/",
    ] {
        assert!(!rule.matches(other), "{other}");
    }
    let tasks = [("monthly-9".to_owned(), 9, vec!["/climate/run-07/a b.nc"])];
    let script = rule.script(3, &tasks).unwrap();
    let job = crate::job::Job::parse("job", script.as_bytes()).unwrap();
    assert_eq!((job.name.as_str(), job.replace), ("monthly@3", true));
    let task = &job.tasks[0];
    assert_eq!(task.inputs[0].name, "run-07/a b.nc");
    assert_eq!(task.outputs[0].path, "/climate/out/07-a b.txt");
    assert_eq!(
        rule.outputs(9, &["/climate/run-07/a.nc"]).unwrap(),
        ["out/07-a.txt"]
    );
}

#[test]
fn rule_quotes_names_of_files() {
    let rule = Rule::read("r.conf", RULE).unwrap();
    for name in [
        "a\"; kernel = \"sh",
        "{n}",
        "${n}",
        "{{n}}",
        "*",
        "?[a",
        "a\\",
        "{inputs}",
        "-rf",
        "a\nb",
        "a; rm",
    ] {
        let path = format!("/climate/run-1/{name}.nc");
        let script = rule.script(1, &[("t".into(), 1, vec![&path])]).unwrap();
        let job = crate::job::Job::parse("job", script.as_bytes()).unwrap();
        assert_eq!(job.tasks[0].kernel.name, "wordcount");
        assert_eq!(job.tasks[0].inputs[0].path, path);
    }
}

#[test]
fn rule_batch_repeats_input_and_args_per_file() {
    let text = r#"
    name = "sum"; workdir = "/"; pattern = "in/*"; batch = { files = 10; after = "5s"; };
    task = { kernel = "sum"; input = [ "table", "{path}" ]; args = [ "-f", "{name}", "x{batch}" ];
             output = [ "out/{batch}" ]; };
    "#;
    let rule = Rule::read("r.conf", text).unwrap();
    assert_eq!(rule.batch.unwrap().files, 10);
    let script = rule
        .script(1, &[("t".into(), 7, vec!["/in/a", "/in/b"])])
        .unwrap();
    let job = crate::job::Job::parse("job", script.as_bytes()).unwrap();
    let inputs: Vec<_> = job.tasks[0]
        .inputs
        .iter()
        .map(|input| input.path.as_str())
        .collect();
    assert_eq!(inputs, ["/table", "/in/a", "/in/b"]);
    assert_eq!(job.tasks[0].args, ["-f", "a", "b", "x7"]);
    let wrong = text.replace("out/{batch}", "out/{name}");
    assert!(refused(&wrong).contains("several files make one output"));
}

#[test]
fn rule_error_names_place_and_reason() {
    for (from, to, reported) in [
        (
            "run-{n}/*.nc",
            "run-{n}{m}/*.nc",
            "r.conf:3:19: pattern: two names need text between them",
        ),
        (
            "run-{n}/*.nc",
            "a/[x",
            "r.conf:3:14: pattern: this '[' is never closed",
        ),
        (
            "run-{n}/*.nc",
            "a**",
            "r.conf:3:13: pattern: '**' stands alone",
        ),
        (
            "run-{n}/*.nc",
            "{n}/{path}",
            "pattern: the name \"path\" is reserved",
        ),
        (
            "pattern = \"run-{n}/*.nc\"",
            "regex = \"(?<n>\\y)\"",
            "r.conf:3:15: pattern: unrecognized escape",
        ),
        (
            "pattern = \"run-{n}/*.nc\"",
            "regex = \"(?<n>((a{99}){99}){99})\"",
            "bytes of memory",
        ),
        (
            "task =",
            "regex = \"a\"; task =",
            "\"pattern\" and \"regex\" both select files",
        ),
        (
            "run-{n}/*.nc",
            "/other/*",
            "does not begin with the directory",
        ),
        (
            "{stem}",
            "{stemm}",
            "r.conf:4:41: \"output\" has the unknown variable {stemm}; did you mean \"{stem}\"? It may be: {path}, {file}, {name}, {stem}, {dir}, {batch}, {n}; write {{stemm}} for the text {stemm}",
        ),
        ("\"wordcount\"", "\"{n}\"", "may not stand in \"kernel\""),
        (
            "task =",
            "when = \"written\"; task =",
            "is triggered when a version is",
        ),
        (
            "task =",
            "when = \"streaming\"; batch = 7; task =",
            "setting \"batch\": only for sealed versions",
        ),
        (
            "task =",
            "when = \"streaming\"; where = \"owner = 7 and size > 1\"; task =",
            "r.conf:4:44: setting \"where\": a condition on size is only for sealed versions",
        ),
        (
            "task =",
            "where = { size = \"1..\"; }; task =",
            "should be a condition in quotes",
        ),
        (
            "task =",
            "where = \"size > 1 and ownr = 1\"; task =",
            "r.conf:4:23: setting \"where\": the name \"ownr\" is unknown; did you mean \"owner\"? Known names are size, owner, type, content, user.NAME",
        ),
        (
            "task =",
            "where = \"size > 1 && owner = 1\"; task =",
            "r.conf:4:19: setting \"where\": '&&' is not an operator of conditions: write and instead",
        ),
        (
            "task =",
            "where = \"size > 1 or content = 'text/plain'\"; task =",
            "can't be joined by \"or\" or \"not\"",
        ),
        ("task =", "depth = 0; task =", "a number from 1 to"),
        ("task =", "batch = 0; task =", "1 to 10000 files"),
        ("task =", "colour = 1; task =", "colour"),
        ("\"monthly\"", "\"a/b\"", "can't be the name of a rule"),
        ("\"monthly\"", "\"12\"", "can't be the name of a rule"),
        ("output =", "inputs = [\"a\"]; output =", "inputs"),
        (
            "output =",
            "per = \"stripe-object\"; layout = \"other\"; output =",
            "same",
        ),
        ("output =", "per = \"parts\"; output =", "stripe-object"),
        ("output = [ \"out/{n}-{stem}.txt\" ];", "", "output"),
        ("\"out/{n}", "\"/elsewhere/{n}", "/elsewhere"),
    ] {
        let text = RULE.replace(from, to);
        let reported_now = refused(&text);
        assert!(reported_now.contains(reported), "{text}\n{reported_now}");
    }
    assert!(refused("").contains("\"name\" is missing"));
    assert!(refused(&" ".repeat(MAX_RULE_BYTES + 1)).contains("too long"));
}

fn conditions(text: &str) -> RuleConditions {
    let text = RULE.replace("task =", &format!("where = \"{text}\"; task ="));
    Rule::read("r.conf", &text).unwrap().conditions
}

#[test]
fn rule_conditions_check_size_owner_type_and_attributes() {
    let fits = |text: &str, path: &str, size: u64, uid: u32| {
        let look = |name: &str| {
            let value = match name {
                "user.project" => Some(b"tidemill/a".to_vec()),
                "user.checked" => (size > 1).then(Vec::new),
                "user.level" => Some(b"3".to_vec()),
                _ => None,
            };
            Ok::<_, ()>(value)
        };
        conditions(text).fit((path, size, uid), look).unwrap()
    };
    for (text, path, size, uid, fit) in [
        ("size >= 1kB and size <= 2kB", "/a", 1000, 1, true),
        ("size >= 1kB and size <= 2kB", "/a", 2000, 1, true),
        ("size >= 1kB and size <= 2kB", "/a", 999, 1, false),
        ("size >= 1kB and size <= 2kB", "/a", 2001, 1, false),
        ("size < 1MiB", "/a", 1 << 20, 1, false),
        ("owner = 7 or owner = 8", "/a", 1, 8, true),
        ("owner = 7 or owner = 8", "/a", 1, 9, false),
        ("owner != 7", "/a", 1, 9, true),
        ("owner = alice", "/a", 1, 9, false),
        (
            "type = image/* or type = application/netcdf",
            "/a.PNG",
            1,
            1,
            true,
        ),
        (
            "type = image/* or type = application/netcdf",
            "/a.nc",
            1,
            1,
            true,
        ),
        (
            "type = image/* or type = application/netcdf",
            "/a.txt",
            1,
            1,
            false,
        ),
        ("type ~ ^image/", "/a.png", 1, 1, true),
        (
            "user.project = 'tide*' and user.checked = *",
            "/a",
            2,
            1,
            true,
        ),
        (
            "user.project = 'tide*' and user.checked = *",
            "/a",
            1,
            1,
            false,
        ),
        ("not (user.project = tide or size > 5)", "/a", 1, 1, true),
        ("user.level > 2 and user.level <= 3.0", "/a", 1, 1, true),
        ("user.none != a", "/a", 1, 1, false),
        ("not user.none = a", "/a", 1, 1, true),
    ] {
        assert_eq!(
            fits(text, path, size, uid),
            fit,
            "{text} {path} {size} {uid}"
        );
    }
}

#[test]
fn rule_conditions_find_users_by_name() {
    let mut found = conditions("owner = alice or owner = 7 or owner = nobody");
    let find = |user: &str| (user == "alice").then_some(5);
    assert_eq!(found.find_users(find), ["nobody"]);
    for (uid, fit) in [(5, true), (7, true), (8, false)] {
        let look = |_: &str| Ok::<_, ()>(None);
        assert_eq!(found.fit(("/a", 1, uid), look), Ok(fit), "{uid}");
    }
}

#[test]
fn rule_parses_xml_of_the_paper_without_entity_expansion() {
    let text = r#"<?xml version="1.0"?>
<!-- a rule -->
<rule name="count" workdir="/raw">
  <pattern>*.dat</pattern>
  <program>/usr/bin/wc</program>
  <arguments>-l</arguments> <argument>{file}</argument>
  <output local="yes" stdout="yes">counts/{stem}.&lt;txt&gt;</output>
</rule>"#;
    let rule = Rule::read("r.xml", text).unwrap();
    let script = rule
        .script(1, &[("t".into(), 1, vec!["/raw/a.dat"])])
        .unwrap();
    let job = crate::job::Job::parse("job", script.as_bytes()).unwrap();
    assert_eq!(job.tasks[0].args, ["-l", "a.dat"]);
    assert_eq!(job.tasks[0].stdout.as_deref(), Some("counts/a.<txt>"));
    for (from, to, reported) in [
        (
            "<!-- a rule -->",
            "<!DOCTYPE a [<!ENTITY b \"bb\">]>",
            "r.xml:2:2: definitions and CDATA",
        ),
        ("*.dat", "&b;", "only &amp; &lt;"),
        ("*.dat", "&#42;.dat", "r.xml:4:12: only &amp; &lt;"),
        ("workdir=", "name=", "r.xml:3:1: position"),
        ("*.dat", "<![CDATA[*.dat]]>", "4:13: definitions"),
        ("</rule>", "</rule> <rule/>", "8:9: a rule is one"),
        (
            "</pattern>",
            "</patern>",
            "r.xml:4:19: expected </pattern>, found </patern>",
        ),
        ("</rule>", "", "<rule> is never closed"),
        ("<program>", "<programme>", "expected </programme>"),
        (
            "local=\"yes\"",
            "local=\"no\"",
            "always made where the program runs",
        ),
        ("*.dat", "[*.dat", "pattern: "),
    ] {
        let reported_now = refused_xml(&text.replace(from, to));
        assert!(reported_now.contains(reported), "{reported_now}");
    }
    let deep = "<a>".repeat(20_000);
    assert!(refused_xml(&deep).contains("nested more than"));
}

fn refused_xml(text: &str) -> String {
    Rule::read("r.xml", text).unwrap_err().to_string()
}

#[test]
fn rule_reaches_only_directories_that_may_hold_matches() {
    let pattern = |text: &str| Pattern::new(text).unwrap().directory().to_owned();
    assert_eq!(pattern("a/b/*.nc"), "a/b");
    assert_eq!(pattern("a/b.nc"), "a");
    assert_eq!(pattern("a/b*/c/d"), "a");
    assert_eq!(pattern("**/d"), "");
    let rule = Rule::read("r.conf", &RULE.replace("run-{n}/*.nc", "a/{n}/*")).unwrap();
    assert_eq!(rule.directory(), "/climate/a");
    for (directory, reached) in [
        ("/", true),
        ("/climate", true),
        ("/climate/a/x", true),
        ("/climate/ab", false),
        ("/other", false),
    ] {
        assert_eq!(rule.reaches(directory), reached, "{directory}");
    }
}

#[test]
fn documented_rules_parse() {
    let page = include_str!("../../../../docs/rules.md");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let body = |kind: &'static str| {
        let blocks = blocks
            .iter()
            .filter_map(move |block| block.strip_prefix(kind));
        blocks.map(str::trim_start).collect::<Vec<_>>()
    };
    let [whole, regex, conditions, streaming, batches] = body("toml\n")[..] else {
        panic!("{blocks:?}")
    };
    let read =
        |text: &str| Rule::read("page", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    read(whole);
    assert!(read(streaming).streaming);
    // The page shows conditions in the table [on] only.
    let (head, rest) = streaming.split_once("[on]").unwrap();
    let (_, task) = rest.split_once("[task]").unwrap();
    read(&format!("{head}{conditions}\n[task]{task}"));
    read(&format!("{head}{regex}\n[task]{task}"));
    let shown = "batch = { files = 100, after = \"5s\" }";
    assert!(batches.contains(shown));
    for batch in [shown, "batch = 100", "batch = \"5s\""] {
        read(&batches.replace(shown, batch));
    }
    for text in body("xml\n") {
        read(text);
    }
    Rule::read(
        "example",
        include_str!("../../../../examples/rules/count.toml"),
    )
    .unwrap();
    Rule::read(
        "example",
        include_str!("../../../../examples/rules/monthly.toml"),
    )
    .unwrap();
}

proptest! {
    #[test]
    fn rule_parser_never_panics_on_any_text(text in "\\PC{0,200}", noise in "[a-z<>&;/\"=!\\[\\](){}*?$ ]{0,200}") {
        let _ = Rule::read("r", &text);
        let _ = Rule::read("r", &noise);
        let _ = Rule::read("r", &format!("<{noise}"));
    }
}

#[test]
fn directory_rule_has_directory_as_workdir_and_default_name() {
    let text =
        "pattern = \"*.nc\"; task = { kernel = \"wordcount\"; output = [ \"{stem}.txt\" ]; };";
    let rule = Rule::read_of_directory("a", text, "/raw", "directory-7").unwrap();
    assert_eq!(
        (rule.name.as_str(), rule.workdir.as_str()),
        ("directory-7", "/raw")
    );
    assert!(rule.matches("/raw/a.nc") && !rule.matches("/other/a.nc"));
    let named = format!("name = \"own\"; {text}");
    let rule = Rule::read_of_directory("a", &named, "/", "directory-1").unwrap();
    assert_eq!((rule.name.as_str(), rule.matches("/a.nc")), ("own", true));
    let elsewhere = format!("workdir = \"/x\"; {text}");
    let errors = Rule::read_of_directory("a", &elsewhere, "/raw", "directory-7").unwrap_err();
    assert!(
        errors
            .to_string()
            .starts_with("a:1:1: the rule of a directory has no setting \"workdir\""),
        "{errors}"
    );
}

#[test]
fn streaming_rule_task_runs_on_node_of_its_file() {
    let text = "name = \"g\"; workdir = \"/w\"; pattern = \"*.log\"; when = \"streaming\"; \
                task = { kernel = \"/bin/wc\"; stdin = \"{file}\"; output = [ \"{stem}\" ]; stdout = \"{stem}\"; };";
    let rule = Rule::read("g", text).unwrap();
    let tasks = [("t".to_owned(), 5, vec!["/w/a.log"])];
    let on = rule.script_on(1, &tasks, &[(5, 2)].into()).unwrap();
    assert!(on.contains("node = 2"), "{on}");
    assert!(!rule.script(1, &tasks).unwrap().contains("node"));
    for (from, to) in [
        ("stdin", "node = 1; stdin"),
        ("stdin", "per = \"stripe-object\"; stdin"),
    ] {
        let errors = Rule::read("g", &text.replacen(from, to, 1)).unwrap_err();
        assert!(
            errors.to_string().contains("with when = \"streaming\""),
            "{errors}"
        );
    }
}

/// The number of rules is the largest that is allowed, and each seal looks at all of them. One rule matches: the rule
/// of the directory above the file.
#[test]
fn one_of_thousand_rules_matches() {
    let rule = |number: usize| {
        let text = format!(
            "name = \"r{number}\"; workdir = \"/w/{number}\"; pattern = \"**/run-{{n}}/*.nc\"; \
             task = {{ kernel = \"wordcount\"; output = [ \"{{n}}.txt\" ]; }};"
        );
        Rule::read("r", &text).unwrap()
    };
    let rules: Vec<Rule> = (0..1000).map(rule).collect();
    let path = "/w/500/a/b/run-12/x.nc";
    let matching = rules.iter().filter(|rule| rule.matches(path));
    assert_eq!(matching.count(), 1);
}

#[test]
fn content_head_determines_type_of_file() {
    let types = [
        (b"CDF\x01\0\0".as_slice(), "application/netcdf"),
        (b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
        (b"SIMPLE  =                    T", "application/fits"),
        (b"\x1f\x8b\x08", "application/gzip"),
        ("größer\n".as_bytes(), "text/plain"),
        (b"gr\xc3", "text/plain"),
        (b"a\0b", "application/octet-stream"),
        (b"\xff", "application/octet-stream"),
        (b"", "application/x-empty"),
    ];
    let text = "name = \"c\"; workdir = \"/w\"; pattern = \"*\"; where = \"content = application/x-hdf* or content = text/*\"; \
                task = { kernel = \"max\"; output = [ \"{stem}.max\" ]; };";
    let conditions = Rule::read("c", text).unwrap().conditions;
    assert!(conditions.look_inside());
    for (head, kind) in types {
        assert_eq!(mime::of_content(head), kind, "{head:?}");
        let wanted = kind == "application/x-hdf5" || kind == "text/plain";
        assert_eq!(conditions.fit_content(head).is_ok(), wanted, "{kind}");
    }
    let errors = Rule::read("c", &text.replace("text/*", "colour/*")).unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("recognised by the first bytes of files"),
        "{errors}"
    );
}

#[test]
fn rule_in_toml_creates_job_of_matching_file() {
    let text = r#"
        [job]
        name = "monthly"
        workdir = "/climate"

        [on]
        files = 'run-{n}/*.nc'

        [task]
        kernel = "wordcount"
        output = ["out/{n}-{stem}.txt"]
    "#;
    let rule = Rule::read("r.toml", text).unwrap();
    assert_eq!((rule.name.as_str(), rule.streaming), ("monthly", false));
    let tasks = [("monthly-9".to_owned(), 9, vec!["/climate/run-07/a.nc"])];
    let script = rule.script(3, &tasks).unwrap();
    let same = Rule::read("r.conf", RULE).unwrap();
    assert_eq!(script, same.script(3, &tasks).unwrap());
    let wrong = text.replace("run-{n}", "run-{n");
    let error = Rule::read("r.toml", &wrong).unwrap_err().to_string();
    assert!(
        error.starts_with("r.toml:7:") && error.contains("pattern: "),
        "{error}"
    );
    let misspelt = text.replace("kernel", "kernle");
    let error = Rule::read("r.toml", &misspelt).unwrap_err().to_string();
    assert!(error.contains("did you mean \"kernel\""), "{error}");
}

#[test]
fn rule_errors_in_toml_use_its_names() {
    let text = "[job]\nname = 'a'\nworkdir = '/w'\n[on]\nfiles = '*.nc'\n[task]\nkernel = 'max'\noutput = ['{stem}']\n";
    Rule::read("r.toml", text).unwrap();
    for (from, to, message) in [
        (
            "files = '*.nc'",
            "files = 3",
            "r.toml:5:9: setting \"files\" should be a string, not an integer",
        ),
        (
            "files = '*.nc'",
            "files = 'a'\nregex = 'a'",
            "r.toml:6:1: \"files\" and \"regex\" both select files",
        ),
        (
            "[task]",
            "event = 'writing'\nbatch = 2\n[task]",
            "r.toml:7:1: setting \"batch\": only for closed files: leave it out, or leave out event = \"writing\"",
        ),
        (
            "[task]",
            "batch = { file = 2 }\n[task]",
            "r.toml:6:11: \"batch\" has no setting \"file\"; did you mean \"files\"? It may have: files, after",
        ),
        (
            "kernel",
            "kernle",
            "r.toml:7:1: task \"a\": [task] has no setting \"kernle\"; did you mean \"kernel\"? It may have: per,",
        ),
        (
            "{stem}",
            "{setm}",
            "r.toml:8:10: \"output\" has the unknown variable {setm}; did you mean \"{stem}\"? It may be: {path},",
        ),
        (
            "[task]\nkernel = 'max'\noutput = ['{stem}']\n",
            "",
            "table [task] is missing: the task to run",
        ),
        (
            "name = 'a'",
            "name = 'a'\npolcy = 'x'",
            "[job] has no setting \"polcy\"; did you mean \"policy\"?",
        ),
    ] {
        let error = Rule::read("r.toml", &text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(message), "{message}\n{error}");
    }
    let none = crate::job::Job::parse("j.toml", b"[job]\nname = 'a'\nworkdir = '/w'\n");
    let none = none.unwrap_err().to_string();
    assert!(
        none.contains("it needs at least one table [[task]]"),
        "{none}"
    );
}

#[test]
fn rule_leaves_numbers_of_instances_to_the_job() {
    let text = RULE.replace("out/{n}", "out/{n}.{part}");
    assert!(refused(&text).contains("unknown variable {part}"));
    let text = text.replace("kernel =", "per = \"stripe-object\"; kernel =");
    let rule = Rule::read("r.conf", &text).unwrap();
    let outputs = rule.outputs(1, &["/climate/run-07/a.nc"]).unwrap();
    assert_eq!(outputs, ["out/07.{part}-a.txt"]);
    // Braces of a script are text.
    let text = RULE.replace(
        "output =",
        "args = [ \"{print $1}\", \"${{HOME}}\" ]; output =",
    );
    let rule = Rule::read("r.conf", &text).unwrap();
    let script = rule.script(1, &[("t".into(), 1, vec!["/climate/run-1/a.nc"])]);
    let job = crate::job::Job::parse("job", script.unwrap().as_bytes()).unwrap();
    assert_eq!(job.tasks[0].args, ["{print $1}", "${HOME}"]);
}

#[test]
fn rule_with_regex_uses_its_named_groups() {
    let text = RULE.replace(
        "pattern = \"run-{n}/*.nc\"",
        "regex = \"run-(?<n>[0-9]+)/(a|b)[.]nc\"",
    );
    let rule = Rule::read("r.conf", &text).unwrap();
    assert!(rule.matches("/climate/run-07/a.nc") && !rule.matches("/climate/run-x/a.nc"));
    let outputs = rule.outputs(1, &["/climate/run-07/b.nc"]).unwrap();
    assert_eq!(outputs, ["out/07-b.txt"]);
    let hook = "name = \"h\"; workdir = \"/w\"; regex = \"(a|b)[.]dat\"; hook = { map = \"max\"; output = \"max/{stem}\"; };";
    let rule = Rule::read("h", hook).unwrap();
    assert_eq!(rule.outputs(1, &["/w/a.dat"]).unwrap(), ["max/a"]);
    assert_eq!(rule.hook.unwrap().spec.pattern, "(a|b)[.]dat");
}

#[test]
fn hook_in_toml_equals_hook_in_libconfig() {
    let toml = r#"
        [job]
        name = "extremes"
        workdir = "/run"
        limits = { time = "10m" }

        [on]
        files = "step-*.dat"

        [hook]
        map = "max dtype=f32"
        reduce = "max dtype=text"
        output = "all-{batch}.txt"
        group = 10
        on = "write"
    "#;
    let rule = Rule::read("h.toml", toml).unwrap();
    let hook = rule.hook.unwrap();
    assert_eq!((hook.spec.on, hook.spec.group), (hook::On::Write, Some(10)));
    let text = Rule::settings("h.toml", toml).unwrap().to_string();
    let same = Rule::read("h.conf", &text).unwrap();
    assert_eq!(same.hook.unwrap().spec, hook.spec);
    let wrong = Rule::read("h.toml", &toml.replace("map =", "mop =")).unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("h.toml:11:9: \"hook\" has no setting \"mop\""),
        "{wrong}"
    );
}

/// Names that look like references, wildcards or notations of other systems.
fn strange_names() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec![
            "{stem}", "{part}", "{x}", "{inputs}", "{{", "}}", "{", "}", "%part", "${x}", "*", "?",
            "[a]", "\\", "!", "a", "b.", "é", " ", "\"", "$1",
        ]),
        1..6,
    )
    .prop_map(|parts| parts.concat())
    .prop_filter("hidden names match no wildcard", |name| {
        !name.starts_with('.') && !name.ends_with([' ', '.'])
    })
}

/// A cluster with one file.
#[derive(Debug)]
struct OneFile<'a>(&'a str);

impl crate::job::DirectoryLookup for OneFile<'_> {
    fn list(&self, _: &str) -> Vec<crate::job::ListedName> {
        vec![crate::job::ListedName {
            name: self.0.to_owned(),
            is_directory: false,
            is_text: true,
        }]
    }

    fn made_of(&self, path: &str) -> Option<crate::job::ExternalInput> {
        read::CompleteCluster.made_of(path)
    }

    fn mapped(
        &self,
        _: &str,
        _: &crate::job::ExternalInput,
        _: &crate::job::Mapping<'_>,
    ) -> Result<crate::job::MapperResult, String> {
        Err("no variable".to_owned())
    }

    fn mapped_directory(
        &self,
        _: &str,
        _: &crate::job::Mapping<'_>,
    ) -> Result<Option<crate::job::DirectoryMap>, String> {
        Ok(None)
    }

    fn folds(&self, _: &str, _: &[String]) -> bool {
        false
    }
}

proptest! {
    /// A value passes the rule, the job and the task instance as it is.
    #[test]
    fn name_of_file_passes_every_stage_unchanged(name in strange_names(), per in any::<bool>()) {
        let (per, own) = match per {
            true => ("per = \"stripe-object\";", "{part}"),
            false => ("", "0"),
        };
        let text = format!(
            "name = \"r\"; workdir = \"/w\"; pattern = \"in/{{x1}}.d\"; task = {{ kernel = \"k\"; {per} \
             args = [ \"{{name}}\", \"x{{x1}}y\", \"{{{{lit}}}}\", \"{{{{{{x1}}}}}}\", \"{{inputs}}\" ]; stdin = \"{{file}}\"; \
             output = [ \"out/{{x1}}.{own}\" ]; }};"
        );
        let rule = Rule::read("r", &text).unwrap();
        let path = format!("/w/in/{name}.d");
        let script = rule.script(1, &[("t".into(), 7, vec![&path])]).unwrap();
        let file = format!("{name}.d");
        let job = crate::job::Job::read("job", script.as_bytes(), &OneFile(&file)).unwrap();
        let task = &job.tasks[0];
        prop_assert_eq!(&task.inputs[0].path, &path);
        prop_assert_eq!(task.stdin.as_ref(), Some(&format!("in/{name}.d")));
        let args = [
            format!("{name}.d"),
            format!("x{name}y"),
            "{lit}".to_owned(),
            format!("{{{name}}}"),
            format!("in/{name}.d"),
        ];
        prop_assert_eq!(&task.args[..], &args[..]);
        prop_assert_eq!(&task.outputs[0].path, &format!("/w/out/{name}.0"));
    }

    /// A value passes `foreach` and the task instance as it is.
    #[test]
    fn name_of_foreach_passes_every_stage_unchanged(name in strange_names(), per in any::<bool>()) {
        let (per, own) = match per {
            true => ("per = \"stripe-object\";", "{part}"),
            false => ("", "0"),
        };
        let text = format!(
            "name = \"j\"; workdir = \"/w\"; tasks = ( {{ name = \"t.{{x}}\"; foreach = \"in/{{x}}.d\"; kernel = \"k\"; {per} \
             input = [ \"in/{{x}}.d\" ]; args = [ \"{{x}}\", \"{{inputs}}\", \"{{{{inputs}}}}\", \"{{other}}\" ]; output = [ \"out/{{x}}.{own}\" ]; }} );"
        );
        let file = format!("{name}.d");
        let job = crate::job::Job::read("job", text.as_bytes(), &OneFile(&file)).unwrap();
        let task = &job.tasks[0];
        prop_assert_eq!(&task.inputs[0].path, &format!("/w/in/{name}.d"));
        let args = [name.clone(), format!("in/{name}.d"), "{inputs}".to_owned(), "{other}".to_owned()];
        prop_assert_eq!(&task.args[..], &args[..]);
        prop_assert_eq!(&task.outputs[0].path, &format!("/w/out/{name}.0"));
    }
}
