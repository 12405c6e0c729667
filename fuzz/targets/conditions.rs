//! Conditions of searches, rules and filters: each text gives a condition or an error within the text, and a printed condition is equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_model::condition::parse;
use tidemill_lang::find::read;
use tidemill_lang::rule::RuleConditions;

fuzz_target!(|text: &str| {
    let parsed = parse(text);
    if let Ok(condition) = &parsed {
        let printed = condition.to_string();
        assert_eq!(parse(&printed).as_ref(), Ok(condition), "{printed}");
    }
    let search = read(text).err();
    let rule = RuleConditions::read(text).err();
    for error in [parsed.err(), search, rule].into_iter().flatten() {
        assert!(error.at <= text.chars().count());
    }
});
