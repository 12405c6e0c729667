//! Format of a label in a NATS stream to which other clients can write: only the server can create a valid label.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | [`VERSION`] |
//! | 32 | keyed blake3 of version, node (4 bytes, little endian) and label |
//! | rest | the label, as in the outbox |

use prost::Message;
use tidemill_model::id::NodeId;
use tidemill_model::label::Label;
use tidemill_wire::v1;

const VERSION: u8 = 1;
/// Number of bytes before the label in a message.
const HEAD: usize = 1 + blake3::OUT_LEN;
const CONTEXT: &str = "tidemill 2026-11-25 labels in a queue";

/// Key with which the labels of a cluster are authenticated.
#[derive(Clone)]
pub(super) struct Seal([u8; blake3::KEY_LEN]);

impl Seal {
    /// Derives the key for labels from a key that only the cluster's daemons know.
    pub(super) fn new(key: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, key))
    }

    pub(super) fn seal(&self, node: NodeId, label: &Label) -> Vec<u8> {
        let body = v1::Label::from(label).encode_to_vec();
        let mut message = Vec::with_capacity(HEAD + body.len());
        message.push(VERSION);
        message.extend(self.code(node, &body).as_bytes());
        message.extend(body);
        message
    }

    /// Returns the label in a message, if the message was created with this key for this node.
    pub(super) fn open(&self, node: NodeId, message: &[u8]) -> Option<Label> {
        let (head, body) = message.split_at_checked(HEAD)?;
        let code: [u8; blake3::OUT_LEN] = head[1..].try_into().ok()?;
        // Codes are compared in constant time.
        if head[0] != VERSION || self.code(node, body) != code {
            return None;
        }
        Label::try_from(&v1::Label::decode(body).ok()?).ok()
    }

    fn code(&self, node: NodeId, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[VERSION]);
        hasher.update(&node.0.to_le_bytes());
        hasher.update(body);
        hasher.finalize()
    }
}
