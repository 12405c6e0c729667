//! Keys of stores. The module reads keys only from files that no other user can read, and they are sent only to their store.

use crate::Error;
use crate::error::cut;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum length of a file of keys in bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Valid names of keys in a file of keys.
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

/// Keys of one store; an empty list for a public store.
#[derive(Clone, Default)]
pub struct Keys(BTreeMap<String, String>);

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keys {
    /// Reads keys from a file of lines `name = "value"`.
    ///
    /// # Errors
    /// The file can't be read, users other than its owner can read it, or it does not belong to the caller.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bad = |what: String| Error::Keys {
            file: path.display().to_string(),
            what,
        };
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        let about = file.metadata().map_err(|error| bad(error.to_string()))?;
        if about.mode() & 0o077 != 0 {
            return Err(bad(format!(
                "other users can read them (mode {:o}): `chmod 600` the file, and replace the keys if other users may have read them",
                about.mode() & 0o777
            )));
        }
        if !about.is_file() || !is_ours(&about) {
            return Err(bad("the file does not belong to you".into()));
        }
        let mut text = String::new();
        file.take(BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    /// Reads keys from a file like [`Self::read`], if the file exists.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn read_if_exists(path: Option<&Path>) -> Result<Self, Error> {
        match path.filter(|path| path.exists()) {
            Some(path) => Self::read(path),
            None => Ok(Self::default()),
        }
    }

    /// Parses the text of a file of keys. Errors contain no word of the text, as it is secret.
    fn parse(text: &str) -> Result<Self, String> {
        let all: BTreeMap<String, String> = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(before).filter(|b| *b == b'\n').count() + 1;
            format!("line {line} is not `name = \"value\"`")
        })?;
        for name in all.keys() {
            if !NAMES.contains(&name.as_str()) {
                return Err(format!(
                    "a name is unknown: valid names are {}",
                    NAMES.join(", ")
                ));
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Replaces the keys in a message of another program.
    pub(crate) fn scrubbed(&self, text: &str) -> String {
        let secret = self.0.values().filter(|value| value.len() > 3);
        secret.fold(text.to_owned(), |text, value| text.replace(value, "…"))
    }

    /// Returns the first characters of a store's message without keys. The message is cut last, as half a key would not be recognised.
    pub(crate) fn reason(&self, reported: &str) -> String {
        cut(&self.scrubbed(reported))
    }
}

/// Returns whether a file belongs to the caller or to root.
fn is_ours(about: &Metadata) -> bool {
    about.uid() == rustix::process::geteuid().as_raw() || about.uid() == 0
}

/// Returns the full path of a file that the keys name. With `secret`, fails if another user can read the file.
pub(crate) fn own_file(path: &str, secret: bool) -> Result<PathBuf, Error> {
    let bad = |what: String| Error::Keys {
        file: path.to_owned(),
        what,
    };
    // The program that reads the path would interpret these characters.
    if !path.starts_with('/') || path.contains(['"', '\n', '%', '$']) {
        return Err(bad("give its full path, without `\"`, `%` and `$`".into()));
    }
    let about = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    let others = about.mode() & 0o077 != 0 || !is_ours(&about);
    if secret && others {
        return Err(bad(
            "it does not belong to you, or other users can read it: `chmod 600` it, and replace it if other users may have read it".into(),
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
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
        assert_eq!(keys.scrubbed("he wrote hush-hush!"), "he wrote …!");
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
