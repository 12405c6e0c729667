use super::*;
use crate::job::Job;
use crate::rule::Rule;
use proptest::prelude::*;

fn spec(on: On) -> HookSpec {
    HookSpec {
        pattern: "/run/step-*.dat".into(),
        map: "max dtype=f32".into(),
        output: "max/{stem}".into(),
        on,
        ..HookSpec::default()
    }
}

fn read(spec: &HookSpec) -> Rule {
    Rule::read("hook", &spec.rule_text()).unwrap()
}

fn refused(spec: &HookSpec) -> String {
    Rule::read("hook", &spec.rule_text())
        .unwrap_err()
        .to_string()
}

#[test]
fn hook_becomes_a_rule_with_its_task() {
    let rule = read(&spec(On::Write));
    assert_eq!((rule.name.as_str(), rule.workdir.as_str()), ("max", "/run"));
    assert!(rule.streaming && rule.batch.is_none() && rule.matches("/run/step-7.dat"));
    let task = ("max@1-9".to_owned(), 9, vec!["/run/step-7.dat"]);
    let script = rule.script(1, &[task]).unwrap();
    let job = Job::parse("job", script.as_bytes()).unwrap();
    let task = &job.tasks[0];
    assert_eq!(task.stages.len(), 1);
    assert_eq!(task.stages[0].args, ["dtype=f32"]);
    assert_eq!(task.stdin.as_deref(), Some("step-7.dat"));
    assert_eq!(task.stdout.as_deref(), Some("max/step-7"));
    assert_eq!(task.outputs[0].path, "/run/max/step-7");
}

#[test]
fn hook_input_names_stay_separate_words() {
    let map = "sh -c 'cat \"$@\"' sh {inputs} | wc".into();
    let rule = read(&HookSpec {
        map,
        group: Some(2),
        output: "n/{batch}".into(),
        ..spec(On::Group)
    });
    assert_eq!(rule.batch.unwrap().files, 2);
    let names = ["/run/step-a b.dat", "/run/step-\"|'\\.dat"];
    let script = rule.script(1, &[("t".into(), 9, names.to_vec())]).unwrap();
    let job = Job::parse("job", script.as_bytes()).unwrap();
    let words = &job.tasks[0].stages[0].args;
    assert_eq!(
        words[1..],
        ["cat \"$@\"", "sh", "step-a b.dat", "step-\"|'\\.dat"]
    );
}

#[test]
fn hook_reduces_mapped_parts_in_a_job_of_its_own() {
    let reduce = Some("sort -n {inputs}".to_owned());
    let output = "all/{batch}.txt".to_owned();
    let rule = read(&HookSpec {
        reduce,
        output,
        ..spec(On::Seal)
    });
    let part = rule.outputs(12, &["/run/step-1.dat"]).unwrap();
    assert_eq!(part, ["all/.max/12"]);
    let parts = ["/run/all/.max/12".to_owned(), "/run/all/.max/9".to_owned()];
    let script = rule.reduce_script(2, 3, &parts).unwrap();
    let job = Job::parse("job", script.as_bytes()).unwrap();
    assert_eq!(job.name, "max@2");
    let task = &job.tasks[0];
    assert_eq!(
        (task.name.as_str(), task.outputs[0].path.as_str()),
        ("max@2-batch-3", "/run/all/3.txt")
    );
    assert_eq!(task.stages[0].args, ["-n", "all/.max/12", "all/.max/9"]);
    assert!(read(&spec(On::Seal)).reduce_script(1, 1, &parts).is_none());
}

