//! Text for XML documents, such as pictures.

/// Escapes a text for XML; characters that XML does not allow become a replacement character.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_escapes_markup_and_control_characters() {
        assert_eq!(
            escaped("<a b=\"c\">&\u{1}é"),
            "&lt;a b=&quot;c&quot;&gt;&amp;\u{fffd}é"
        );
    }
}
