//! Reads that wait for bytes that are still to be written (next: `client/src/follow.rs`). No thread waits for such a read. Any signal that
//! the reading program handles interrupts the read, as with a pipe.

use super::Adapter;
use super::convert::errno;
use super::waiting::Refuse as _;
use crate::error::Error;
use fuser::ReplyData;
use std::sync::Arc;
use tidemill_client::follow::Following;

impl Adapter {
    pub(super) fn read_followed(
        &self,
        following: Arc<Following>,
        thread: u32,
        (offset, size): (u64, u32),
        reply: ReplyData,
    ) {
        let slot = self.0.waiting.enter_for_any(thread, reply);
        self.0.fs.backend.runtime.spawn(async move {
            let waits = || slot.waits();
            let read = following.read((offset, size.into()), waits).await;
            let Some(reply) = slot.take() else { return };
            match read {
                Ok(bytes) => reply.data(&bytes.unwrap_or_default()),
                Err(error) => {
                    tracing::warn!("{error}");
                    reply.refuse(errno(&Error::Client(error)));
                }
            }
        });
    }
}
