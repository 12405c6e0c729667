//! What a test says that can't run here. It goes past the capture of tests that pass, so that it is seen; where all
//! tests must run (`TIDEMILL_TEST_REQUIRE` is set, as CI does), it fails instead.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Write as _;

/// Tells that a test, or the rest of it, is skipped, and what is missing.
pub(crate) fn skip(missing: &str) {
    let required = std::env::var_os("TIDEMILL_TEST_REQUIRE").is_some();
    assert!(!required, "TIDEMILL_TEST_REQUIRE is set, but {missing}");
    tell(missing);
}

/// Tells what is not tested on this machine and can't be: nobody can install it.
pub(crate) fn tell(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {missing}");
}