#[test]
fn hook_results_may_be_in_another_directory() {
    let spec = HookSpec {
        pattern: "/a/b \\?c/*/x.dat".into(),
        output: "/a/out/{batch}".into(),
        parts: Some("parts/{batch}".into()),
        reduce: Some("cat".into()),
        marker: Some("DONE".into()),
        ..spec(On::Seal)
    };
    let rule = read(&spec);
    assert_eq!(
        (rule.workdir.as_str(), rule.pattern.text()),
        ("/a", "b \\?c/*/x.dat")
    );
    assert!(rule.matches("/a/b ?c/1/x.dat") && !rule.matches("/a/b xc/1/x.dat"));
    let part = rule.outputs(7, &["/a/b ?c/1/x.dat"]).unwrap();
    assert_eq!(part, ["/a/b ?c/parts/7"]);
    let hook = rule.hook.unwrap();
    let Some(BatchEnd::Marker(marker)) = &hook.batches else {
        panic!("{hook:?}")
    };
    assert!(marker.matches("b ?c/DONE") && !marker.matches("DONE"));
    // The shown text means the same hook.
    let again = read(&hook.spec).hook.unwrap();
    assert_eq!(again.spec, hook.spec);
    let apart = HookSpec {
        pattern: "/x/*.dat".into(),
        output: "/y/{stem}".into(),
        ..self::spec(On::Seal)
    };
    assert_eq!(read(&apart).workdir, "/");
}

#[test]
fn invalid_hooks_are_refused() {
    for (wrong, why) in nonsense() {
        let reported = refused(&wrong);
        assert!(reported.contains(why), "{wrong:?}: {reported}");
    }
    let text = spec(On::Seal).rule_text() + "task = { kernel = \"x\"; output = [ \"y\" ]; };";
    let reported = Rule::read("hook", &text).unwrap_err().to_string();
    assert!(reported.contains("its hook defines them"), "{reported}");
}

/// Invalid hooks, and the errors about them.
fn nonsense() -> Vec<(HookSpec, &'static str)> {
    let changes: [(fn(&mut HookSpec), _); 10] = [
        (|spec| spec.output = "one".into(), "{stem}"),
        (|spec| spec.map = "a || b".into(), "on each side"),
        (|spec| spec.group = Some(3), "there is no reduce"),
        (|spec| spec.marker = Some("a".into()), "there is no reduce"),
        (|spec| spec.parts = Some("p".into()), "there is no reduce"),
        (
            |spec| spec.reduce = Some("cat".into()),
            "has no meaning in the output of a reduction",
        ),
        (|spec| spec.marker = Some("a[".into()), "never closed"),
        (|spec| spec.output = "a/../{stem}".into(), ".."),
        (|spec| spec.time = Some("soon".into()), "time"),
        (|spec| spec.name = "a b".into(), "a b"),
    ];
    let changed = changes.into_iter().map(|(change, why)| {
        let mut wrong = spec(On::Seal);
        change(&mut wrong);
        (wrong, why)
    });
    changed.chain([(spec(On::Group), "group = 10")]).collect()
}

const PAPER: &str = "
<output.dat>
    op: func
    lib_path: /users/username/directory/lib.so
    output: outputfile
    cache times: 3
</output.dat>

