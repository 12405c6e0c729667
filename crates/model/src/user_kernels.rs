//! Kernels of users that are stored in the cluster: defines the names of their files, and the file that a name means.
//!
//! A user's kernels are in [`DIRECTORY`]`/UID`, each version a file of its own that is never rewritten: `NAME@1`, `NAME@2`, … or, with an
//! extension, `NAME@1.so`. The extension stays last, so that a name shows the type. The number is part of the file's name and no link
//! points to the newest version, since only files survive the loss of the server's database.

/// Directory of all users' kernels.
pub const DIRECTORY: &str = "/kernels";

/// Extensions that show the type of a kernel, in the order of the search if none is given.
const ENDINGS: [&str; 3] = ["", ".so", ".wasm"];

/// Name of a kernel, or of its file, which contains a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnName<'a> {
    /// Name without version and extension.
    pub stem: &'a str,
    /// Version; `None` means the newest.
    pub version: Option<u64>,
    /// `.so`, `.wasm` or nothing.
    pub ending: &'static str,
}

impl<'a> OwnName<'a> {
    /// Parses a name.
    #[must_use]
    pub fn parse(name: &'a str) -> Self {
        let ends = |ending: &&&str| !ending.is_empty() && name.ends_with(**ending);
        let ending = ENDINGS.iter().find(ends).copied().unwrap_or("");
        let rest = &name[..name.len() - ending.len()];
        let number = |(stem, digits): (&'a str, &str)| Some((stem, number(digits)?));
        let (stem, version) = match rest.rsplit_once('@').and_then(number) {
            Some((stem, version)) => (stem, Some(version)),
            None => (rest, None),
        };
        Self {
            stem,
            version,
            ending,
        }
    }

    /// Returns whether a kernel may have this name: a name in one part that leaves space for a version.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let plain = !self.stem.contains(|c: char| c == '/' || c.is_control());
        plain && !self.stem.is_empty() && !self.stem.starts_with('.') && self.stem.len() <= 200
    }

    /// Returns the file name of a version.
    #[must_use]
    pub fn file(&self, version: u64) -> String {
        format!("{}@{version}{}", self.stem, self.ending)
    }

    /// Returns the newest file with exactly this stem and extension, among the names of files in a user's directory.
    pub fn newest<'f>(&self, files: impl IntoIterator<Item = &'f str>) -> Option<&'f str> {
        let versions = files.into_iter().filter_map(|file| {
            let found = OwnName::parse(file);
            let same = found.stem == self.stem && found.ending == self.ending;
            same.then_some((found.version?, file))
        });
        versions.max().map(|(_, file)| file)
    }

    /// Returns the file that the name means, among the names of files in a user's directory.
    pub fn pick<'f>(&self, files: impl IntoIterator<Item = &'f str>) -> Option<&'f str> {
        let rank = |ending| ENDINGS.iter().position(|known| *known == ending);
        files
            .into_iter()
            .filter_map(|file| {
                let found = OwnName::parse(file);
                let version = found.version?;
                let meant = found.stem == self.stem
                    && self.version.is_none_or(|wanted| wanted == version)
                    && (self.ending.is_empty() || self.ending == found.ending);
                meant.then_some((rank(found.ending), std::cmp::Reverse(version), file))
            })
            .min()
            .map(|(_, _, file)| file)
    }
}

/// Parses a version: digits without leading zeros.
fn number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_kernel_name_parses_and_prints_its_parts() {
        let all = [
            ("denoise", "denoise", None, ""),
            ("denoise.so", "denoise", None, ".so"),
            ("denoise@2", "denoise", Some(2), ""),
            ("denoise@12.wasm", "denoise", Some(12), ".wasm"),
            ("a@b.sh", "a@b.sh", None, ""),
            ("a@02", "a@02", None, ""),
            ("a@", "a@", None, ""),
        ];
        for (text, stem, version, ending) in all {
            let name = OwnName::parse(text);
            assert_eq!(
                (name.stem, name.version, name.ending),
                (stem, version, ending)
            );
            assert!(name.is_valid());
            if let Some(version) = version {
                assert_eq!(name.file(version), text);
            }
        }
        for text in ["", ".so", ".hidden", "a/b", "a\nb", "@3"] {
            assert!(!OwnName::parse(text).is_valid(), "{text:?}");
        }
    }

    #[test]
    fn own_kernel_without_version_means_the_newest() {
        let files = [
            "f@2.so",
            "f@10.so",
            "f@9.so",
            "f@11.wasm",
            "g@1",
            "g@1.so",
            "notes",
            "f@3",
        ];
        let pick = |name: &str| OwnName::parse(name).pick(files);
        assert_eq!(pick("f.so"), Some("f@10.so"));
        assert_eq!(pick("f"), Some("f@3"), "one without an ending comes first");
        assert_eq!(pick("f@9"), Some("f@9.so"));
        assert_eq!(pick("f.wasm"), Some("f@11.wasm"));
        assert_eq!(pick("f@11"), Some("f@11.wasm"));
        assert_eq!(pick("f@11.so"), None);
        assert_eq!(pick("g.so"), Some("g@1.so"));
        assert_eq!(pick("notes"), None, "it has no version");
        assert_eq!(pick("h"), None);
        let newest = |name: &str| OwnName::parse(name).newest(files);
        assert_eq!(
            (newest("f"), newest("f.so")),
            (Some("f@3"), Some("f@10.so"))
        );
        assert_eq!(newest("g.wasm"), None);
    }
}
