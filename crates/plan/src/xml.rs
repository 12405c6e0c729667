//! Text for XML documents, such as pictures.

/// Escapes a text for XML; characters that XML does not allow become a replacement character.
#[must_use]
pub fn escaped(text: &str) -> String {
    quick_xml::escape::escape(text.replace(char::is_control, "\u{fffd}")).into_owned()
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
