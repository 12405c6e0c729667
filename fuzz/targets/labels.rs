//! Logs of labels: a record's paths and data are within the log, also while another thread changes the log.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidemill_label::fuzzing::read(bytes));