# what is mapped by a section is reduced by the next one
</run/*.dat>
op: map
lib_path: max
output: parts/{batch}
</run/*.dat>
</run/*.dat>
op: reduce
lib_path: max dtype=text
output: all
<//run/*.dat>
";

#[test]
fn hook_parses_format_of_the_paper() {
    let all = HookSpec::read_all(PAPER).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].on, all[0].group), (On::Group, Some(3)));
    assert_eq!(all[0].own_name(), "lib");
    assert_eq!(read(&all[0]).workdir, "/");
    let second = &all[1];
    assert_eq!((second.on, second.output.as_str()), (On::Write, "all"));
    assert_eq!(second.parts.as_deref(), Some("parts/{batch}"));
    assert_eq!(second.reduce.as_deref(), Some("max dtype=text"));
    for (text, line, why) in [
        ("op: map", 1, "outside"),
        ("<a>\nop: map", 2, "write </a>"),
        ("<a>\n</b>", 2, "write </a>"),
        ("<a>\nop: map\nlib_path: x\n</a>", 4, "no output"),
        ("<a>\nlib_path:\n</a>", 2, "no value"),
        ("<a>\ncache times: 0\n</a>", 2, "from 1 to"),
        ("<a>\ncolour: red\n</a>", 2, "does not exist"),
        (
            "<a>\nop: reduce\nlib_path: x\noutput: y\n</a>",
            5,
            "nothing maps a",
        ),
        ("<a>\nop: solve\nlib_path: x\noutput: y\n</a>", 5, "solve"),
        ("<a>\ninputs: some\n</a>", 2, "keep, delete or evict"),
    ] {
        let error = HookSpec::read_all(text).unwrap_err();
        assert!(
            error.line == line && error.what.contains(why),
            "{text:?}: {error}"
        );
    }
}

fn specs() -> impl Strategy<Value = HookSpec> {
    let word = "[a-z{}/*<>.:#|\"' -]{0,12}[a-z.]";
    let words = || word.prop_map(|word| word.trim().to_owned());
    let maybe = || prop::option::of(words());
    let plain = (words(), words(), words(), words(), maybe(), maybe());
    let kinds = (
        prop::sample::select(ONS.to_vec()),
        prop::sample::select(INPUT_ACTIONS.to_vec()),
    );
    (
        plain,
        maybe(),
        prop::option::of(2_u32..BATCH_FILES_MAX),
        maybe(),
        kinds,
    )
        .prop_map(
            |(
                (name, pattern, map, output, reduce, parts),
                marker,
                group,
                time,
                ((on, _), (inputs, _)),
            )| HookSpec {
                name,
                pattern,
                map,
                output,
                reduce,
                parts,
                group,
                marker,
                inputs,
                on,
                mpi: group.is_some(),
                size: time.clone(),
                time,
            },
        )
}

proptest! {
    #[test]
    fn printed_hook_parses_back(all in prop::collection::vec(specs(), 0..4)) {
        let text: String = all.iter().map(ToString::to_string).collect();
        prop_assert_eq!(HookSpec::read_all(&text).unwrap(), all);
    }

    #[test]
    fn hook_parser_never_panics_on_any_text(text in "(<a>\n|</a>\n|op: |map\n|[ -~]{0,9}\n){0,12}") {
        let _ = HookSpec::read_all(&text);
    }

    #[test]
    fn file_order_is_a_total_order(mut names in prop::collection::vec("[a0-2-]{0,4}", 3)) {
        let (a, b, c) = (names[0].clone(), names[1].clone(), names[2].clone());
        prop_assert_eq!(file_order(&a, &b), file_order(&b, &a).reverse());
        prop_assert_eq!(file_order(&a, &b) == Ordering::Equal, a == b);
        if file_order(&a, &b).is_le() && file_order(&b, &c).is_le() {
            prop_assert!(file_order(&a, &c).is_le());
        }
        names.sort_by(|one, other| file_order(one, other));
    }
}

#[test]
fn file_order_compares_numbers_in_names() {
    let mut names = ["s-10", "s-9", "s-009b", "t", "s-1x", "s-100"];
    names.sort_by(|one, other| file_order(one, other));
    assert_eq!(names, ["s-1x", "s-9", "s-009b", "s-10", "s-100", "t"]);
}

#[test]
fn documented_hooks_parse() {
    let page = include_str!("../../../../../docs/hooks.md");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let mut toml = blocks
        .iter()
        .filter_map(|block| block.strip_prefix("toml\n"));
    let rule = Rule::read("page", toml.next().unwrap()).unwrap();
    assert!(toml.all(|text| Rule::read("page", text).unwrap().hook.is_some()));
    let hook = rule.hook.as_ref().unwrap();
    assert!(
        matches!(hook.batches, Some(BatchEnd::Close)) && hook.spec.inputs == InputAction::Delete
    );
    // The printed text means the same hook.
    let again = Rule::read("again", &hook.spec.rule_text()).unwrap();
    assert_eq!(again.hook.unwrap().spec, hook.spec);
    assert_eq!(rule.limit("time").as_deref(), Some("10m"));
    let paper = blocks
        .iter()
        .find(|block| block.contains("lib_path"))
        .unwrap();
    let lines = paper.lines().skip_while(|line| !line.starts_with('<'));
    let text: Vec<&str> = lines.take_while(|line| *line != "END").collect();
    let specs = HookSpec::read_all(&text.join("\n")).unwrap();
    assert_eq!((specs.len(), specs[0].on), (1, On::Write));
    read(&specs[0]);
}
