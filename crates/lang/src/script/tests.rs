//! Tests of the syntax, its errors word by word, and two properties: printing and parsing are inverse, and no input makes the parser panic.

mod toml_form;

use super::*;
use proptest::prelude::*;

fn read(text: &str) -> SettingGroup {
    parse("job.conf", text.as_bytes()).unwrap()
}

fn error(text: &str) -> String {
    parse("job.conf", text.as_bytes()).unwrap_err().to_string()
}

fn data<'g>(group: &'g SettingGroup, name: &str) -> &'g ValueData {
    &group.get(name).unwrap().value.data
}

fn texts(data: &ValueData) -> Vec<&str> {
    let (ValueData::Array(values) | ValueData::List(values)) = data else {
        panic!("{data:?}")
    };
    values
        .iter()
        .map(|v| {
            if let ValueData::Text(text) = &v.data {
                text.as_str()
            } else {
                "?"
            }
        })
        .collect()
}

#[test]
fn script_parses_listing_of_the_paper() {
    let group = read(include_str!("listing1.conf"));
    assert_eq!(data(&group, "name"), &ValueData::Text("getmax".into()));
    let ValueData::List(tasks) = data(&group, "tasks") else {
        panic!()
    };
    assert_eq!(tasks.len(), 3);
    assert_eq!(tasks[2].at, Position { line: 8, column: 3 });
    let ValueData::Group(reduce) = &tasks[2].data else {
        panic!()
    };
    assert_eq!(texts(data(reduce, "input")), ["1.max", "2.max"]);
    assert_eq!(
        reduce.get("output").unwrap().at,
        Position {
            line: 10,
            column: 5
        }
    );
}

#[test]
fn script_ignores_byte_order_mark() {
    let group = read("\u{feff}name = \"a\";");
    assert_eq!(data(&group, "name"), &ValueData::Text("a".into()));
    assert_eq!(
        group.get("name").unwrap().at,
        Position { line: 1, column: 1 }
    );
    assert!(parse("job.conf", "\u{feff}\u{feff}a = 1;".as_bytes()).is_err());
}

#[test]
fn script_parses_numbers_of_every_form() {
    let group = read(
        "a=1;b=-7 c:+3, d=0x1F e=0XffL f=9223372036854775807L g=1.5;h=-.5;i=1e3;j=5.;k=2E-2;l=0b101;m=0o17;n=-9223372036854775808LL",
    );
    let integers = [
        ("a", 1),
        ("b", -7),
        ("c", 3),
        ("d", 31),
        ("e", 255),
        ("f", i64::MAX),
    ];
    for (name, number) in integers
        .into_iter()
        .chain([("l", 5), ("m", 15), ("n", i64::MIN)])
    {
        assert_eq!(data(&group, name), &ValueData::Integer(number), "{name}");
    }
    for (name, number) in [
        ("g", 1.5),
        ("h", -0.5),
        ("i", 1000.0),
        ("j", 5.0),
        ("k", 0.02),
    ] {
        assert_eq!(data(&group, name), &ValueData::Float(number), "{name}");
    }
}

#[test]
fn script_joins_strings_and_decodes_escapes() {
    let group = read(
        "a = \"one \" /* and */ \"two\" # x\n \"\\t\\\"\\\\\\x41\\n\"; b = \"\\w+\\d\"; c = \"é\n\";",
    );
    assert_eq!(
        data(&group, "a"),
        &ValueData::Text("one two\t\"\\A\n".into())
    );
    assert_eq!(data(&group, "b"), &ValueData::Text("\\w+\\d".into()));
    assert_eq!(data(&group, "c"), &ValueData::Text("é\n".into()));
}

