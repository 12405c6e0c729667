//! Whole files that are spread over several nodes, read and written at all of these nodes at once (next: `node/src`).

use crate::objects::ObjectAddress;
use crate::transfer::{
    OTHERS_AFTER, PIECE_BYTES, Transfer, filled, is_refused, remote_at, seal_body, silent,
};
use crate::windows::window;
use crate::{Error, Objects};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::future::Future;
use std::io::Read;
use std::ops::Range;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Layout, StripedLayout};
use tidemill_wire::convert;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Number of bytes of a file that are transferred as one window.
const WINDOW_BYTES: u64 = 4 * PIECE_BYTES as u64;
/// Maximum number of windows that are read at once: the next window arrives while one window is passed on.
const WINDOWS: usize = 2;
/// Maximum number of concurrent requests of one window.
const REQUESTS: usize = 16;

/// Returns the result of a read. If the node takes too long to begin and another node may have a replica, returns an error.
pub(crate) async fn unless_silent(
    read: impl Future<Output = Result<Bytes, Error>>,
    remote: &ObjectAddress,
    patient: bool,
) -> Result<Bytes, Error> {
    if patient {
        return read.await;
    }
    let answered = tokio::time::timeout(OTHERS_AFTER, read).await;
    answered.unwrap_or_else(|_| Err(silent(remote)))
}

/// Returns the read bytes if there are at least `least` bytes, because a shorter object is not the sealed object.
pub(crate) fn whole(
    read: Result<Bytes, Error>,
    remote: &ObjectAddress,
    least: u64,
) -> Result<Bytes, Error> {
    let bytes = read?;
    if (bytes.len() as u64) < least {
        return Err(Error::Node {
            url: remote.url.to_string(),
            reason: format!(
                "object {:016x} is shorter there than it was sealed",
                remote.object.0
            ),
        });
    }
    Ok(bytes)
}

/// An opened version that has parts.
#[derive(Clone, Debug)]
pub(crate) struct StripedVersion {
    version: ObjectId,
    layout: Layout,
    remotes: Vec<ObjectAddress>,
}

impl StripedVersion {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn remote(&self, part: usize) -> Option<&ObjectAddress> {
        self.remotes.get(part)
    }

    fn node(&self, part: usize) -> u32 {
        self.remotes[part].node.0
    }

    /// Returns the version's layout of stripes; an error for another layout with parts, to which whole files are never written.
    fn striped(&self) -> Result<&StripedLayout, Error> {
        match &self.layout {
            Layout::Striped(striped) => Ok(striped),
            _ => Err(Error::Answer("NewVersion")),
        }
    }

    /// Reads a range of the file. If a part cannot be read, the error includes the part's node.
    pub(crate) async fn window(
        &self,
        objects: &Objects,
        avoid: &[u32],
        range: Range<u64>,
    ) -> Result<Bytes, (u32, Error)> {
        let layout = &self.layout;
        let fetch = |part: usize, span: Range<u64>| async move {
            let (remote, node) = (&self.remotes[part], self.node(part));
            let read = objects.read(remote, span.start, span.end - span.start);
            let bytes = unless_silent(read, remote, avoid.contains(&node)).await;
            // Bytes that the part lacks after its end were never written.
            let sealed = self.layout.parts()[part].size.clamp(span.start, span.end) - span.start;
            whole(bytes, remote, sealed).map_err(|error| (node, error))
        };
        window(layout, range, fetch).await
    }

    /// Reads a range of the file, with corrupt parts in their current state: zeros where no bytes are left.
    async fn rest(&self, objects: &Objects, range: Range<u64>) -> Result<Bytes, Error> {
        let layout = &self.layout;
        let fetch = |part: usize, span: Range<u64>| async move {
            let (remote, length) = (&self.remotes[part], span.end - span.start);
            let mut read = objects.read(remote, span.start, length).await;
            if read.as_ref().is_err_and(Error::is_elsewhere) {
                read = objects.read_corrupt_range(remote, span.start, length).await;
            }
            match read {
                Err(error) if error.is_elsewhere() => Ok(Bytes::new()),
                read => read,
            }
        };
        window(layout, range, fetch).await
    }

