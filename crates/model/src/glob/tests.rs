use super::*;
use proptest::prelude::*;

#[test]
fn named_wildcards_match_one_part_of_a_path() {
    let pattern = Pattern::with_names("run-{n}/{x-1}.nc").unwrap();
    assert_eq!(pattern.names().collect::<Vec<_>>(), ["n", "x-1"]);
    for (path, matches) in [
        ("run-07/a.nc", true),
        ("run-/a.nc", false),
        ("run-1/2/a.nc", false),
        ("run-1/.a.nc", false),
    ] {
        assert_eq!(pattern.matches(path), matches, "{path}");
    }
    assert!(Pattern::new("{x}").unwrap().matches("{x}"));
    let escaped = Pattern::with_names("\\{x}").unwrap();
    assert!(escaped.matches("{x}") && escaped.names().next().is_none());
    for (text, at, what) in [
        ("a{x}{y}", 4, "two names need text between them"),
        ("{x}-{x}", 4, "{x} may stand once"),
        ("a{1}", 1, "braces hold a name"),
        ("a{", 1, "braces hold a name"),
        ("a\\", 1, "nothing follows"),
        ("a**", 1, "'**' stands alone"),
        ("a/[x", 2, "never closed"),
    ] {
        let error = Pattern::with_names(text).unwrap_err();
        assert!(error.at == at && error.what.contains(what), "{error:?}");
    }
}

#[test]
fn regex_matches_whole_path_and_has_named_groups_only() {
    let pattern = Pattern::of_regex(r"run-(?<n>\d+)/(a|b)\.nc").unwrap();
    let captures = pattern.captures("run-07/a.nc").unwrap();
    assert_eq!(captures, [("n".to_owned(), "07".to_owned())]);
    assert!(!pattern.matches("run-07/a.ncx") && !pattern.matches("xrun-07/a.nc"));
    assert!(Pattern::of_regex("a|ab").unwrap().matches("ab"));
    assert!(Pattern::of_regex("(?x) a b # text").unwrap().matches("ab"));
    for text in ["(", "a)(b", "(?<n>a", r"\y", "((a{99}){99}){99}"] {
        assert!(Pattern::of_regex(text).is_err(), "{text}");
    }
}

#[test]
fn literal_is_the_only_name_of_a_glob() {
    assert_eq!(literal(r"a\*b\[").as_deref(), Some("a*b["));
    for text in ["a*", "a?", "[a]", "a\\"] {
        assert_eq!(literal(text), None, "{text}");
    }
}

/// Matches a pattern without groups, by a slow reference implementation.
fn means(pattern: &[char], path: &[char], begins: bool) -> bool {
    let Some((&first, rest)) = pattern.split_first() else {
        return path.is_empty();
    };
    let visible = |c: char| c != '/' && !(begins && c == '.');
    match first {
        '*' if begins && rest.first() == Some(&'*') => {
            let after = &rest[1..];
            let whole = after.is_empty();
            let after = if whole { after } else { &after[1..] };
            let text: String = path.iter().collect();
            let hidden = |part: &str| part.is_empty() || part.starts_with('.');
            if whole {
                return !text.split('/').any(hidden);
            }
            let slashes = path.iter().enumerate().filter(|(_, c)| **c == '/');
            let mut starts = std::iter::once(0).chain(slashes.map(|(at, _)| at + 1));
            starts.any(|at| {
                let before: String = path[..at].iter().collect();
                let directories = before.strip_suffix('/').unwrap_or(&before);
                (at == 0 || !directories.split('/').any(hidden)) && means(after, &path[at..], true)
            })
        }
        '*' => {
            let end = path.iter().position(|&c| c == '/').unwrap_or(path.len());
            let end = if begins && path.first() == Some(&'.') {
                0
            } else {
                end
            };
            (0..=end).any(|at| means(rest, &path[at..], false))
        }
        '?' => path.first().is_some_and(|&c| visible(c)) && means(rest, &path[1..], false),
        c => path.first() == Some(&c) && means(rest, &path[1..], c == '/'),
    }
}

proptest! {
    #[test]
    fn pattern_matches_like_naive_reference(
        parts in prop::collection::vec(prop_oneof![Just("**".to_owned()), "[ab.*?]{1,4}"], 1..4),
        path in "[ab.]{0,3}(/[ab.]{1,3}){0,3}",
    ) {
        let clean = |part: &String| part == "**" || !part.contains("**");
        prop_assume!(parts.iter().all(clean) && !path.is_empty());
        let text = parts.join("/");
        let pattern = Pattern::new(&text).unwrap();
        let slow: Vec<char> = text.chars().collect();
        let chars: Vec<char> = path.chars().collect();
        prop_assert_eq!(pattern.matches(&path), means(&slow, &chars, true), "{} {}", text, path);
        if pattern.matches(&path) && !pattern.directory().is_empty() {
            let directory = format!("{}/", pattern.directory());
            prop_assert!(path.starts_with(&directory));
        }
    }

    /// The position of any error is within the pattern.
    #[test]
    fn pattern_error_position_is_within_pattern(text in "[a-z/*?()\\[\\]\\\\+{}|^.-]{1,40}") {
        for error in [Pattern::new(&text), Pattern::with_names(&text), Pattern::of_regex(&text)].into_iter().filter_map(Result::err) {
            prop_assert!(error.at <= text.chars().count(), "{text}: {error:?}");
            prop_assert!(!error.what.is_empty() && !error.what.contains('\n'), "{text}: {error:?}");
        }
    }

    /// The position of a repetition of nothing is that of its own character.
    #[test]
    fn regex_error_has_place_of_its_character(before in "[a-z]{0,5}") {
        let error = Pattern::of_regex(&format!("{before}/(x|{before}|*.txt)")).unwrap_err();
        prop_assert_eq!(error.at, 2 * before.len() + 5);
        prop_assert!(error.what.contains("[^/]*"));
    }

    #[test]
    fn escaped_name_matches_only_itself(name in "([a-z*?{}!^\\[\\]\\\\]|%part|é|\\.){1,8}", other in "[a-z*?{}\\[\\]\\\\.]{1,8}") {
        let glob = escaped(&name);
        prop_assert_eq!(literal(&glob), Some(name.clone()));
        for pattern in [Pattern::new(&glob), Pattern::with_names(&glob)] {
            let pattern = pattern.unwrap();
            prop_assert!(pattern.matches(&name));
            prop_assert_eq!(pattern.matches(&other), name == other);
        }
    }

    /// The names of a path are found again in the path that they make.
    #[test]
    fn named_wildcards_capture_their_text(first in "[a-z0-9]{1,5}", second in "[a-z0-9.]{1,5}") {
        let pattern = Pattern::with_names("in/{first}_day_{second}.nc").unwrap();
        let captures = pattern.captures(&format!("in/{first}_day_{second}.nc")).unwrap();
        let captures: Vec<_> = captures.into_iter().map(|(_, value)| value).collect();
        prop_assert_eq!(captures, [first, second]);
    }
}
