//! Unknown keys: extends the messages of TOML and JSON readers with the key that was probably meant.

use tidemill_model::similar_names::nearest;

/// Returns the message of a TOML or JSON reader, with the key that was probably meant if the message is about an unknown key. Derived
/// readers write "unknown field `a`, expected one of `b`, `c`".
pub(crate) fn with_suggestion(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"];
    let rest = unknown.iter().find_map(|start| message.strip_prefix(start));
    let meant = rest.and_then(|rest| {
        let (key, known) = rest.split_once("`, expected ")?;
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        nearest(key, &known)
    });
    match meant {
        Some(meant) => format!("{message}; did you mean `{meant}`?"),
        None => message.to_owned(),
    }
}

/// Returns `; did you mean …?`, or an empty text if no known key resembles `key`.
pub(crate) fn perhaps(key: &str, known: &[&str]) -> String {
    nearest(key, known).map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only ever refused")]
    struct Three {
        time: u32,
        rate: u32,
        output: u32,
    }

    /// The text of the error belongs to the TOML and JSON parsers and may change, so the test uses both parsers.
    #[test]
    fn misspelt_key_error_suggests_the_intended_key() {
        let toml = toml::from_str::<Three>("tiem = 1").unwrap_err();
        assert!(with_suggestion(toml.message()).ends_with("; did you mean `time`?"));
        let json = serde_json::from_str::<Three>(r#"{ "ouptut": 1 }"#).unwrap_err();
        let json = json.to_string();
        let json = json.split(" at line ").next().unwrap();
        assert!(
            with_suggestion(json).ends_with("; did you mean `output`?"),
            "{json}"
        );
        let far = toml::from_str::<Three>("colour = 1").unwrap_err();
        assert!(!with_suggestion(far.message()).contains("did you mean"));
        assert_eq!(with_suggestion("unknown field `"), "unknown field `");
    }
}
