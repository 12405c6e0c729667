//! The reference of the attributes of files and directories, and of the control directory.

use super::markdown::{code, table};
use tidemill_meta::known_attributes::{KNOWN_ATTRIBUTES, SetOn};
use tidemill_mount::CONTROL_ENTRIES;

const HEAD: &str = "# Attributes and control directory\n
## Attributes\n
`setfattr` and `getfattr` set and print these extended attributes on a mount. [`tidemill set`](commands/set.md) sets most of them on
directories without a mount. An attribute of a directory applies to the directory and to all directories below it; the attribute of the
nearest directory counts.\n\n";

const CONTROL: &str = "## The control directory\n
The control directory `.tidemill` is at the root of every mount. A user's directory `<user>` is for that user only; its name is the user
name or the user's number. [The control directory](../semantics.md#the-control-directory) describes rights and errors.\n\n";

/// Returns the page.
pub(super) fn page() -> String {
    let mut out = HEAD.to_owned();
    let rows = KNOWN_ATTRIBUTES.map(|known| {
        let set_on = match known.set_on {
            SetOn::Nothing => "read only",
            SetOn::Directories => "directories",
            SetOn::All => "directories and files",
        };
        let name = String::from_utf8_lossy(known.name);
        [
            code(&name),
            set_on.to_owned(),
            known.values.to_owned(),
            known.directory.to_owned(),
            known.file.to_owned(),
        ]
    });
    table(
        &mut out,
        [
            "attribute",
            "set on",
            "values",
            "on a directory",
            "on a file",
        ],
        &rows,
    );
    out.push_str("Other attributes in `user.` are stored and annotate the version in its [lineage](../lineage.md#annotations).\n\n");
    out.push_str(CONTROL);
    let rows = CONTROL_ENTRIES.map(|entry| {
        [
            code(&format!(".tidemill/{}", entry.path)),
            entry.content.to_owned(),
        ]
    });
    table(&mut out, ["path", "use"], &rows);
    out + "`.analyzethis` is a symbolic link to `.tidemill`.\n"
}
