//! Job scripts: each submitted text gives a job or a list of errors, in bounded time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_lang::job::Job;

fuzz_target!(|text: &[u8]| {
    match Job::parse("fuzzed", text) {
        Ok(job) => assert!(!job.tasks.is_empty() || text.len() < 1 << 20),
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
});
