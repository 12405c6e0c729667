//! Pipelines of kernels in a script: `sort dtype=i32 | zstd | encrypt key=k`.

use super::JobProblem;

/// Maximum number of kernels in one pipeline.
pub const MAX_STAGES: usize = 64;

/// Returns whether the text that names a kernel is a pipeline.
pub(super) fn is_pipeline(text: &str) -> bool {
    text.contains('|')
}

/// Splits a pipeline into its kernels, each followed by its arguments.
///
/// White space separates words. Text between `'` is taken unchanged; between `"` a backslash makes the next character plain, and so it does
/// outside of quotes. A `|` that is not plain ends a kernel; a text that begins with `|` is a pipeline, even with one kernel.
///
/// # Errors
/// A quote without its end, or a kernel without a name.
pub(crate) fn split(text: &str) -> Result<Vec<Vec<String>>, JobProblem> {
    let wrong = |reason| JobProblem::Pipeline {
        text: text.to_owned(),
        reason,
    };
    let text = text.trim_start();
    let text = text.strip_prefix('|').unwrap_or(text);
    let mut stages = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    let end = |word: &mut Option<String>, stages: &mut Vec<Vec<String>>| {
        if let (Some(word), Some(stage)) = (word.take(), stages.last_mut()) {
            stage.push(word);
        }
    };
    while let Some(next) = rest.next() {
        match next {
            '|' => {
                end(&mut word, &mut stages);
                stages.push(Vec::new());
            }
            space if space.is_ascii_whitespace() => end(&mut word, &mut stages),
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or_else(|| wrong("a quote has no end"))? {
                        close if close == quote => break,
                        '\\' if quote == '"' => {
                            word.extend(rest.next());
                        }
                        plain => word.push(plain),
                    }
                }
            }
            '\\' => {
                let plain = rest.next().ok_or_else(|| wrong("it ends in a backslash"))?;
                word.get_or_insert_default().push(plain);
            }
            plain => word.get_or_insert_default().push(plain),
        }
    }
    end(&mut word, &mut stages);
    if stages
        .iter()
        .any(|stage| stage.first().is_none_or(String::is_empty))
    {
        return Err(wrong("there must be a kernel on each side of a |"));
    }
    if stages.len() > MAX_STAGES {
        return Err(wrong("it has more than 64 kernels"));
    }
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipeline_splits_words_quotes_and_stages() {
        for (text, stages) in [
            ("sort | zstd", vec![vec!["sort"], vec!["zstd"]]),
            ("sort|zstd", vec![vec!["sort"], vec!["zstd"]]),
            (" a  b\t| c ", vec![vec!["a", "b"], vec!["c"]]),
            ("grep 'a|b c' | x", vec![vec!["grep", "a|b c"], vec!["x"]]),
            (
                r#"grep "a\"|\\" | x"#,
                vec![vec!["grep", r#"a"|\"#], vec!["x"]],
            ),
            (r"a\|b\ c | x", vec![vec!["a|b c"], vec!["x"]]),
            ("a '' | x", vec![vec!["a", ""], vec!["x"]]),
            ("where='x > 1' | x", vec![vec!["where=x > 1"], vec!["x"]]),
        ] {
            assert_eq!(split(text).unwrap(), stages, "{text}");
        }
        for text in ["a |", "a || b", "a | 'b", "a | \\", "'' | b", "a | \"b"] {
            assert!(split(text).is_err(), "{text}");
        }
        let most = vec!["a"; MAX_STAGES].join("|");
        assert_eq!(split(&most).unwrap().len(), MAX_STAGES);
        assert!(split(&format!("{most}|a")).is_err());
    }
}
