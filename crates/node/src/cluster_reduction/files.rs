//! Files and directories of the cluster as sources of variables. The sources block, and must be used on threads that may block.

use std::io;
use tidemill_client::Error;
use tidemill_client::ranged::RangedFile;
use tidemill_client::transfer::Transfer;
use tidemill_format::{Bytes, Directory, VariableSource};
use tidemill_wire::v1;
use tokio::runtime::Handle;

/// File or directory of the cluster.
#[derive(Debug)]
pub enum ClusterInput<'a> {
    /// File with variables.
    File(ClusterFile<'a>),
    /// Directory that is a Zarr.
    Directory(ClusterDirectory<'a>),
}

impl<'a> ClusterInput<'a> {
    /// Opens a file or directory in its current version; `attr` has the attributes of the path.
    ///
    /// # Errors
    /// The file does not exist or may not be read.
    pub async fn open(
        transfer: &'a Transfer,
        path: Vec<u8>,
        attr: &v1::Attr,
    ) -> Result<Self, Error> {
        Ok(match attr.kind() {
            v1::Kind::Directory => {
                let root = path;
                Self::Directory(ClusterDirectory { transfer, root })
            }
            _ => Self::File(ClusterFile(transfer.ranged(path).await?)),
        })
    }

    /// Returns the source of the input's variables.
    #[must_use]
    pub fn source(&self) -> VariableSource<'_> {
        match self {
            Self::File(file) => VariableSource::File(file),
            Self::Directory(directory) => VariableSource::Directory(directory),
        }
    }
}

/// File of the cluster, read by ranges.
#[derive(Debug)]
pub struct ClusterFile<'a>(RangedFile<'a>);

impl<'a> ClusterFile<'a> {
    /// Returns the version of the file.
    #[must_use]
    pub fn ranged(&self) -> RangedFile<'a> {
        self.0.clone()
    }
}

fn fetch(file: &RangedFile<'_>, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let end = offset.saturating_add(into.len() as u64);
    let bytes = Handle::current()
        .block_on(file.read(offset..end))
        .map_err(io::Error::other)?;
    let bytes = bytes
        .get(..into.len())
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    into.copy_from_slice(bytes);
    Ok(())
}

impl Bytes for ClusterFile<'_> {
    fn size(&self) -> u64 {
        self.0.layout().size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        fetch(&self.0, offset, into)
    }
}

/// Directory of the cluster.
#[derive(Debug)]
pub struct ClusterDirectory<'a> {
    transfer: &'a Transfer,
    root: Vec<u8>,
}

impl<'a> ClusterDirectory<'a> {
    fn path(&self, path: &str) -> Vec<u8> {
        let root = self.root.strip_suffix(b"/").unwrap_or(&self.root);
        [root, b"/", path.as_bytes()].concat()
    }

    fn attr(&self, path: &str) -> io::Result<Option<v1::Attr>> {
        match Handle::current().block_on(self.transfer.find(self.path(path))) {
            Ok(attr) => Ok(Some(attr)),
            Err(error)
                if error.is(rustix::io::Errno::NOENT) || error.is(rustix::io::Errno::NOTDIR) =>
            {
                Ok(None)
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Opens a file of the directory.
    ///
    /// # Errors
    /// The file does not exist or may not be read.
    pub async fn ranged(&self, path: &str) -> Result<RangedFile<'a>, Error> {
        self.transfer.ranged(self.path(path)).await
    }

    /// Opens a file of the directory, on a thread that may block.
    ///
    /// # Errors
    /// The errors of [`Self::ranged`].
    pub fn open(&self, path: &str) -> Result<RangedFile<'a>, Error> {
        Handle::current().block_on(self.ranged(path))
    }
}

impl Directory for ClusterDirectory<'_> {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        let found = self
            .attr(path)?
            .filter(|attr| attr.kind() == v1::Kind::File);
        Ok(found.map(|attr| attr.size))
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        fetch(&self.open(path).map_err(io::Error::other)?, offset, into)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let Some(attr) = self.attr(path)? else {
            return Ok(Vec::new());
        };
        if attr.kind() != v1::Kind::Directory {
            return Ok(Vec::new());
        }
        let entries = Handle::current().block_on(self.transfer.list(attr.ino));
        // Names in a Zarr are UTF-8.
        let name = |entry: v1::Entry| String::from_utf8(entry.name).ok();
        Ok(entries
            .map_err(io::Error::other)?
            .into_iter()
            .filter_map(name)
            .collect())
    }
}
