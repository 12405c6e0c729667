use super::*;
use proptest::prelude::*;

#[test]
fn condition_error_names_place_and_advice() {
    for (text, at, part) in [
        ("", 0, "a comparison is expected"),
        ("tas", 3, "after tas one of = != < <= > >= ~ is missing"),
        ("var = ", 6, "needs a value after it"),
        ("var = tas units = K", 10, "\"and\" or \"or\" is missing"),
        ("(var = tas", 0, "never closed"),
        ("var = tas)", 9, "has no '('"),
        ("var = \"tas", 6, "never closed"),
        ("var ! tas", 4, "write not"),
        ("!(x > 1)", 0, "write not"),
        ("é = 1 == 2", 6, "write = instead"),
        ("x == 1", 2, "write = instead"),
        ("x<3&&x!=5", 3, "write and instead"),
        ("x < 3 || x > 5", 6, "write or instead"),
        (
            "0 < x <= \"1 a\"",
            6,
            "a comparison has two sides: write 0 < x and x <= …",
        ),
        ("a = 1\0", 5, "zero byte"),
        ("= 3", 0, "a comparison is expected"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.what.contains(part), "{text}: {error}");
        assert_eq!(error.at, at, "{text}: {error}");
    }
    let error = |text: &str| parse(text).unwrap_err().what;
    let deep = format!("{}var = a", "(".repeat(DEPTH_MAX + 1));
    assert!(error(&deep).contains("nested parentheses"));
    let many = vec!["var = a"; COMPARISONS_MAX + 1].join(" or ");
    assert!(error(&many).contains("more than 100 comparisons"));
    assert!(error(&" ".repeat(TEXT_BYTES_MAX + 1)).contains("at most"));
}

#[test]
fn condition_error_points_at_its_position() {
    let text = "size > 1 && owner = a";
    let pointed = parse(text).unwrap_err().pointed(text);
    let lines: Vec<&str> = pointed.lines().collect();
    assert_eq!(
        lines,
        [
            "at character 10: '&&' is not an operator of conditions: write and instead",
            "  size > 1 && owner = a",
            "           ^",
        ]
    );
}

#[test]
fn condition_prints_with_necessary_brackets() {
    for (text, printed) in [
        ("a=1 AND(b<2 or c>3)", "a = 1 and (b < 2 or c > 3)"),
        ("((a = 1 and b = 2) or c = 3)", "a = 1 and b = 2 or c = 3"),
        ("(a = 1 or b = 2) or c = 3", "(a = 1 or b = 2) or c = 3"),
        ("not (a ~ 'x y' and b = 2)", "not (a ~ 'x y' and b = 2)"),
        ("not not a != 1", "not not a != 1"),
        (r#"a = "b\"c""#, r#"a = "b\"c""#),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), printed);
    }
}

#[test]
fn condition_evaluates_only_deciding_tests() {
    let tree = parse("a = 1 or not (b = 1 and c = 1)").unwrap();
    let evaluated = |holding: &[&str]| {
        let mut names = Vec::new();
        let holds = tree.holds(&mut |comparison| {
            let name = comparison.left.text.clone();
            let holds = holding.contains(&name.as_str());
            names.push(name);
            Ok::<_, ()>(holds)
        });
        (holds.unwrap(), names.concat())
    };
    assert_eq!(evaluated(&["a"]), (true, "a".to_owned()));
    assert_eq!(evaluated(&[]), (true, "ab".to_owned()));
    assert_eq!(evaluated(&["b", "c"]), (false, "abc".to_owned()));
}

/// Returns any text of an operand, with or without quotes.
fn operands() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z*.0-9\\\\|&/-]{1,6}",
        r#""([^"\\\x00]|\\[^\x00])*""#,
        r"'([^'\\\x00]|\\[^\x00])*'",
    ]
}

fn conditions() -> impl Strategy<Value = String> {
    let operator = prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">=", "~"]);
    let comparison = (operands(), operator, operands());
    let comparison = comparison.prop_map(|(left, sign, right)| format!("{left} {sign}{right}"));
    comparison.prop_recursive(4, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|all| all.join(" and ")),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|all| all.join(" or ")),
            inner.clone().prop_map(|one| format!("({one})")),
            inner.prop_map(|one| format!("not {one}")),
        ]
    })
}

const WORDS: [&str; 26] = [
    "var", "lat", "=", "~", "<=", "!", "(", ")", "and", "or", "not", "\"a b\"", "'", "\"",
    "1990-01", "3.5", "name", "size", "user.x", "attr.", "from", "é", "\\", "1G", "&&", "||",
];

proptest! {
    #[test]
    fn condition_parser_never_panics_on_any_text(text in "\\PC{0,200}") {
        if let Ok(condition) = parse(&text) {
            prop_assert_eq!(&parse(&condition.to_string()).unwrap(), &condition);
        }
    }

    #[test]
    fn condition_error_is_within_text_for_any_words(words in prop::collection::vec(0..WORDS.len(), 0..40)) {
        let words: Vec<&str> = words.into_iter().map(|word| WORDS[word]).collect();
        let text = words.join(" ");
        if let Err(error) = parse(&text) {
            prop_assert!(error.at <= text.chars().count());
            prop_assert!(!error.what.is_empty());
        }
    }

    #[test]
    fn printed_condition_parses_to_equal_condition(text in conditions()) {
        if let Ok(condition) = parse(&text) {
            let printed = condition.to_string();
            prop_assert_eq!(parse(&printed), Ok(condition), "{}", printed);
        }
    }

    #[test]
    fn operands_keep_their_spans(text in conditions()) {
        if let Ok(condition) = parse(&text) {
            for comparison in condition.tests() {
                for operand in [&comparison.left, &comparison.right] {
                    let range = operand.span.clone();
                    let found: String = text.chars().skip(range.start).take(range.len()).collect();
                    prop_assert_eq!(found, operand.to_string());
                }
            }
        }
    }
}
