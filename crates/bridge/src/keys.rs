//! Keys of stores: from files that nobody else can read, to the store and nowhere else.

use crate::Error;
use crate::error::cut;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest file of keys.
const BYTES_MAX: u64 = 64 << 10;
/// What may be in it.
const NAMES: [&str; 14] = [
    "access_key_id",
    "secret_access_key",
    "session_token",
    "username",
    "password",
    "token",
    "identity",
    "known_hosts",
    "principal",
    "keytab",
    "account_name",
    "account_key",
    "sas_token",
    "service_account",
];

/// The keys of one store; none where it is open to all.
#[derive(Clone, Default)]
pub struct Keys(BTreeMap<String, String>);

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keys {
    /// Reads a file of lines `name = "value"`.
    ///
    /// # Errors
    /// If it can't be read, or others than its owner can, or it is not the caller's.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bad = |what: String| Error::Keys {
            file: path.display().to_string(),
            what,
        };
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        let about = file.metadata().map_err(|error| bad(error.to_string()))?;
        if about.mode() & 0o077 != 0 {
            return Err(bad(format!(
                "others can read them (mode {:o}): `chmod 600` the file, and have new keys made if others may have",
                about.mode() & 0o777
            )));
        }
        if !about.is_file() || !is_ours(&about) {
            return Err(bad("it is no file of yours".into()));
        }
        let mut text = String::new();
        file.take(BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    /// What is wrong is said without a word of the text.
    fn parse(text: &str) -> Result<Self, String> {
        let all: BTreeMap<String, String> = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(before).filter(|b| *b == b'\n').count() + 1;
            format!("line {line} is no `name = \"value\"`")
        })?;
        for name in all.keys() {
            if !NAMES.contains(&name.as_str()) {
                return Err(format!("a name is unknown: there are {}", NAMES.join(", ")));
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A text of somebody else's without the keys.
    pub(crate) fn scrubbed(&self, text: &str) -> String {
        let secret = self.0.values().filter(|value| value.len() > 3);
        secret.fold(text.to_owned(), |text, value| text.replace(value, "…"))
    }

    /// As much of what a store says as is told. It is cut last: half a key is not known for one.
    pub(crate) fn reason(&self, said: &str) -> String {
        cut(&self.scrubbed(said))
    }
}

/// Whether it belongs to who asks, or to root.
fn is_ours(about: &Metadata) -> bool {
    about.uid() == rustix::process::geteuid().as_raw() || about.uid() == 0
}

/// A file that the keys name, by its full path; if it is secret nobody else can read it.
pub(crate) fn own_file(path: &str, secret: bool) -> Result<PathBuf, Error> {
    let bad = |what: String| Error::Keys {
        file: path.to_owned(),
        what,
    };
    // The program that reads it would take these for something else.
    if !path.starts_with('/') || path.contains(['"', '\n', '%', '$']) {
        return Err(bad("give its full path, without `\"`, `%` and `$`".into()));
    }
    let about = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    let others = about.mode() & 0o077 != 0 || !is_ours(&about);
    if secret && others {
        return Err(bad(
            "it is not yours, or others can read it: `chmod 600` it, and have a new one made if others may have".into(),
        ));
    }
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_readable_by_others_are_refused_and_secrets_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(
            &path,
            "access_key_id = \"me\"\nsecret_access_key = \"hush-hush\"",
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Keys::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let keys = Keys::read(&path).unwrap();
        assert!(!format!("{keys:?}").contains("hush"));
        assert_eq!(keys.scrubbed("he said hush-hush!"), "he said …!");
        let at_the_cut = "x".repeat(cut(&"x".repeat(9999)).len() - 4) + "hush-hush";
        assert!(!keys.reason(&at_the_cut).contains("hush"));
        for text in [
            "a = hush",
            "\"hush\" = \"hush\"",
            "token = 5 # hush",
            "\n\nhush",
        ] {
            let error = Keys::parse(text).unwrap_err();
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
