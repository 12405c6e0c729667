//! Known locations of the bytes of a version that is being written. The module asks the server for changes (next: `server/src`).

use super::{PAUSE_MAX, Range};
use crate::error::Error;
use crate::objects::ObjectAddress;
use crate::opened::{OpenedVersion, located};
use crate::published::Visible;
use crate::transfer::{Transfer, remote_at};
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::time::Instant;

/// Maximum time that the reader waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// State of a version that is being written.
#[derive(Debug)]
pub(super) struct StreamingFile {
    ino: u64,
    /// Last answer of the server to an open of the version.
    opened: v1::Opened,
    written: StreamState,
}

#[derive(Debug)]
enum StreamState {
    /// One writer writes the version, into one object.
    Alone,
    /// Several mounts write the version.
    MultiWriter(Visible, Vec<ObjectLocation>),
    /// The version is sealed; with its parts, if it has several parts.
    Sealed(Option<Arc<OpenedVersion>>),
    /// The version is sealed, and a node with a part of the version is offline.
    Offline(NodeId),
}

/// Address of an object, or the offline node that stores the object.
type ObjectLocation = Result<ObjectAddress, NodeId>;

/// Location of bytes of a version.
#[derive(Debug)]
pub(super) enum StreamLocation {
    /// The first of the bytes are in this range of an object.
    Object(ObjectAddress, Range<u64>),
    /// The first of the bytes are in this range of sealed parts.
    Parts(Arc<OpenedVersion>, Range<u64>),
    /// The bytes may still be written.
    NotYet,
    /// The version ends before the bytes.
    End,
    /// The bytes are on an offline node.
    Offline(NodeId),
}

/// Data for a request to the server for the state of a version.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownVersion {
    pub(super) ino: u64,
    object: u64,
    /// Number of the last known publication, if several mounts write the version.
    since: Option<u64>,
}

/// New state of a version.
pub(super) enum VersionUpdate {
    /// The version is still being written, possibly by several mounts.
    Open(v1::Opened),
    Published(v1::MultiWriter),
    Sealed(v1::Opened),
}

impl StreamingFile {
    /// Returns the state of a file that was opened while it is being written.
    pub(super) fn new(ino: u64, opened: v1::Opened) -> Result<Self, Error> {
        let mut version = Self {
            ino,
            opened: v1::Opened::default(),
            written: StreamState::Alone,
        };
        version.adopt(VersionUpdate::Open(opened))?;
        Ok(version)
    }

    pub(super) fn known(&self) -> KnownVersion {
        let since = match &self.written {
            StreamState::MultiWriter(visible, _) => Some(visible.last),
            _ => None,
        };
        KnownVersion {
            ino: self.ino,
            object: self.opened.object,
            since,
        }
    }

