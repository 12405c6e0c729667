//! Names at the root that no file of the namespace may have: mounts show their control folder under them, and a file of that name would be
//! unreachable.

/// The control folder.
pub const FOLDER: &[u8] = b".tidemill";
/// The link to it.
pub const LINK: &[u8] = b".analyzethis";

/// Whether an entry of the root may not have this name.
#[must_use]
pub fn is_reserved(name: &[u8]) -> bool {
    [FOLDER, LINK].contains(&name)
}
