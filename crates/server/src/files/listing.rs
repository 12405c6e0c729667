//! Contents of a directory as JSON. The server reads and sends the entries in pages, so that no directory is too large.

use super::FileRefusal;
use super::path::{FILES, encoded};
use super::stream::{BytesUnreadable, StreamSender};
use bytes::Bytes;
use serde_json::json;
use std::future::Future;
use tidemill_model::display::escaped;
use tidemill_wire::v1::{self, Kind};

/// Number of directory entries that are read and sent at once.
pub(crate) const ENTRIES: u32 = 1000;

/// Sends the given first entries of the directory at `path` and then all other entries.
pub(crate) async fn send<F>(
    path: &[u8],
    mut page: v1::Entries,
    to: &StreamSender,
    next: impl Fn(Vec<u8>) -> F,
) where
    F: Future<Output = Result<v1::Entries, FileRefusal>>,
{
    let names = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty());
    let directory = names.fold(FILES.to_owned(), |directory, name| {
        directory + "/" + &encoded(name)
    });
    let mut text = String::from("{\"entries\":[");
    let mut between = "";
    loop {
        for entry in &page.entries {
            text.push_str(between);
            between = ",\n";
            text.push_str(&shown(&directory, entry));
        }
        if page.end {
            text.push_str("]}\n");
        }
        if !to.send(Bytes::from(std::mem::take(&mut text))).await || page.end {
            return;
        }
        let last = page.entries.last().map(|entry| entry.name.clone());
        page = match next(last.unwrap_or_default()).await {
            Ok(page) => page,
            Err(why) => return to.end_with_error(BytesUnreadable::of(&why)).await,
        };
    }
}

/// Returns one entry as JSON: `url` is exact, and `name` is the readable form of the name.
fn shown(directory: &str, entry: &v1::Entry) -> String {
    let attr = entry.attr.unwrap_or_default();
    let slash = if attr.kind() == Kind::Directory {
        "/"
    } else {
        ""
    };
    let mut shown = json!({
        "name": escaped(&entry.name),
        "url": format!("{directory}/{}{slash}", encoded(&entry.name)),
        "kind": match attr.kind() {
            Kind::Directory => "directory",
            Kind::Symlink => "symlink",
            Kind::File => "file",
            _ => "special",
        },
        "mtime": attr.mtime,
    });
    if attr.kind() == Kind::File {
        shown["size"] = attr.size.into();
        shown["version"] = attr.version.into();
    }
    shown.to_string()
}