    /// Whether the version is sealed, and can be read to its end.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.written, StreamState::Sealed(_))
    }

    /// Whether only one mount writes the version, as far as is known, so that its object is the file.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.written, StreamState::Alone)
    }

    /// Whether the version's object is the file, during the write or after the seal.
    pub(super) fn is_one_object(&self) -> bool {
        matches!(self.written, StreamState::Alone | StreamState::Sealed(None))
    }

    pub(super) fn opened(&self) -> &v1::Opened {
        &self.opened
    }

    /// Returns the version's parts, if the version is sealed and is not one object.
    pub(super) fn parts(&self) -> Option<&OpenedVersion> {
        match &self.written {
            StreamState::Sealed(parts) => parts.as_deref(),
            _ => None,
        }
    }

    /// Applies a server's answer about the version. An answer from before the seal that arrives after an answer from after it is ignored.
    pub(super) fn adopt(&mut self, news: VersionUpdate) -> Result<(), Error> {
        let ended = matches!(
            self.written,
            StreamState::Sealed(_) | StreamState::Offline(_)
        );
        match news {
            VersionUpdate::Open(_) | VersionUpdate::Published(_) if ended => {}
            VersionUpdate::Sealed(opened) => {
                self.written = match reached(&opened) {
                    Ok(parts) => StreamState::Sealed(parts.map(Arc::new)),
                    Err(Error::NodeDown(node)) => StreamState::Offline(node),
                    Err(error) => return Err(error),
                };
                self.opened = opened;
            }
            VersionUpdate::Published(reported) => self.publish(&reported)?,
            VersionUpdate::Open(mut opened) => {
                let multi_writer = opened.multi_writer.take();
                self.opened = opened;
                if let Some(reported) = multi_writer {
                    self.publish(&reported)?;
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, reported: &v1::MultiWriter) -> Result<(), Error> {
        let wrong = |_| Error::Answer("Publications");
        if !matches!(self.written, StreamState::MultiWriter(..)) {
            self.written = StreamState::MultiWriter(Visible::default(), Vec::new());
        }
        if let StreamState::MultiWriter(visible, places) = &mut self.written {
            visible.adopt(reported).map_err(wrong)?;
            let urls = reported.part_urls.iter().map(String::as_str);
            let urls = urls.chain(std::iter::repeat(""));
            let place = |(part, url): (&v1::LayoutPart, &str)| {
                let node = NodeId(part.node);
                let at = remote_at((node, url), ObjectId(part.object), &part.capability);
                at.map_err(|_| node)
            };
            *places = reported.parts.iter().zip(urls).map(place).collect();
        }
        Ok(())
    }

    pub(super) fn at(&self, offset: u64, length: u64) -> StreamLocation {
        let range = offset..offset.saturating_add(length);
        match &self.written {
            StreamState::Sealed(Some(parts)) => {
                let range = offset..range.end.min(self.opened.size);
                match range.is_empty() {
                    true => StreamLocation::End,
                    false => StreamLocation::Parts(Arc::clone(parts), range),
                }
            }
            StreamState::MultiWriter(visible, places) => {
                let first = visible.extents.within(range).next();
                let Some(extent) = first.filter(|extent| extent.offset == offset) else {
                    return StreamLocation::NotYet;
                };
                match places.get(extent.at.part) {
                    Some(Ok(remote)) => StreamLocation::Object(
                        remote.clone(),
                        extent.at.offset..extent.end_within(),
                    ),
                    Some(Err(node)) => StreamLocation::Offline(*node),
                    None => StreamLocation::NotYet,
                }
            }
            StreamState::Offline(node) => StreamLocation::Offline(*node),
            StreamState::Alone | StreamState::Sealed(None) => {
                match Transfer::remote(&self.opened) {
                    Ok(remote) => StreamLocation::Object(remote, range),
                    Err(_) => StreamLocation::Offline(NodeId(self.opened.node)),
                }
            }
        }
    }
}

/// Returns the parts of a sealed version, if it has several parts; an error if one of its nodes is offline.
fn reached(opened: &v1::Opened) -> Result<Option<OpenedVersion>, Error> {
    let (_, places) = located(opened)?;
    if let Some((node, _)) = places.iter().find(|(_, address)| address.is_none()) {
        return Err(Error::NodeDown(*node));
    }
    let parts = opened.layout.is_some();
    parts.then(|| OpenedVersion::new(opened)).transpose()
}

impl KnownVersion {
    /// Whether `opened` is this version. If other mounts write the version, too, or have written it, the object is a part of the version.
    fn is(&self, opened: &v1::Opened) -> bool {
        let within = |parts: &[v1::LayoutPart]| parts.iter().any(|part| part.object == self.object);
        let multi_writer = opened.multi_writer.as_ref();
        let layout = opened.layout.as_ref();
        opened.object == self.object
            || multi_writer.is_some_and(|multi_writer| within(&multi_writer.parts))
            || layout.is_some_and(|layout| within(&layout.parts))
    }
}

impl Transfer {
    /// Asks the server for the state of a version that was being written; `None` if it was abandoned, or replaced by another version.
    pub(super) async fn look(&self, known: &KnownVersion) -> Result<Option<VersionUpdate>, Error> {
        let ino = known.ino;
        if let Some(since) = known.since {
            let publications = v1::Publications {
                ino,
                version: known.object,
                since,
                closed: true,
            };
            match self.one(Op::Publications(publications)).await {
                Ok(Answer::MultiWriter(reported)) if reported.sealed.is_none() => {
                    return Ok(Some(VersionUpdate::Published(reported)));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(
                    "the state of a version of several mounts is requested again: {error}"
                ),
            }
        }
        let opened = self.opened_streaming(ino).await?;
        let attr = opened.attr.as_ref().ok_or(Error::Answer("Open"))?;
        let streaming = opened.object != attr.object;
        if known.is(&opened) {
            let news = if streaming {
                VersionUpdate::Open
            } else {
                VersionUpdate::Sealed
            };
            return Ok(Some(news(opened)));
        }
        if !streaming {
            return Ok(None);
        }
        // Another version is being written already.
        let open = v1::Open {
            ino,
            ..v1::Open::default()
        };
        match self.one(Op::Open(open)).await? {
            Answer::Opened(opened) if known.is(&opened) => Ok(Some(VersionUpdate::Sealed(opened))),
            _ => Ok(None),
        }
    }

    /// Opens a file that may be being written; waits for a server that does not answer.
    pub(super) async fn opened_streaming(&self, ino: u64) -> Result<v1::Opened, Error> {
        let open = v1::Open {
            ino,
            streaming: true,
            ..v1::Open::default()
        };
        let until = Instant::now() + PATIENCE;
        loop {
            match self.one(Op::Open(open.clone())).await {
                Ok(Answer::Opened(opened)) => return Ok(opened),
                Ok(_) => return Err(Error::Answer("Open")),
                // Its mount does not answer whether it is closed, as during a restart.
                Err(error)
                    if (error.is_lost() || error.is(rustix::io::Errno::TIMEDOUT))
                        && Instant::now() < until =>
                {
                    tokio::time::sleep(PAUSE_MAX).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(object: u64) -> v1::Opened {
        v1::Opened {
            object,
            url: "http://there".into(),
            ..v1::Opened::default()
        }
    }

    fn shared() -> v1::Opened {
        v1::Opened {
            multi_writer: Some(v1::MultiWriter {
                version: 9,
                parts: vec![v1::LayoutPart {
                    object: 5,
                    ..v1::LayoutPart::default()
                }],
                ..v1::MultiWriter::default()
            }),
            ..opened(9)
        }
    }

    #[test]
    fn streaming_version_stays_one_object_until_another_writer() {
        let mut version = StreamingFile::new(2, opened(5)).unwrap();
        version.adopt(VersionUpdate::Open(opened(5))).unwrap();
        assert!(version.is_alone() && version.is_one_object());
        version.adopt(VersionUpdate::Open(shared())).unwrap();
        assert!(!version.is_alone() && !version.is_one_object());
        // An answer to an earlier question changes nothing.
        version.adopt(VersionUpdate::Open(opened(5))).unwrap();
        assert!(!version.is_one_object());

        let mut version = StreamingFile::new(2, opened(5)).unwrap();
        version.adopt(VersionUpdate::Sealed(opened(5))).unwrap();
        assert!(!version.is_alone() && version.is_one_object());
        version.adopt(VersionUpdate::Open(shared())).unwrap();
        assert!(version.is_sealed() && version.is_one_object());
    }
}
