//! Rewrites an existing file on other nodes. Readers of the file do not notice: until the new version is sealed they read the previous
//! version, and both have the same bytes. The module sends requests to nodes and the server (next: `node/src`, `server/src`).

use crate::objects::ObjectAddress;
use crate::transfer::{PIECE_BYTES, Transfer, is_no_right, is_refused, seal_body};
use crate::{Error, striped::StripedVersion};
use bytes::Bytes;
use std::ops::Range;
use tidemill_model::display::escaped;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Number of bytes that are read and written at once.
const WINDOW_BYTES: u64 = 4 * PIECE_BYTES as u64;

/// The version that is read during a rewrite.
struct RewriteSource {
    open: v1::Open,
    opened: v1::Opened,
}

/// The version that is written during a rewrite: its inode and object, and its location.
struct RewriteTarget {
    ino: u64,
    object: u64,
    place: WriteLocation,
}

enum WriteLocation {
    Whole(ObjectAddress),
    Striped(StripedVersion),
}

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
        let written = self.copy_and_seal(&opened, &attr, path, progress).await;
        match written {
            Ok(parts) => {
                let seal = v1::Seal {
                    ino: attr.ino,
                    object,
                    size: attr.size,
                    mtime: attr.mtime,
                    replicas,
                    parts,
                    ..v1::Seal::default()
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

    /// Copies all bytes to the new nodes and seals them there. Returns the lengths of the parts in bytes.
    async fn copy_and_seal(
        &self,
        new: &v1::Opened,
        attr: &v1::Attr,
        path: &str,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<u64>, Error> {
        let open = v1::Open {
            ino: attr.ino,
            version: attr.version,
            ..v1::Open::default()
        };
        let sealed = opened(self.one(Op::Open(open.clone())).await?)?;
        let mut from = RewriteSource {
            open,
            opened: sealed,
        };
        let mut to = RewriteTarget {
            ino: attr.ino,
            object: new.object,
            place: place(new)?,
        };
        let mut start = 0;
        while start < attr.size {
            let end = attr.size.min(start + WINDOW_BYTES);
            let bytes = self.read_window(&mut from, start..end).await?;
            self.write_window(&mut to, start, bytes).await?;
            progress(end - start);
            start = end;
        }
        self.seal_again(to, attr, path).await
    }

    /// Reads a range of the file completely; reads from another replica if a node cannot return the range.
    async fn read_window(
        &self,
        from: &mut RewriteSource,
        range: Range<u64>,
    ) -> Result<Bytes, Error> {
        let mut renewed = false;
        loop {
            let read = self.read_once(from, range.clone()).await;
            let avoid = &mut from.open.avoid;
            match read {
                Ok(bytes) => return Ok(bytes),
                // Another node may have a replica of this very version.
                Err((node, error))
                    if (error.is_lost() || error.is_elsewhere()) && !avoid.contains(&node) =>
                {
                    tracing::debug!(node, "another replica is looked for: {error}");
                    avoid.push(node);
                }
                // The right has expired in the meantime.
                Err((_, error)) if is_no_right(&error) && !renewed => renewed = true,
                Err((_, error)) => return Err(error),
            }
            from.opened = opened(self.one(Op::Open(from.open.clone())).await?)?;
        }
    }

    async fn read_once(
        &self,
        from: &RewriteSource,
        range: Range<u64>,
    ) -> Result<Bytes, (u32, Error)> {
        let RewriteSource { open, opened } = from;
        let at = |error| (opened.node, error);
        match place(opened).map_err(at)? {
            WriteLocation::Striped(parts) => parts.window(self.objects(), &open.avoid, range).await,
            WriteLocation::Whole(remote) => {
                let length = range.end - range.start;
                let read = self.objects().read(&remote, range.start, length);
                let patient = open.avoid.contains(&opened.node);
                let bytes = crate::striped::unless_silent(read, &remote, patient).await;
                crate::striped::whole(bytes, &remote, length).map_err(at)
            }
        }
    }

    async fn write_window(
        &self,
        to: &mut RewriteTarget,
        start: u64,
        bytes: Bytes,
    ) -> Result<(), Error> {
        let written = self.write_once(&to.place, start, &bytes).await;
        if !is_refused(&written) {
            return written;
        }
        self.renew(to).await?;
        self.write_once(&to.place, start, &bytes).await
    }

    async fn write_once(
        &self,
        place: &WriteLocation,
        start: u64,
        bytes: &Bytes,
    ) -> Result<(), Error> {
        match place {
            WriteLocation::Striped(parts) => parts.write(self.objects(), start, bytes).await,
            WriteLocation::Whole(remote) => {
                self.objects().write(remote, start, bytes.clone()).await
            }
        }
    }

    /// Renews the capabilities to continue the write.
    async fn renew(&self, to: &mut RewriteTarget) -> Result<(), Error> {
        let again = v1::NewVersion {
            ino: to.ino,
            object: to.object,
            ..v1::NewVersion::default()
        };
        let opened = opened(self.one(Op::NewVersion(again)).await?)?;
        to.place = place(&opened)?;
        Ok(())
    }

    async fn seal_again(
        &self,
        mut to: RewriteTarget,
        attr: &v1::Attr,
        path: &str,
    ) -> Result<Vec<u64>, Error> {
        let sealed = self.seal_once(&to.place, attr, path).await;
        if !is_refused(&sealed) {
            return sealed;
        }
        self.renew(&mut to).await?;
        self.seal_once(&to.place, attr, path).await
    }

    async fn seal_once(
        &self,
        place: &WriteLocation,
        attr: &v1::Attr,
        path: &str,
    ) -> Result<Vec<u64>, Error> {
        let objects = self.objects();
        match place {
            WriteLocation::Striped(parts) => parts.seal(objects, attr.size, (attr, path)).await,
            WriteLocation::Whole(remote) => {
                if attr.size == 0 {
                    objects.truncate(remote, 0).await?;
                }
                let sealed = objects.seal(remote, &seal_body(attr, path)).await;
                sealed.map(|_| Vec::new())
            }
        }
    }
}

fn opened(answer: Answer) -> Result<v1::Opened, Error> {
    match answer {
        Answer::Opened(opened) => Ok(opened),
        _ => Err(Error::Answer("Open")),
    }
}

fn place(opened: &v1::Opened) -> Result<WriteLocation, Error> {
    Ok(match Transfer::parts(opened)? {
        Some(parts) => WriteLocation::Striped(parts),
        None => WriteLocation::Whole(Transfer::remote(opened)?),
    })
}
