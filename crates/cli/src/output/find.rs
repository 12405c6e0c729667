//! Results of `tidemill find`.

use super::View;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tidemill_core::display::{escaped, line};
use tidemill_wire::v1;

/// File that was found.
#[derive(Debug)]
pub(crate) struct FoundView<'a> {
    /// Mount point of the cluster, if the path is shown below it.
    pub(crate) mount: Option<&'a Path>,
    pub(crate) file: v1::Found,
}

impl FoundView<'_> {
    fn path(&self) -> Vec<u8> {
        let mount = self
            .mount
            .map_or(&[][..], |mount| mount.as_os_str().as_bytes());
        [mount, &self.file.path].concat()
    }
}

impl View for FoundView<'_> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", line(&String::from_utf8_lossy(&self.path())))
    }

    fn json(&self) -> Value {
        let file = &self.file;
        let mut shown = json!({
            "path": escaped(&self.path()),
            "inode": file.ino,
            "object": file.object,
            "size": file.size,
            "mtime": file.mtime,
            "uid": file.uid,
        });
        if let (Some(shown), Ok(header)) =
            (shown.as_object_mut(), serde_json::from_str(&file.header))
        {
            let _: Option<Value> = shown.insert("header".into(), header);
        }
        shown
    }
}
