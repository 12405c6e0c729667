//! Patterns of values in conditions, which are no paths.

use regex::Regex;

/// Compiles a text in which `*` matches anything, for comparison with a whole value.
pub(super) fn stars(text: &str) -> Result<Regex, String> {
    let parts: Vec<String> = text.split('*').map(regex::escape).collect();
    let regex = Regex::new(&format!("\\A(?s:{})\\z", parts.join(".*")));
    regex.map_err(|error| error.to_string())
}
