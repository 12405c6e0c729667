//! Versions of files whose bytes a node already stores, so that no bytes are written (next: `server/src`).

use crate::Error;
use crate::transfer::{PutOptions, SealedParts, Transfer};
use rustix::io::Errno;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::replicas;
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Name and node of a new version.
#[derive(Clone, Copy, Debug)]
pub struct VersionPlace<'a> {
    /// Node that stores the version.
    pub node: NodeId,
    /// Inode of the directory, and the name in the directory.
    pub at: (u64, &'a str),
    /// Owner, group and mode of a new file.
    pub rights: (u32, u32, u32),
    /// Inode and version of the file that the new version follows; `None` for a new file.
    pub over: Option<(u64, ObjectId)>,
}

impl Transfer {
    /// Creates a version whose object `put` creates on the node, and returns the object. Returns `None` if another file has the name by
    /// now, or if the file is being written.
    ///
    /// # Errors
    /// The version cannot be created; after an error the file is unchanged.
    pub async fn place<F>(
        &self,
        spot: &VersionPlace<'_>,
        put: impl FnOnce(ObjectId) -> F,
    ) -> Result<Option<ObjectId>, Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let opened = match self.open_spot(spot).await {
            Ok(opened) => opened,
            Err(error)
                if [Errno::EXIST, Errno::BUSY, Errno::NOENT]
                    .iter()
                    .any(|&errno| error.is(errno)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let attr = opened.attr.ok_or(Error::Answer("Open"))?;
        let (ino, object) = (attr.ino, ObjectId(opened.object));
        if spot.over.is_some_and(|(_, before)| before.0 != attr.object) {
            self.abandon(ino, object.0).await;
            return Ok(None);
        }
        let written = async {
            let remote = Self::remote(&opened)?;
            put(object).await?;
            let sealed = self.objects().seal(&remote, &SealBody::default()).await?;
            Ok(SealedParts::whole(sealed))
        };
        let wanted = PutOptions {
            replicas: Some(replicas::WantedReplicas::ONE),
            ..PutOptions::default()
        };
        let written = written.await;
        self.end((ino, object.0), wanted, written).await?;
        Ok(Some(object))
    }

    async fn open_spot(&self, spot: &VersionPlace<'_>) -> Result<v1::Opened, Error> {
        let (ino, object) = self.new_ids().await?;
        let node = Some(spot.node.0);
        let op = match spot.over {
            Some((ino, _)) => Op::NewVersion(v1::NewVersion {
                ino,
                object: object.0,
                node,
                stub: true,
                ..v1::NewVersion::default()
            }),
            None => {
                let ((parent, name), (uid, gid, mode)) = (spot.at, spot.rights);
                Op::Create(v1::Create {
                    parent,
                    name: name.as_bytes().to_vec(),
                    kind: v1::Kind::File.into(),
                    mode,
                    ino,
                    object: object.0,
                    node,
                    uid,
                    gid,
                    stub: true,
                    ..v1::Create::default()
                })
            }
        };
        match self.one(op).await? {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(Error::Answer("Create")),
        }
    }
}
