//! Names at the root that no file of the namespace may have: mounts show their control directory under them, and a file of that name would be
//! unreachable.

/// The control directory.
pub const DIRECTORY: &[u8] = b".tidemill";
/// The link to it.
pub const LINK: &[u8] = b".analyzethis";

/// Whether an entry of the root may not have this name.
#[must_use]
pub fn is_reserved(name: &[u8]) -> bool {
    [DIRECTORY, LINK].contains(&name)
}