#[test]
fn script_parses_comments_separators_and_empty_brackets() {
    let group = read(
        "# one\n// two\n/* three\n*/ a : TRUE b = False, c = { x = 1 y = 2, z = 3; }; d = (); e = [ ]; f = [1,2,]; g = {}",
    );
    assert_eq!(data(&group, "a"), &ValueData::Boolean(true));
    assert_eq!(data(&group, "b"), &ValueData::Boolean(false));
    let ValueData::Group(c) = data(&group, "c") else {
        panic!()
    };
    assert_eq!(c.settings.len(), 3);
    assert_eq!(data(&group, "d"), &ValueData::List(vec![]));
    assert_eq!(data(&group, "e"), &ValueData::Array(vec![]));
    assert!(matches!(data(&group, "f"), ValueData::Array(v) if v.len() == 2));
    assert_eq!(
        data(&group, "g"),
        &ValueData::Group(SettingGroup::default())
    );
    assert_eq!(read(""), SettingGroup::default());
    assert_eq!(
        read("a.*/ = 1".replace(".*/", "-b_*").as_str()).settings[0].name,
        "a-b_*"
    );
}

#[test]
fn script_columns_count_characters() {
    let group = read("a = \"éü\"; b = 1;\r\n\tc = 2;");
    assert_eq!(
        group.get("b").unwrap().at,
        Position {
            line: 1,
            column: 11
        }
    );
    assert_eq!(
        group.get("c").unwrap().value.at,
        Position { line: 2, column: 6 }
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn script_errors_name_place_and_reason() {
    let cases = [
        (
            "t = (\n  { name = \"a\";\n  kernel = \"x\" = }",
            "3:16: expected ';' or '}' after the value of \"kernel\", found '='",
        ),
        (
            "name \"x\"",
            "1:6: expected '=' after the name \"name\", found a string",
        ),
        ("name = ;", "1:8: expected a value for \"name\", found ';'"),
        (
            "name = getmax;",
            "1:8: expected a value for \"name\" (text needs quotes), found \"getmax\"",
        ),
        ("a = 1; }", "1:8: expected the name of a setting, found '}'"),
        (
            "a = 1 }",
            "1:7: expected ';' or the next setting after the value of \"a\", found '}'",
        ),
        (
            "a = { b = 1; ) }",
            "1:14: expected the name of a setting or '}', found ')'",
        ),
        (
            "a = ( 1, 2",
            "1:5: this '(' is never closed: expected ')' before the end of the script",
        ),
        (
            "a = [ 1; b = 2",
            "1:5: this '[' is never closed: expected ']' before ';'",
        ),
        (
            "a = { b = 1;",
            "1:5: this '{' is never closed: expected '}' before the end of the script",
        ),
        (
            "a = ( 1 2 )",
            "1:9: expected ',' or ')' after the value, found \"2\"",
        ),
        ("a = ( , )", "1:7: expected a value or ')', found ','"),
        (
            "a = \"x\nb = 1;",
            "1:5: this string is never closed: expected '\"' before the end of the script",
        ),
        (
            "a = 1; /* x",
            "1:8: this comment is never closed: expected '*/' before the end of the script",
        ),
        (
            "a = 1; /*/",
            "1:8: this comment is never closed: expected '*/' before the end of the script",
        ),
        (
            "a = [\n 1,\n \"x\" ]",
            "3:2: an array holds plain values of one type: expected an integer, found a string; use a list ( … ) to mix them",
        ),
        (
            "a = [ { } ]",
            "1:7: an array holds plain values of one type: expected a plain value, found a table; use a list ( … ) to mix them",
        ),
        (
            "a = 1;\na = 2;",
            "2:1: setting \"a\" is given twice, first at 1:1; remove one",
        ),
        (
            "a = 1.2.3",
            "1:5: \"1.2.3\" is not a number; write text in quotes",
        ),
        (
            "a = 5m",
            "1:5: \"5m\" is not a number; write text in quotes",
        ),
        (
            "a = 9223372036854775808",
            "1:5: 9223372036854775808 does not fit in a 64-bit number",
        ),
        ("a = 1e999", "1:5: 1e999 does not fit in a 64-bit number"),
        (
            "a = \"\\xZZ\"",
            "1:6: expected two hexadecimal digits from 00 to 7f after '\\x'; write other characters as they are",
        ),
        (
            "a = \"\\xff\"",
            "1:6: expected two hexadecimal digits from 00 to 7f after '\\x'; write other characters as they are",
        ),
        (
            "a = 1;\n@include \"b\"",
            "2:1: @include is not allowed in a job file; put the text itself here",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), format!("job.conf:{message}"), "{text:?}");
    }
}

#[test]
fn script_that_is_not_utf8_is_refused_with_place() {
    let error = parse("job.conf", b"a = 1;\n\xff").unwrap_err();
    assert_eq!(
        error.to_string(),
        "job.conf:2:1: the script is not UTF-8 text"
    );
}

#[test]
fn script_depth_and_length_are_bounded() {
    let nested = |depth: usize| format!("a = {}{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse("job.conf", nested(MAX_DEPTH as usize).as_bytes()).is_ok());
    assert!(error(&nested(MAX_DEPTH as usize + 1)).contains("deep in each other"));
    assert!(error(&nested(100_000)).contains("deep in each other"));
    let long = vec![b' '; MAX_SCRIPT_BYTES + 1];
    assert!(matches!(
        parse("job.conf", &long).unwrap_err().problem,
        ScriptProblem::Length(_)
    ));
}

/// Removes positions, which differ between a tree and its printed form; all other data must be equal.
fn without_positions(group: &mut SettingGroup) {
    fn value(v: &mut ScriptValue) {
        v.at = Position::START;
        match &mut v.data {
            ValueData::Array(values) | ValueData::List(values) => values.iter_mut().for_each(value),
            ValueData::Group(group) => without_positions(group),
            ValueData::Boolean(_)
            | ValueData::Integer(_)
            | ValueData::Float(_)
            | ValueData::Text(_)
            | ValueData::Template(_) => {}
        }
    }
    for setting in &mut group.settings {
        setting.at = Position::START;
        value(&mut setting.value);
    }
}

fn at_start(data: ValueData) -> ScriptValue {
    ScriptValue {
        data,
        at: Position::START,
    }
}

fn values(data: Vec<ValueData>) -> Vec<ScriptValue> {
    data.into_iter().map(at_start).collect()
}

fn group_of(settings: std::collections::BTreeMap<String, ValueData>) -> SettingGroup {
    let setting = |(name, data)| Setting {
        name,
        at: Position::START,
        value: at_start(data),
    };
    SettingGroup {
        settings: settings.into_iter().map(setting).collect(),
    }
}

fn any_data() -> impl Strategy<Value = ValueData> {
    let text =
        prop_oneof!["\\PC{0,12}", "[ -~\\n\\t\"\\\\\\x00-\\x1f]{0,12}"].prop_map(ValueData::Text);
    let float = prop::num::f64::NORMAL.prop_map(ValueData::Float);
    let leaf = prop_oneof![
        any::<bool>().prop_map(ValueData::Boolean),
        any::<i64>().prop_map(ValueData::Integer),
        float.clone(),
        text.clone(),
        prop::collection::vec(text, 0..4).prop_map(|v| ValueData::Array(values(v))),
        prop::collection::vec(float, 0..4).prop_map(|v| ValueData::Array(values(v))),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|v| ValueData::List(values(v))),
            prop::collection::btree_map("[A-Za-z*][-A-Za-z0-9_*]{0,8}", inner, 0..6)
                .prop_map(|map| ValueData::Group(group_of(map))),
        ]
    })
}

proptest! {
    #[test]
    fn printed_script_parses_to_the_same_tree(
        settings in prop::collection::btree_map("[A-Za-z*][-A-Za-z0-9_*]{0,8}", any_data(), 0..6),
    ) {
        let group = group_of(settings);
        let mut back = parse("x", group.to_string().as_bytes()).unwrap();
        without_positions(&mut back);
        prop_assert_eq!(back, group);
    }

    #[test]
    fn script_parser_never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse("x", &bytes);
    }

    #[test]
    fn script_parser_never_panics_on_similar_text(
        text in "([a-c*]|[=:;,]|[\\[\\](){}]|\"|\\\\|\\\\x4|/\\*|\\*/|//|#|\n|[0-9.eExXL+-]|@include|true|é| ){0,60}",
    ) {
        if let Err(error) = parse("x", text.as_bytes()) {
            let lines = u32::try_from(text.lines().count()).unwrap();
            prop_assert!(error.at.line <= lines + 1);
        }
    }
}
