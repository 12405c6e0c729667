//! Property tests of the conditions of find and rules.

use proptest::prelude::*;
use tidemill_lang::{find, rule::RuleConditions};

const WORDS: [&str; 26] = [
    "var", "lat", "=", "~", "<=", "!", "(", ")", "and", "or", "not", "\"a b\"", "'", "\"",
    "1990-01", "3.5", "name", "size", "user.x", "attr.", "from", "é", "\\", "1G", "&&", "||",
];

proptest! {
    #[test]
    fn condition_readers_never_panic_on_any_text(text in "\\PC{0,200}") {
        let _ = (find::read(&text), RuleConditions::read(&text));
    }

    #[test]
    fn condition_error_is_within_text_for_any_words(words in prop::collection::vec(0..WORDS.len(), 0..40)) {
        let words: Vec<&str> = words.into_iter().map(|word| WORDS[word]).collect();
        let text = words.join(" ");
        let errors = [
            find::read(&text).err(),
            RuleConditions::read(&text).err(),
        ];
        for error in errors.into_iter().flatten() {
            prop_assert!(error.at <= text.chars().count());
            prop_assert!(!error.what.is_empty());
        }
    }
}
