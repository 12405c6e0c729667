//! Names in the root directory that no file of the namespace may have: mounts show their control directory under these names, and a file
//! with such a name would be unreachable.

/// Name of the control directory.
pub const DIRECTORY: &[u8] = b".tidemill";
/// Name of the link to the control directory.
pub const LINK: &[u8] = b".analyzethis";

/// Whether an entry of the root directory must not have the name `name`.
#[must_use]
pub fn is_reserved(name: &[u8]) -> bool {
    [DIRECTORY, LINK].contains(&name)
}
