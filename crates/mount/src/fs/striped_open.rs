//! Opens versions that are spread over several nodes: object files on this host directly, others by requests (next:
//! `mount/src/fs/striped.rs`).

use super::backend::NodeLocation;
use super::multi_writer::MultiWriter;
use super::object::{ObjectData, OpenObject};
use super::remote::NodeObject;
use super::right::Right;
use super::striped::OpenStriped;
use super::takeover::open_to_writers;
use super::version::{make_object_file, object_path};
use super::{Caller, Fs, WaitPolicy};
use crate::error::Error;
use std::sync::Arc;
use tidemill_client::{Error as ClientError, object_file};
use tidemill_model::layout::{self, Layout};
use tidemill_wire::{convert, v1};

fn read(opened: &v1::Opened, reported: &v1::Layout) -> Result<layout::StripedLayout, Error> {
    match convert::layout(reported, opened.size) {
        Ok(Layout::Striped(striped)) => Ok(striped),
        _ => Err(ClientError::Answer("Open").into()),
    }
}

impl Fs {
    /// Returns a sealed version as the server opened it; `right` is the right to the whole version.
    pub(super) fn open_striped(
        &self,
        caller: Caller,
        (opened, reported): (&v1::Opened, &v1::Layout),
        right: Arc<Right>,
        pace: WaitPolicy,
    ) -> Result<OpenObject, Error> {
        if reported.unit == 0 {
            let file = (opened.attr.map_or(0, |attr| attr.ino), caller);
            let extents = MultiWriter::sealed(self.backend.clone(), file, opened, reported.clone());
            let extents = extents.inspect_err(|_| self.backend.released(right.release()))?;
            let data = ObjectData::MultiWriter(Box::new(extents));
            return Ok(OpenObject::new(opened.object, 0, data, right));
        }
        let version = opened.attr.map(|attr| attr.version);
        let open = |part: &v1::LayoutPart| -> Result<Arc<OpenObject>, Error> {
            let right = Right::of_part(caller, opened, part, version);
            let place = self.backend.place(part.node, pace);
            let local = match place {
                Ok(NodeLocation {
                    directory: Some(directory),
                    ..
                }) => object_file::open(&object_path(&directory, part.object)).ok(),
                _ => None,
            };
            // A request is also sent to a node that is offline or has lost the part: it then turns to nodes that have a replica.
            let data = match local {
                Some(file) => ObjectData::Local(Arc::new(file)),
                None => ObjectData::Remote(self.remote_part(part, right.clone())),
            };
            Ok(Arc::new(OpenObject::new(
                part.object,
                part.node,
                data,
                right,
            )))
        };
        let parts: Result<Vec<_>, Error> = reported.parts.iter().map(open).collect();
        let (layout, parts) = match (read(opened, reported), parts) {
            (Ok(layout), Ok(parts)) => (layout, parts),
            (Err(error), _) | (_, Err(error)) => {
                self.backend.released(right.release());
                return Err(error);
            }
        };
        let striped = OpenStriped::new(layout, parts, opened.size);
        let striped = striped.held(self.backend.clone(), right.clone());
        Ok(OpenObject::new(
            opened.object,
            0,
            ObjectData::Striped(striped),
            right,
        ))
    }

    /// Creates the objects for a version that is about to be written, with the first bytes of the previous version.
    pub(super) fn writable_striped(
        &self,
        caller: Caller,
        (opened, reported): (&v1::Opened, &v1::Layout),
        right: Arc<Right>,
        begin: Option<(&v1::Attr, u64)>,
    ) -> Result<OpenObject, Error> {
        let make = |part: &v1::LayoutPart| -> Result<Arc<OpenObject>, Error> {
            let right = Right::of_part(caller, opened, part, None);
            let place = self.backend.place(part.node, WaitPolicy::MayWait)?;
            let data = match &place.directory {
                None => ObjectData::Remote(self.remote_part(part, right.clone())),
                Some(directory) => {
                    let file = make_object_file(&object_path(directory, part.object))?;
                    if place.owner.is_some() {
                        open_to_writers(&file, place.owner)?;
                    }
                    ObjectData::Local(Arc::new(file))
                }
            };
            let object = OpenObject::new(part.object, part.node, data, right);
            if object.waits() {
                // The object has to exist even if nothing is ever written.
                object.truncate(0)?;
            }
            Ok(Arc::new(object))
        };
        let parts = reported
            .parts
            .iter()
            .map(make)
            .collect::<Result<Vec<_>, _>>()?;
        let striped = OpenStriped::new(read(opened, reported)?, parts, 0);
        // Programs that still read after the seal hold the version until then.
        let striped = striped.held(self.backend.clone(), right.clone());
        let object = OpenObject::new(opened.object, 0, ObjectData::Striped(striped), right);
        if let Some((base, bytes)) = begin {
            self.copy_base(caller, base, bytes, &object)?;
        }
        Ok(object)
    }

    fn remote_part(&self, part: &v1::LayoutPart, right: Arc<Right>) -> NodeObject {
        NodeObject::new(self.backend.clone(), part.node, right, part.size)
    }
}
