//! Files that programs of one user pass to each other on a host, visible before they are stored (next: `label/src/shared_index.rs`).

use crate::app::App;
use crate::error::Error;
use crate::root::is_offline;
use crate::shared_index;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Minimum interval at which a waiting get checks for files that appeared without a put on this host.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(100);
/// Time that a get without a time limit waits while a put without an entry is being stored.
const UNSEEN: Duration = Duration::from_secs(5);

impl App {
    /// Returns the content of a whole file: the put of an application of this user on this host, stored or not, else the content of the
    /// stored file. Waits for a put, or for the file to appear in any other way, for up to `wait`.
    ///
    /// # Errors
    /// [`Error::Failed`] with `ENOENT` if the file does not exist after the wait; otherwise the error of reading the file.
    pub fn get(&self, address: &str, wait: Duration) -> Result<Vec<u8>, Error> {
        let whole = |file: &File, size: u64| {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            let read = crate::execute::read_at(file, &mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        };
        self.find(address, wait, <[u8]>::to_vec, whole)
    }

    /// Copies a whole file like [`Self::get`] into `buffer`, as far as it fits. Returns the size of the file in bytes.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn get_into(&self, address: &str, buffer: &mut [u8], wait: Duration) -> Result<u64, Error> {
        let buffer = std::cell::RefCell::new(buffer);
        let put = |bytes: &[u8]| {
            let mut buffer = buffer.borrow_mut();
            let fits = bytes.len().min(buffer.len());
            buffer[..fits].copy_from_slice(&bytes[..fits]);
            bytes.len() as u64
        };
        let stored = |file: &File, size: u64| {
            let mut buffer = buffer.borrow_mut();
            let fits = buffer
                .len()
                .min(usize::try_from(size).unwrap_or(usize::MAX));
            file.read_exact_at(&mut buffer[..fits], 0).map(|()| size)
        };
        self.find(address, wait, put, stored)
    }

    fn find<T>(
        &self,
        address: &str,
        wait: Duration,
        put: impl Fn(&[u8]) -> T,
        stored: impl Fn(&File, u64) -> std::io::Result<T>,
    ) -> Result<T, Error> {
        let path = self.path(address)?;
        let (shared_index, begun) = (self.shared_index()?, Instant::now());
        let end = begun + wait;
        let hash = shared_index::hash(self.mount(), path.as_bytes());
        let file = Path::new(OsStr::from_bytes(path.as_bytes()));
        let mut pause = LOOK_MIN;
        loop {
            let (puts, mark) = (shared_index.puts(), shared_index.mark(hash));
            let place = (self.mount(), path.as_bytes());
            if let Some(bytes) = shared_index.get(place, hash, &put) {
                return Ok(bytes);
            }
            let read = match mark {
                Some(_) => self.root().open_file(file, OFlags::RDONLY),
                None => Err(Errno::BUSY.into()),
            };
            let read = read.and_then(|file| stored(&file, file.metadata()?.len()));
            // A concurrent put may be in the file in part.
            if mark.is_some() && shared_index.mark(hash) != mark {
                continue;
            }
            let source = match read {
                Ok(bytes) => return Ok(bytes),
                Err(source) => source,
            };
            let end = if mark.is_none() {
                end.max(begun + UNSEEN)
            } else {
                end
            };
            let left = end.saturating_duration_since(Instant::now());
            let comes = source.kind() == std::io::ErrorKind::NotFound || is_offline(&source);
            if left.is_zero() || !comes {
                return Err(Error::Failed {
                    what: "can't get",
                    path: address.to_owned(),
                    source,
                });
            }
            shared_index.wait(puts, left.min(pause));
            pause = (pause * 2).min(LOOK_MAX);
        }
    }
}
