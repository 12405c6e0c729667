//! Job files in TOML: each submitted text gives a job or a list of errors, in bounded time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_lang::job::Job;
use tidemill_lang::rule::Rule;

fuzz_target!(|text: &[u8]| {
    // The first line makes the text TOML.
    let text = [b"[job]\n", text].concat();
    match Job::parse("fuzzed", &text) {
        Ok(job) => assert!(!job.tasks.is_empty() || text.len() < 1 << 20),
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    if let Ok(text) = std::str::from_utf8(&text)
        && let Err(errors) = Rule::read("fuzzed", text)
    {
        assert!(!errors.to_string().is_empty());
    }
});
