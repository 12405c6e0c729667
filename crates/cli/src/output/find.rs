//! Results of `tidemill find`.

use super::table::Text;
use super::{Report, records};
use crate::files::ClusterPath;
use crate::format::{Bytes, Time};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tidemill_wire::v1;

records! {
    /// File that matches a search.
    Found new(mount: Option<&Path>, file: &v1::Found) {
        /// Path in the cluster, or below the mount point on this machine.
        path: ClusterPath = below(mount, &file.path),
        inode: u64 = file.ino,
        /// Id of the object with the content.
        object: u64 = file.object,
        size: Bytes = Bytes(file.size),
        /// Time of the last change.
        mtime: Time = Time(file.mtime),
        uid: u32 = file.uid,
        /// Description of a scientific file; absent if the file has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        header: Option<Value> = serde_json::from_str(&file.header).ok(),
    }
}

/// Returns a path of the cluster below its mount point, if there is one.
fn below(mount: Option<&Path>, path: &[u8]) -> ClusterPath {
    let mount = mount.map_or(&[][..], |mount| mount.as_os_str().as_bytes());
    [mount, path].concat().into()
}

impl Report for Found {
    fn text(&self, out: &mut Text) {
        writeln!(out, "{}", self.path);
    }
}
