use super::*;

fn refused(text: &str) -> (usize, String) {
    let error = read(text).expect_err(text);
    (error.at, error.what)
}

/// Returns the condition with the debug form of each test.
fn shown(text: &str) -> String {
    let shown = |test: &Test| match test {
        Test::Text {
            key,
            compare,
            value,
        } => format!("{key} {} {:?}", compare.sign(), value.text),
        test => format!("{test:?}"),
    };
    fn joined(all: &[Tree<String>], word: &str) -> String {
        let all: Vec<String> = all.iter().map(nested).collect();
        format!("({})", all.join(word))
    }
    fn nested(tree: &Tree<String>) -> String {
        match tree {
            Tree::All(all) => joined(all, " and "),
            Tree::Any(all) => joined(all, " or "),
            Tree::Not(one) => format!("not {}", nested(one)),
            Tree::Test(test) => test.clone(),
        }
    }
    nested(&read(text).unwrap().map(&mut |test| shown(test)))
}

#[test]
fn find_and_binds_before_or_and_brackets_before_both() {
    assert_eq!(
        shown("var = a or var = b and not units=K"),
        "(var = \"a\" or (var = \"b\" and not units = \"K\"))"
    );
    assert_eq!(
        shown("(var = a OR var = b) AND dim.lat >= 180"),
        "((var = \"a\" or var = \"b\") and dim.lat >= \"180\")"
    );
    assert_eq!(
        shown(r#"attr.institution ~ "NC.*" and long_name = 'a \'b\''"#),
        r#"(attr.institution ~ "NC.*" and long_name = "a 'b'")"#
    );
}

#[test]
fn find_error_names_place_and_reason() {
    for (text, at, part) in [
        ("", 0, "a comparison is expected"),
        ("attr.x ~ \"(\"", 9, "not a regular expression"),
        ("name ~ *.nc", 7, "for wildcards such as * write ="),
        ("name = a/b", 7, "search below a directory with --under"),
        ("name = \"[a\"", 7, "not a pattern"),
        ("lat < north", 6, "neither a number nor a time"),
        ("size > big", 7, "does not begin with a whole number"),
        ("size > 1.5G", 7, "does not begin with a whole number"),
        (
            "size > 1g",
            7,
            "1g is not a size: the unit \"g\" is unknown; write a whole number with B, kB, MB",
        ),
        ("mtime > yesterday", 8, "not a time: write 2026"),
        ("owner > a", 0, "compared by one of = !="),
        ("lat ~ 3", 0, "compared by one of = != < <= > >="),
        ("dim.lat < x", 10, "\"x\" is not a number, and < needs"),
        ("é = 1 and name < x", 10, "compared by one of = != ~"),
        (
            "attr.x ~ \"(a{1000}){1000}\"",
            9,
            "not a regular expression",
        ),
        (
            "ownr = alice",
            0,
            "did you mean \"owner\"? Known names are var,",
        ),
        (
            "5GB < size",
            0,
            "the name stands on the left: write size > 5GB",
        ),
    ] {
        let (found, what) = refused(text);
        assert!(what.contains(part), "{text}: {what}");
        assert_eq!(found, at, "{text}: {what}");
    }
}

#[test]
fn find_name_is_compared_with_pattern_or_regular_expression() {
    for (text, name, fits) in [
        ("name = a.nc", "a.nc", true),
        ("name = a.nc", "b.nc", false),
        ("name = *.nc", "a.nc", true),
        ("name = *.nc", "a.ncx", false),
        ("name = 'a(1)*'", "a(1).nc", true),
        ("name = 'a\\*'", "a*", true),
        ("name = 'a\\*'", "ab", false),
        ("name ~ nc$", "a.nc", true),
        ("name ~ a", "xax", true),
    ] {
        let Tree::Test(Test::Name { equal, wanted }) = read(text).unwrap() else {
            panic!("{text}")
        };
        assert!(equal, "{text}");
        assert_eq!(wanted.fits(name), fits, "{text} {name}");
    }
    let unequal = read("name != *.nc").unwrap();
    assert!(matches!(
        unequal,
        Tree::Test(Test::Name { equal: false, .. })
    ));
}
