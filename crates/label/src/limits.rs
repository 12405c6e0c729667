//! Limits that the host's administrator sets for the logs of each user. The library enforces the limits. A log is the user's own file, so
//! only the operating system limits a program that does not use the library.

use crate::directory::LogDirectory;
use crate::error::Error;
use crate::log::HEADER;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;

/// Path of the configuration file, which has lines `buffer-quota = SIZE` and `sum-max = SIZE`.
pub(crate) const FILE: &str = "/etc/tidemill/labels.conf";
/// File that is locked while a log is created, so that two logs cannot both take the remaining space.
const LOCK: &str = "register.lock";
const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Limits on the sizes of logs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferLimits {
    buffer_quota: u64,
    /// Maximum sum of the buffer quotas of a user's applications.
    sum: u64,
}

impl BufferLimits {
    /// Reads the limits of a configuration file; there are no limits if the file does not exist.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let mut limits = Self {
            buffer_quota: u64::MAX,
            sum: u64::MAX,
        };
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(limits),
            text => text.map_err(|source| Error::Log {
                path: path.to_owned(),
                source,
            })?,
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let reported = line.split_once('=');
            match reported.map(|(name, value)| (name.trim(), bytes(value.trim()))) {
                Some(("buffer-quota", Some(bytes))) => limits.buffer_quota = bytes,
                Some(("sum-max", Some(bytes))) => limits.sum = bytes,
                None if line.is_empty() => {}
                _ => {
                    let (path, line) = (path.display(), number + 1);
                    return Err(Error::Invalid(format!(
                        "{path}:{line}: not `buffer-quota = SIZE` or `sum-max = SIZE`, such as 256MiB; the administrator of this host can fix it"
                    )));
                }
            }
        }
        Ok(limits)
    }

    /// Returns the buffer quota of an application that asks for `asked` bytes, where 0 stands for `default`. The caller must hold the
    /// returned lock until the application's log exists.
    pub(crate) fn allow(
        &self,
        directory: &LogDirectory,
        asked: u64,
        default: u64,
    ) -> Result<(u64, Option<File>), Error> {
        let buffer_quota = if asked == 0 {
            default.min(self.buffer_quota)
        } else {
            asked
        };
        let refused = |what: &str, max: u64| {
            Error::Quota(format!(
                "the buffer quota of {buffer_quota} bytes is too large: on this host {what} {max} bytes ({FILE})"
            ))
        };
        if buffer_quota > self.buffer_quota {
            return Err(refused(
                "an application may have at most",
                self.buffer_quota,
            ));
        }
        if self.sum == u64::MAX {
            return Ok((buffer_quota, None));
        }
        let at = |source| Error::Log {
            path: directory.path().to_owned(),
            source,
        };
        let mut how = File::options();
        let how = how.write(true).create(true).truncate(false);
        let lock = how.open(directory.path().join(LOCK)).map_err(at)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| at(errno.into()))?;
        let mut used = buffer_quota;
        for log in directory.logs().map_err(at)? {
            // The log may have been removed in the meantime.
            let length = log.metadata().map_or(0, |is| is.len());
            used = used.saturating_add(length.saturating_sub(HEADER));
        }
        if used > self.sum {
            return Err(refused(
                "applications of a user may have together at most",
                self.sum,
            ));
        }
        Ok((buffer_quota, Some(lock)))
    }
}

/// Parses a size in bytes: a number, perhaps with a unit.
fn bytes(text: &str) -> Option<u64> {
    let unit = UNITS
        .into_iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn limits_file_of_administrator_applies_and_reports_errors() {
        let place = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(place.path(), mode).unwrap();
        let directory = LogDirectory::open(Some(place.path())).unwrap();
        let file = place.path().join("labels.conf");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            BufferLimits::read(&file)
        };
        let none = BufferLimits::read(&place.path().join("none")).unwrap();
        assert_eq!(none.allow(&directory, 1 << 36, 1 << 20).unwrap().0, 1 << 36);
        for wrong in [
            "buffer-quota",
            "buffer-quota = many",
            "quota = 1",
            "buffer-quota = -1",
            "sum-max = 99999999999GiB",
        ] {
            let why = read(&format!("# limits\n{wrong}")).unwrap_err().to_string();
            assert!(why.contains("labels.conf:2"), "{why}");
        }
        let limits = read("buffer-quota = 1MiB # each\n\nsum-max=2560 KiB\n").unwrap();
        let allow = |asked| {
            limits
                .allow(&directory, asked, 64 << 20)
                .map(|(buffer_quota, _)| buffer_quota)
        };
        assert_eq!(allow(0).unwrap(), 1 << 20);
        assert_eq!(allow((1 << 20) + 1).unwrap_err().errno(), 122);
        for name in ["a.labels", "b.labels"] {
            let log = File::create(place.path().join(name)).unwrap();
            log.set_len(HEADER + (1 << 20)).unwrap();
        }
        assert_eq!(allow(512 << 10).unwrap(), 512 << 10);
        assert!(
            allow(0)
                .unwrap_err()
                .to_string()
                .contains("together at most 2621440 bytes")
        );
    }
}
