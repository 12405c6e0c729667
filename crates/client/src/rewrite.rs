//! Rewrites an existing file on other nodes. Readers of the file do not notice: until the new version is sealed they read the previous
//! version, and both have the same bytes. The module sends requests to nodes and the server (next: `node/src`, `server/src`).

use crate::Error;
use crate::opened::WINDOW_BYTES;
use crate::transfer::{SealedParts, Transfer};
use crate::written::WrittenVersion;
use tidemill_model::display::escaped;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

impl Transfer {
    /// Rewrites a file with the stripes and the tier that its directory's settings name. Without a setting the file keeps its stripes. The
    /// file's owner, mode, time and number of replicas stay. The function calls `progress` with the size of each chunk. Returns the number
    /// of bytes.
    ///
    /// # Errors
    /// Another client writes the file, the caller may not rewrite it, or a node fails; after an error the file is unchanged.
    pub async fn rewrite(
        &self,
        path: impl AsRef<[u8]>,
        progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let attr = self.resolve(&path).await?;
        let path = &*escaped(path.as_ref());
        if attr.writing {
            return Err(Error::Name {
                errno: rustix::io::Errno::TXTBSY.raw_os_error(),
                message: format!("{path} is being written; try again when it is closed"),
            });
        }
        let replicas = self.replicas_of(attr.ino).await?;
        let new = v1::NewVersion {
            ino: attr.ino,
            object: self.new_object().await?,
            ..v1::NewVersion::default()
        };
        let object = new.object;
        let opened = opened(self.one(Op::NewVersion(new)).await?)?;
        // The attributes at a time when no other client writes the file.
        let attr = opened.attr.ok_or(Error::Answer("NewVersion"))?;
        let _reported = self.report_writing(attr.ino, object);
        let written = self.copy_and_seal(&opened, &attr, progress).await;
        match written {
            Ok(sealed) => {
                let seal = v1::Seal {
                    mtime: attr.mtime,
                    replicas,
                    ..sealed.op((attr.ino, object))
                };
                self.sealed(seal).await.map(|()| attr.size)
            }
            Err(error) => {
                self.abandon(attr.ino, object).await;
                Err(error)
            }
        }
    }

    /// Returns the required number of replicas of a file's version.
    async fn replicas_of(&self, ino: u64) -> Result<String, Error> {
        let get = v1::GetXattr {
            ino,
            name: b"user.tidemill.replicas".to_vec(),
        };
        match self.one(Op::GetXattr(get)).await {
            Ok(Answer::Bytes(bytes)) => {
                String::from_utf8(bytes.value).map_err(|_| Error::Answer("GetXattr"))
            }
            Ok(_) => Err(Error::Answer("GetXattr")),
            Err(error) if error.is(rustix::io::Errno::NODATA) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Copies all bytes to the new nodes and seals them there.
    async fn copy_and_seal(
        &self,
        new: &v1::Opened,
        attr: &v1::Attr,
        mut progress: impl FnMut(u64),
    ) -> Result<SealedParts, Error> {
        let from = self.opened(attr.ino, attr.version).await?;
        let mut to = WrittenVersion::new(self, new)?;
        let mut start = 0;
        while start < attr.size {
            let end = attr.size.min(start + WINDOW_BYTES);
            let bytes = from.read(self, start..end).await?;
            to.write(start, &bytes).await?;
            progress(end - start);
            start = end;
        }
        to.seal(attr.size).await
    }
}

fn opened(answer: Answer) -> Result<v1::Opened, Error> {
    match answer {
        Answer::Opened(opened) => Ok(opened),
        _ => Err(Error::Answer("Open")),
    }
}
