//! A version that this process writes: its bytes are sent to the node, or to all nodes, that hold the version. A right that expires in the
//! meantime is renewed (next: `node/src`).

use crate::objects::{ObjectAddress, Sealed};
use crate::opened::{WINDOW_BYTES, located};
use crate::transfer::{PIECE_BYTES, SealedParts, Transfer, filled};
use crate::{Error, Objects};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::io::Read;
use std::ops::Range;
use tidemill_model::id::ObjectId;
use tidemill_model::layout::{Layout, StripedLayout};
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Maximum number of concurrent requests for a write or a seal.
const REQUESTS: usize = 16;

/// A version that is being written.
#[derive(Debug)]
pub(crate) struct WrittenVersion<'a> {
    transfer: &'a Transfer,
    attr: v1::Attr,
    object: ObjectId,
    layout: Layout,
    remotes: Vec<ObjectAddress>,
}

/// Returns the layout of a version that is being written, and the addresses of its parts.
fn remotes(opened: &v1::Opened) -> Result<(Layout, Vec<ObjectAddress>), Error> {
    let (layout, places) = located(opened)?;
    let places = places.into_iter();
    let remotes = places.map(|(node, address)| address.ok_or(Error::NodeDown(node)));
    Ok((layout, remotes.collect::<Result<_, _>>()?))
}

impl<'a> WrittenVersion<'a> {
    /// Returns a version as the server opened it for writing.
    pub(crate) fn new(transfer: &'a Transfer, opened: &v1::Opened) -> Result<Self, Error> {
        let (layout, remotes) = remotes(opened)?;
        Ok(Self {
            transfer,
            attr: opened.attr.ok_or(Error::Answer("NewVersion"))?,
            object: ObjectId(opened.object),
            layout,
            remotes,
        })
    }

    /// Writes the bytes of a reader, and seals the version on its nodes. Returns the length of the version in bytes, and its objects.
    pub(crate) async fn write_all<R: Read + Send + 'static>(
        mut self,
        (mut file, path): (R, &str),
        progress: &mut impl FnMut(u64),
    ) -> Result<SealedParts, Error> {
        let at = |source| Error::Local {
            path: path.to_owned(),
            source,
        };
        let length = match self.layout {
            Layout::Whole(_) => PIECE_BYTES,
            _ => usize::try_from(WINDOW_BYTES).unwrap_or(PIECE_BYTES),
        };
        let mut buffer = Vec::new();
        let mut offset = 0;
        loop {
            let count;
            buffer.resize(length, 0);
            (file, buffer, count) = filled(file, buffer).await.map_err(at)?;
            if count == 0 {
                break;
            }
            buffer.truncate(count);
            let bytes = Bytes::from(buffer);
            self.write(offset, &bytes).await?;
            // The buffer is used again, unless a connection still holds it.
            buffer = Vec::from(bytes);
            offset += count as u64;
            progress(count as u64);
        }
        self.seal(offset).await
    }

    /// Writes bytes of the file, with one request for each part.
    pub(crate) async fn write(&mut self, offset: u64, bytes: &Bytes) -> Result<(), Error> {
        let written = self.write_once(offset, bytes).await;
        if !written.as_ref().is_err_and(Error::is_no_right) {
            return written;
        }
        self.renew().await?;
        self.write_once(offset, bytes).await
    }

    async fn write_once(&self, offset: u64, bytes: &Bytes) -> Result<(), Error> {
        let end = offset + bytes.len() as u64;
        let objects = self.transfer.objects();
        let layout = match &self.layout {
            Layout::Whole(_) => {
                return objects.write(&self.remotes[0], offset, bytes.clone()).await;
            }
            Layout::Striped(striped) => Layout::Striped(striped.of_size(end)),
            // Whole files are never written as extents.
            Layout::Extents(_) => return Err(Error::Answer("NewVersion")),
        };
        let ask = |(part, span): (usize, Range<u64>)| {
            let length = usize::try_from(span.end - span.start).unwrap_or(0);
            let mut data = BytesMut::with_capacity(length);
            for segment in layout.segments_of(part, span.clone()) {
                let from = usize::try_from(segment.offset - offset).unwrap_or(0);
                let length = usize::try_from(segment.length).unwrap_or(0);
                data.extend_from_slice(&bytes[from..from + length]);
            }
            async move {
                let remote = &self.remotes[part];
                objects.write(remote, span.start, data.freeze()).await
            }
        };
        let spans = layout.spans(offset..end).into_iter();
        let written = stream::iter(spans.map(ask)).buffer_unordered(REQUESTS);
        written.try_collect().await
    }

    /// Creates the missing parts of a file of `size` bytes, and seals all parts. Returns the length of the version in bytes, and its
    /// objects.
    pub(crate) async fn seal(mut self, size: u64) -> Result<SealedParts, Error> {
        let objects = self.transfer.objects();
        let mut sealed = self.seal_once(objects, size).await;
        if sealed.as_ref().is_err_and(Error::is_no_right) {
            self.renew().await?;
            sealed = self.seal_once(objects, size).await;
        }
        let parts = sealed?;
        Ok(match (&self.layout, &parts[..]) {
            (Layout::Whole(_), [one]) => SealedParts::whole(one.clone()),
            _ => SealedParts {
                size,
                striped: true,
                parts,
            },
        })
    }

    async fn seal_once(&self, objects: &Objects, size: u64) -> Result<Vec<Sealed>, Error> {
        let seal = |part: usize| {
            let mut length = size;
            if let Layout::Striped(striped) = &self.layout {
                let width = self.remotes.len();
                length = StripedLayout::part_size(striped.unit, width, size, part);
            }
            async move {
                let remote = &self.remotes[part];
                if length == 0 {
                    objects.truncate(remote, 0).await?;
                }
                objects.seal(remote, &SealBody::default()).await
            }
        };
        let sealed = stream::iter((0..self.remotes.len()).map(seal)).buffered(REQUESTS);
        sealed.try_collect().await
    }

    /// Renews the rights to continue the version.
    async fn renew(&mut self) -> Result<(), Error> {
        let again = v1::NewVersion {
            ino: self.attr.ino,
            object: self.object.0,
            ..v1::NewVersion::default()
        };
        let Answer::Opened(opened) = self.transfer.one(Op::NewVersion(again)).await? else {
            return Err(Error::Answer("NewVersion"));
        };
        (self.layout, self.remotes) = remotes(&opened)?;
        Ok(())
    }
}
