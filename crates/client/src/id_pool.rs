//! Ids that are reserved ahead from the server, so that the creation of a file costs no extra round trip (next: `server/src`).

use crate::{Error, Server};
use tidemill_model::id::{Inode, ObjectId};
use tokio::sync::Mutex;

/// Number of ids of each kind that are reserved at once.
pub const BLOCK: u32 = 1024;

/// Pool of reserved inode and object ids.
#[derive(Debug)]
pub struct IdStock {
    server: Server,
    stock: Mutex<Stock>,
}

#[derive(Debug, Default)]
struct Stock {
    inodes: std::ops::Range<u64>,
    objects: std::ops::Range<u64>,
}

impl IdStock {
    /// Returns an empty pool that reserves ids from `server` when they are needed.
    #[must_use]
    pub fn new(server: Server) -> Self {
        Self {
            server,
            stock: Mutex::default(),
        }
    }

    /// Returns an unused inode and an unused object id.
    ///
    /// # Errors
    /// The pool is empty and the server cannot be asked for more ids.
    pub async fn take(&self) -> Result<(Inode, ObjectId), Error> {
        let mut stock = self.stock.lock().await;
        if stock.inodes.is_empty() || stock.objects.is_empty() {
            let (inode, object) = self.server.reserve(BLOCK, BLOCK).await?;
            stock.inodes = inode.0..inode.0 + u64::from(BLOCK);
            stock.objects = object.0..object.0 + u64::from(BLOCK);
        }
        let inode = stock.inodes.next().ok_or(Error::Answer("Reserve"))?;
        let object = stock.objects.next().ok_or(Error::Answer("Reserve"))?;
        Ok((Inode(inode), ObjectId(object)))
    }
}
