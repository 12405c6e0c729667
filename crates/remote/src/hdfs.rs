//! HDFS through its own protocol. OpenDAL's HDFS client is not used: it deletes an existing file before the new file has its name.

use crate::address::join;
use crate::error::cut;
use crate::keys::own_file;
use crate::store::{PathType, StoreFile};
use crate::tree::{
    ProtocolError, TreeFuture, TreeName, TreeNames, TreeProtocol, TreeRoot, TreeStore, TreeUpload,
    timely,
};
use crate::{Error, Keys};
use bytes::Bytes;
use hdfs_native::client::{FileStatus, ListStatusIterator};
use hdfs_native::file::FileWriter;
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};
use std::time::{Duration, UNIX_EPOCH};

/// Maximum number of names per page of a listing.
const NAMES_MAX: usize = 1000;
/// Mode of new files, before the server applies its mask.
const FILE_MODE: u32 = 0o666;

struct Hdfs {
    client: Client,
    root: TreeRoot,
}

pub(crate) fn open(host: &str, root: &str, keys: &Keys) -> Result<TreeStore, Error> {
    let mut builder = ClientBuilder::new().with_url(format!("hdfs://{host}"));
    if let Some(user) = keys.get("username") {
        builder = builder.with_user(user);
    }
    if let Some(principal) = keys.get("principal") {
        builder = builder.with_kerberos_principal(principal);
    }
    if let Some(keytab) = keys.get("keytab") {
        let keytab = own_file(keytab, true)?;
        builder = builder.with_kerberos_keytab(keytab.display().to_string());
    }
    let client = builder.build().map_err(|error| Error::Place {
        uri: format!("hdfs://{host}"),
        what: keys.scrubbed(&error.to_string()),
    })?;
    let root = TreeRoot::new(root);
    Ok(TreeStore::new(host, Hdfs { client, root }))
}

fn why(path: &str, error: &HdfsError) -> ProtocolError {
    let reason = error.to_string();
    let reason = cut(reason.lines().next().unwrap_or_default());
    let (path, reported) = (path.to_owned(), reason.as_str());
    let is = |exception: &str| reported.contains(exception);
    match error {
        HdfsError::FileNotFound(_) => Error::Missing(path),
        HdfsError::AlreadyExists(_) => Error::Changed(path),
        HdfsError::RPCError(..) | HdfsError::FatalRPCError(..) => match () {
            () if is("FileNotFoundException") || is("ParentNotDirectoryException") => {
                Error::Missing(path)
            }
            () if is("not a directory") => Error::Missing(path),
            () if is("AlreadyExists") => Error::Changed(path),
            () if is("AccessControlException") && is("SIMPLE authentication is not enabled") => {
                Error::Refused { path, reason }
            }
            () if is("AccessControlException") => Error::Denied { path, reason },
            () if is("StandbyException") || is("RetriableException") || is("SafeMode") => {
                return ProtocolError::offline(&path, reason);
            }
            () => Error::Store { path, reason },
        },
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => {
            Error::Refused { path, reason }
        }
        HdfsError::IOError(_) | HdfsError::DataTransferError(_) => {
            return ProtocolError::offline(&path, reason);
        }
        _ => Error::Store { path, reason },
    }
    .into()
}

async fn asked<T>(
    path: &str,
    work: impl Future<Output = Result<T, HdfsError>>,
) -> Result<T, ProtocolError> {
    let done = timely(path, work).await?;
    done.map_err(|error| why(path, &error))
}

fn seen(path: &str, status: &FileStatus) -> PathType {
    if status.isdir {
        return PathType::Directory;
    }
    let (size, modified_ms) = (status.length as u64, status.modification_time);
    let object = StoreFile {
        path: path.to_owned(),
        size,
        tag: format!("{size}-{modified_ms}"),
        checked_by_store: false,
    };
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(modified_ms));
    PathType::File(object, time)
}

fn number(of: u64) -> usize {
    usize::try_from(of).unwrap_or(usize::MAX)
}

impl Hdfs {
    async fn status(&self, path: &str) -> Result<PathType, ProtocolError> {
        let full = self.root.full(path);
        let status = asked(path, self.client.get_file_info(&full)).await?;
        Ok(seen(path, &status))
    }
}

impl TreeProtocol for Hdfs {
    fn look<'a>(&'a self, path: &'a str) -> TreeFuture<'a, PathType> {
        Box::pin(self.status(path))
    }

    fn names<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeNames>> {
        Box::pin(async move {
            self.status(path).await?.directory(path)?;
            Ok(Box::new(HdfsListing {
                all: self.client.list_status_iter(&self.root.full(path), false),
                path: path.to_owned(),
            }) as Box<dyn TreeNames>)
        })
    }

    fn range<'a>(&'a self, object: &'a StoreFile, from: u64, count: u64) -> TreeFuture<'a, Bytes> {
        Box::pin(async move {
            let path = object.path.as_str();
            let full = self.root.full(path);
            let file = asked(path, self.client.read(&full)).await?;
            let length = file.file_length() as u64;
            if length < from + count {
                return Err(Error::Changed(path.to_owned()).into());
            }
            let bytes = asked(path, file.read_range(number(from), number(count))).await?;
            self.status(path).await?.still(object)?;
            Ok(bytes)
        })
    }

    fn begin<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeUpload>> {
        Box::pin(async move {
            // The server creates missing parent directories. The directory of the store itself must exist already.
            self.status("").await?;
            let full = self.root.full(path);
            let new = WriteOptions::default()
                .permission(FILE_MODE)
                .create_parent(true);
            let file = asked(path, self.client.create(&full, new)).await?;
            let path = path.to_owned();
            Ok(Box::new(HdfsWriter { file, path }) as Box<dyn TreeUpload>)
        })
    }

    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            let (from, to) = (self.root.full(path), self.root.full(other));
            asked(other, self.client.rename(&from, &to, over)).await
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            self.status(path).await?.file(path)?;
            let full = self.root.full(path);
            match asked(path, self.client.delete(&full, false)).await? {
                true => Ok(()),
                false => Err(Error::Missing(path.to_owned()).into()),
            }
        })
    }
}

/// Listing of a directory in progress.
struct HdfsListing {
    all: ListStatusIterator,
    path: String,
}

impl TreeNames for HdfsListing {
    fn next(&mut self) -> TreeFuture<'_, Option<Vec<TreeName>>> {
        Box::pin(async move {
            let mut names = Vec::new();
            while names.len() < NAMES_MAX {
                let next = async { self.all.next().await.transpose() };
                let Some(status) = asked(&self.path, next).await? else {
                    break;
                };
                let name = status
                    .path
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let seen = Ok(seen(&join(&self.path, &name), &status));
                names.push(TreeName { name, seen });
            }
            Ok((!names.is_empty()).then_some(names))
        })
    }
}

/// File that is being written to the server.
struct HdfsWriter {
    file: FileWriter,
    path: String,
}

impl TreeUpload for HdfsWriter {
    fn write(&mut self, bytes: Bytes) -> TreeFuture<'_, ()> {
        Box::pin(async move {
            asked(&self.path, self.file.write_bytes(bytes)).await?;
            Ok(())
        })
    }

    fn finish(mut self: Box<Self>) -> TreeFuture<'static, ()> {
        Box::pin(async move { asked(&self.path, self.file.close()).await })
    }
}
