use super::*;
use proptest::prelude::*;

fn refused(text: &str) -> (usize, String) {
    let error = read(text).expect_err(text);
    (error.at, error.what)
}

/// Returns the parsed expression with all parentheses.
fn shown(expr: &Expr) -> String {
    let joined = |all: &[Expr], word: &str| {
        let all: Vec<String> = all.iter().map(shown).collect();
        format!("({})", all.join(word))
    };
    match expr {
        Expr::All(all) => joined(all, " and "),
        Expr::Any(all) => joined(all, " or "),
        Expr::Not(one) => format!("not {}", shown(one)),
        Expr::Test(Test::Text {
            key,
            compare,
            value,
        }) => {
            format!("{key} {} \"{}\"", compare.sign(), value.text)
        }
        Expr::Test(test) => format!("{test:?}"),
    }
}

#[test]
fn find_and_binds_before_or_and_brackets_before_both() {
    let all = |text| shown(&read(text).unwrap());
    assert_eq!(
        all("var = a or var = b and not units=K"),
        "(var = \"a\" or (var = \"b\" and not units = \"K\"))"
    );
    assert_eq!(
        all("(var = a OR var = b) AND dim.lat >= 180"),
        "((var = \"a\" or var = \"b\") and dim.lat >= \"180\")"
    );
    assert_eq!(
        all(r#"attr.institution ~ "NC.*" and long_name = 'a \'b\''"#),
        r#"(attr.institution ~ "NC.*" and long_name = "a 'b'")"#
    );
}

#[test]
fn find_error_names_place_and_reason() {
    for (text, at, part) in [
        ("", 0, "a condition is expected"),
        ("tas", 3, "after tas one of"),
        ("var = ", 6, "needs a value after it"),
        ("var = tas units = K", 10, "\"and\" or \"or\" is missing"),
        ("(var = tas", 0, "never closed"),
        ("var = tas)", 9, "has no '('"),
        ("var = \"tas", 6, "never closed"),
        ("var ! tas", 4, "before '='"),
        ("attr.x ~ \"(\"", 9, "not a regular expression"),
        ("lat < north", 6, "neither a number nor a time"),
        ("size > big", 7, "not a size"),
        ("mtime > yesterday", 8, "not a time"),
        ("owner > a", 0, "compared by one of ="),
        ("lat ~ 3", 0, "not a text"),
        ("dim.lat < x", 10, "not a number"),
        ("é = 1 and name < x", 10, "compared by one of"),
        (
            "attr.x ~ \"(a{1000}){1000}\"",
            9,
            "not a regular expression",
        ),
    ] {
        let (found, what) = refused(text);
        assert!(what.contains(part), "{text}: {what}");
        assert_eq!(found, at, "{text}: {what}");
    }
    let deep = format!("{}var = a", "(".repeat(DEPTH_MAX + 1));
    assert!(refused(&deep).1.contains("nested parentheses"));
    let many = vec!["var = a"; TESTS_MAX + 1].join(" or ");
    assert!(refused(&many).1.contains("more than 64 conditions"));
    assert!(
        refused(&" ".repeat(TEXT_BYTES_MAX + 1))
            .1
            .contains("at most")
    );
}

#[test]
fn moment_spans_its_smallest_given_unit() {
    let places = |text| SearchTime::read(text).unwrap().places();
    let same = |one: f64, other: f64| assert!(one.total_cmp(&other).is_eq(), "{one} {other}");
    let (start, end) = places("1990");
    same(start, place_in_time((1990, 1, 1), 0.0));
    same(end, place_in_time((1991, 1, 1), 0.0));
    for text in ["1990-12", "1990-12-31", "1990-12-31T23"] {
        same(places(text).1, end);
    }
    // The 30th of February is a day of some calendars.
    assert!(places("1990-02-30").0 < places("1990-03-01").0);
    let nanos = |text| SearchTime::read(text).unwrap().nanos();
    assert_eq!(nanos("1970"), (0, 365 * 86_400_000_000_000));
    assert_eq!(nanos("1970-01-31").1, nanos("1970-02").0);
    assert_eq!(nanos("1970-01-01T00:01").0, 60_000_000_000);
    for text in [
        "1990-13",
        "1990-1-1-1",
        "1990-01T3",
        "99999999999",
        "-1",
        "1990-01-01T25",
        "",
        "-",
        "x",
    ] {
        assert_eq!(SearchTime::read(text), None, "{text}");
    }
}

const WORDS: [&str; 24] = [
    "var", "lat", "=", "~", "<=", "!", "(", ")", "and", "or", "not", "\"a b\"", "'", "\"",
    "1990-01", "3.5", "name", "size", "user.x", "attr.", "from", "é", "\\", "1G",
];

proptest! {
    #[test]
    fn find_parser_never_panics_on_any_text(text in "\\PC{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn find_parser_error_is_within_text_for_any_words(words in proptest::collection::vec(0..WORDS.len(), 0..40)) {
        let words: Vec<&str> = words.into_iter().map(|word| WORDS[word]).collect();
        let text = words.join(" ");
        if let Err(error) = read(&text) {
            prop_assert!(error.at <= text.chars().count());
            prop_assert!(!error.what.is_empty());
        }
    }

    #[test]
    fn moment_places_and_nanos_are_ordered(text in "[0-9]{1,4}(-[01][0-9](-[0-3][0-9](T[0-2][0-9](:[0-5][0-9])?)?)?)?") {
        if let Some(moment) = SearchTime::read(&text) {
            let ((from, to), (first, last)) = (moment.places(), moment.nanos());
            prop_assert!(from < to);
            prop_assert!(first <= last);
        }
    }
}
