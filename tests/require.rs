//! Messages of tests that can't run on this machine. They bypass the capture of output, so that they are visible for passing
//! tests. If `TIDEMILL_TEST_REQUIRE` is set, as in CI, such a test fails instead.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Write as _;

/// Reports that a test, or its rest, is skipped, and names the missing requirement.
pub(crate) fn skip(missing: &str) {
    let required = std::env::var_os("TIDEMILL_TEST_REQUIRE").is_some();
    assert!(!required, "TIDEMILL_TEST_REQUIRE is set, but {missing}");
    tell(missing);
}

/// Reports an untested feature whose requirement can't be installed on this machine.
pub(crate) fn tell(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {missing}");
}
