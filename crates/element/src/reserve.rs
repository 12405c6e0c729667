//! Space kept back for the database, so that an element whose device is full can still seal, remove and
//! report: a file that is given up when the device is nearly full and made again when there is room.

use std::fs::File;
use std::path::{Path, PathBuf};

/// What is kept back.
const RESERVE_BYTES: u64 = 8 << 20;

/// The reserve is given up when the device has less than this free.
const LOW_BYTES: u64 = 4 << 20;

/// It is made again when the device has more than this free.
const PLENTY_BYTES: u64 = 4 * RESERVE_BYTES;

/// The file that holds the space.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Keeps space back in `folder` if there is plenty.
    pub(crate) fn new(folder: &Path) -> Self {
        let path = folder.join("reserve");
        let held = path.exists();
        let mut reserve = Self { path, held };
        reserve.look();
        reserve
    }

    /// Gives the space up or takes it back, as the device has it. To be called before each commit: one
    /// system call when there is nothing to do.
    pub(crate) fn look(&mut self) {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let Ok(space) = rustix::fs::statvfs(folder) else {
            return;
        };
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if self.held && free_bytes < LOW_BYTES {
            tracing::warn!(
                free_bytes,
                "the device is full; the database uses its reserve"
            );
            self.held = std::fs::remove_file(&self.path).is_err();
        } else if !self.held && free_bytes > PLENTY_BYTES {
            self.held = fill(&self.path).is_ok();
        }
    }
}

fn fill(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 0, RESERVE_BYTES)
        .inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_kept_where_there_is_plenty() {
        let folder = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::new(folder.path());
        reserve.look();
        assert!(reserve.held);
        assert_eq!(
            folder.path().join("reserve").metadata().unwrap().len(),
            RESERVE_BYTES
        );
    }
}