    /// Writes bytes of the file, with one request for each part.
    pub(crate) async fn write(
        &self,
        objects: &Objects,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let end = offset + bytes.len() as u64;
        let layout = Layout::Striped(self.striped()?.of_size(end));
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

    /// Creates the missing parts of a file of `size` bytes, and seals all parts. Returns the lengths of the parts in bytes.
    pub(crate) async fn seal(
        &self,
        objects: &Objects,
        size: u64,
        (attr, path): (&v1::Attr, &str),
    ) -> Result<Vec<u64>, Error> {
        let (body, striped) = (seal_body(attr, path), self.striped()?);
        let width = self.remotes.len();
        let seal = |part: usize| {
            let mut body = body.clone();
            body.part = Some(striped.part_of(self.version, part).to_bytes());
            async move {
                let remote = &self.remotes[part];
                if StripedLayout::part_size(striped.unit, width, size, part) == 0 {
                    objects.truncate(remote, 0).await?;
                }
                objects.seal(remote, &body).await
            }
        };
        let sealed = stream::iter((0..width).map(seal)).buffered(REQUESTS);
        sealed.try_collect().await
    }
}

impl Transfer {
    /// Returns the parts of an opened version; `None` if the version is one object.
    pub(crate) fn parts(opened: &v1::Opened) -> Result<Option<StripedVersion>, Error> {
        let Some(layout) = &opened.layout else {
            return Ok(None);
        };
        let wrong = |_| Error::Answer("Open");
        let reported = convert::layout(layout, opened.size).map_err(wrong)?;
        if opened.part_urls.len() != layout.parts.len() {
            return Err(Error::Answer("Open"));
        }
        let remote = |(part, url): (&v1::LayoutPart, &String)| {
            let node = NodeId(part.node);
            remote_at((node, url), ObjectId(part.object), &part.capability)
        };
        let parts = layout.parts.iter().zip(&opened.part_urls);
        let remotes = parts.map(remote).collect::<Result<_, _>>()?;
        Ok(Some(StripedVersion {
            version: ObjectId(opened.object),
            layout: reported,
            remotes,
        }))
    }

    /// Reads a version that is spread over several nodes, from offset `from` on. An error includes the node that was asked.
    pub(crate) async fn read_parts(
        &self,
        parts: &StripedVersion,
        avoid: &[u32],
        from: u64,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), (Option<u32>, Error)> {
        let size = parts.layout.size();
        let windows = (from..size).step_by(usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX));
        let window = |start: u64| {
            let end = size.min(start.saturating_add(WINDOW_BYTES));
            parts.window(self.objects(), avoid, start..end)
        };
        let mut windows = stream::iter(windows.map(window)).buffered(WINDOWS);
        while let Some(window) = windows.next().await {
            let bytes = window.map_err(|(node, error)| (Some(node), error))?;
            piece(bytes).map_err(|error| (None, error))?;
        }
        Ok(())
    }

    /// Reads the remaining bytes of a corrupt version that is spread over several nodes. Returns the number of bytes.
    pub(crate) async fn read_corrupt_parts(
        &self,
        parts: &StripedVersion,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let size = parts.layout.size();
        let mut start = 0;
        while start < size {
            let end = size.min(start + WINDOW_BYTES);
            piece(parts.rest(self.objects(), start..end).await?)?;
            start = end;
        }
        Ok(size)
    }

    /// Writes the bytes of a reader to all nodes that a version was opened on, and seals the version there. Returns the version's length
    /// and the lengths of its parts, in bytes.
    pub(crate) async fn write_parts<R: Read + Send + 'static>(
        &self,
        mut parts: StripedVersion,
        (attr, object): (&v1::Attr, u64),
        (mut file, path): (R, &str),
        progress: &mut impl FnMut(u64),
    ) -> Result<(u64, Vec<u64>), Error> {
        let at = |source| Error::Local {
            path: path.to_owned(),
            source,
        };
        let mut buffer = vec![0; usize::try_from(WINDOW_BYTES).unwrap_or(PIECE_BYTES)];
        let mut offset = 0;
        loop {
            let count;
            (file, buffer, count) = filled(file, buffer).await.map_err(at)?;
            if count == 0 {
                break;
            }
            let bytes = &buffer[..count];
            let mut written = parts.write(self.objects(), offset, bytes).await;
            if is_refused(&written) {
                parts = self.renew_parts(attr.ino, object).await?;
                written = parts.write(self.objects(), offset, bytes).await;
            }
            written?;
            offset += count as u64;
            progress(count as u64);
        }
        let mut sealed = parts.seal(self.objects(), offset, (attr, path)).await;
        if is_refused(&sealed) {
            parts = self.renew_parts(attr.ino, object).await?;
            sealed = parts.seal(self.objects(), offset, (attr, path)).await;
        }
        Ok((offset, sealed?))
    }

    async fn renew_parts(&self, ino: u64, object: u64) -> Result<StripedVersion, Error> {
        let again = v1::NewVersion {
            ino,
            object,
            ..v1::NewVersion::default()
        };
        match self.one(Op::NewVersion(again)).await? {
            Answer::Opened(opened) => Transfer::parts(&opened)?.ok_or(Error::Answer("NewVersion")),
            _ => Err(Error::Answer("NewVersion")),
        }
    }
}
