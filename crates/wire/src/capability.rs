//! Capabilities: the server's signed statement that a user may perform some operations on one object until some time. A node serves an
//! object only with a capability. This is the OSD security model (AnalyzeThis §3.3, "Data and Workflow Security"), with HMAC-SHA256 over a
//! key that the server shares with its nodes.
//!
//! Format, 61 bytes: version (1), object (8), rights (4), uid (4), expiry in nanoseconds since the Unix epoch (8), node (4), then the
//! 32-byte HMAC of all preceding bytes. Integers are little-endian.
//!
//! A capability to write has 114 bytes or more. Before the HMAC it has the attributes that the node records when the object is sealed:
//! inode (8), owner (4), group (4), permission bits (4), whether the object is a part (1), the version and index of the part (32, zeros if
//! the object is no part), and the path of the file (0 to 1024).
//!
//! A node answers a seal with a receipt: 32 bytes, the HMAC of `sealed`, node (4), object (8) and length (8). A writer shows the receipts
//! to the server, which so learns the length of each object from its node.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tidemill_model::id::{NodeId, ObjectId};

/// Version of the format of capabilities.
pub const VERSION: u8 = 2;
const SIGNED_BYTES: usize = 1 + 8 + 4 + 4 + 8 + 4;
const MAC_BYTES: usize = 32;
/// Length of a capability in bytes.
pub const LENGTH: usize = SIGNED_BYTES + MAC_BYTES;
const PART_BYTES: usize = 32;
const SIGNED_BYTES_ATTRIBUTES: usize = SIGNED_BYTES + 8 + 4 + 4 + 4 + 1 + PART_BYTES;
/// Length in bytes of a capability with [`Attributes`] without a path.
pub const LENGTH_ATTRIBUTES: usize = SIGNED_BYTES_ATTRIBUTES + MAC_BYTES;
/// Maximum length in bytes of a path in a capability. A longer path is left out.
pub const PATH_BYTES_MAX: usize = 1024;
/// Maximum length in bytes of a capability.
const LENGTH_MAX: usize = LENGTH_ATTRIBUTES + PATH_BYTES_MAX;
/// Beginning of the bytes that a receipt signs. No capability begins with it.
const SEALED: &[u8] = b"sealed";

/// Rights of a capability, which are combined with `|`.
pub mod rights {
    /// Right to read the object's bytes and attributes.
    pub const READ: u32 = 1;
    /// Right to create the object, write to it until it is sealed, and seal it.
    pub const WRITE: u32 = 2;
    /// Right to remove the object.
    pub const REMOVE: u32 = 4;
    /// Right to set the object's attributes.
    pub const ATTRIBUTES: u32 = 8;
    /// Right to read the object's bytes also before the object is sealed, for files that several mounts write.
    pub const UNSEALED: u32 = 16;
    /// Right to run a rank of a task on the node that reads the object, and to connect to the rank. Only labels of such tasks have it.
    pub const RANK: u32 = 256;
}

/// Key that signs and verifies capabilities.
#[derive(Clone)]
pub struct CapabilityKey([u8; 32]);

impl std::fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapabilityKey(..)")
    }
}

/// Content of a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Object for which the capability is valid.
    pub object: ObjectId,
    /// Node on which the capability is valid.
    pub node: NodeId,
    /// Allowed operations; see [`rights`].
    pub rights: u32,
    /// User id of the user who got the capability.
    pub uid: u32,
    /// Time at which the capability expires, in nanoseconds since the Unix epoch.
    pub expires_at_ns: u64,
    /// Attributes that the node records when it seals the object; `None` in a capability that does not allow writing.
    pub attributes: Option<Attributes>,
}

/// Attributes of a written object that the node records, as the server, not the client, has set them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode of the object's file.
    pub inode: u64,
    /// User id of the file's owner.
    pub uid: u32,
    /// Group id of the file.
    pub gid: u32,
    /// Permission bits of the file.
    pub mode: u32,
    /// Version and index of the part that the object is, encoded (`tidemill_model::layout::PartOf`).
    pub part: Option<[u8; PART_BYTES]>,
    /// Path of the file when the capability was signed; empty if the path is longer than [`PATH_BYTES_MAX`].
    pub path: Vec<u8>,
}

/// Reason why a node refuses a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityRefusal {
    /// The bytes are not a capability.
    #[error("the capability is malformed; ask the server for one")]
    Malformed,
    /// The capability was not signed by this cluster's server, or was changed.
    #[error("the capability is not signed by this cluster's server")]
    Forged,
    /// The capability is for another object or node.
    #[error("the capability is for another object or node")]
    OtherObject,
    /// The capability does not allow this operation.
    #[error("the capability does not allow this operation")]
    Rights,
    /// The capability has expired.
    #[error(
        "the capability has expired: open the file again; if that is refused too, set the clocks of the server's and this node's \
         host: they may differ by less than 5 minutes"
    )]
    Expired,
}

impl CapabilityKey {
    /// Creates a key from 32 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Creates a key from bytes of a message or a database.
    ///
    /// # Errors
    /// [`CapabilityRefusal::Malformed`] unless there are exactly 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, CapabilityRefusal> {
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| CapabilityRefusal::Malformed)
    }

    /// Returns the bytes of the key, which are sent to a node over a trusted connection.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0)
            .expect("HMAC takes keys of any length");
        mac.update(signed);
        mac
    }

    /// Signs a capability.
    #[must_use]
    pub fn sign(&self, capability: &Capability) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LENGTH_ATTRIBUTES);
        bytes.push(VERSION);
        bytes.extend(capability.object.0.to_le_bytes());
        bytes.extend(capability.rights.to_le_bytes());
        bytes.extend(capability.uid.to_le_bytes());
        bytes.extend(capability.expires_at_ns.to_le_bytes());
        bytes.extend(capability.node.0.to_le_bytes());
        if let Some(attributes) = &capability.attributes {
            bytes.extend(attributes.inode.to_le_bytes());
            bytes.extend(attributes.uid.to_le_bytes());
            bytes.extend(attributes.gid.to_le_bytes());
            bytes.extend(attributes.mode.to_le_bytes());
            bytes.push(attributes.part.is_some().into());
            bytes.extend(attributes.part.unwrap_or_default());
            if attributes.path.len() <= PATH_BYTES_MAX {
                bytes.extend(&attributes.path);
            }
        }
        let tag = self.mac(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Returns the content of a capability that was signed with this key, for any object and of any age.
    ///
    /// # Errors
    /// [`CapabilityRefusal::Malformed`] or [`CapabilityRefusal::Forged`].
    pub fn read(&self, bytes: &[u8]) -> Result<Capability, CapabilityRefusal> {
        let with_attributes = match (bytes.len(), bytes.first()) {
            (LENGTH, Some(&VERSION)) => false,
            (LENGTH_ATTRIBUTES..=LENGTH_MAX, Some(&VERSION)) => true,
            _ => return Err(CapabilityRefusal::Malformed),
        };
        let (signed, tag) = bytes.split_at(bytes.len() - MAC_BYTES);
        self.mac(signed)
            .verify_slice(tag)
            .map_err(|_| CapabilityRefusal::Forged)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| signed[at + i]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| signed[at + i]));
        let attributes = with_attributes.then(|| Attributes {
            inode: long(SIGNED_BYTES),
            uid: short(SIGNED_BYTES + 8),
            gid: short(SIGNED_BYTES + 12),
            mode: short(SIGNED_BYTES + 16),
            part: (signed[SIGNED_BYTES + 20] != 0)
                .then(|| std::array::from_fn(|i| signed[SIGNED_BYTES + 21 + i])),
            path: signed[SIGNED_BYTES_ATTRIBUTES..].to_vec(),
        });
        Ok(Capability {
            object: ObjectId(long(1)),
            rights: short(9),
            uid: short(13),
            expires_at_ns: long(17),
            node: NodeId(short(25)),
            attributes,
        })
    }

    fn seal_mac(&self, node: NodeId, object: ObjectId, size: u64) -> Hmac<Sha256> {
        let mut signed = SEALED.to_vec();
        signed.extend(node.0.to_le_bytes());
        signed.extend(object.0.to_le_bytes());
        signed.extend(size.to_le_bytes());
        self.mac(&signed)
    }

    /// Returns the receipt of a node for an object that it sealed at this length.
    #[must_use]
    pub fn receipt(&self, node: NodeId, object: ObjectId, size: u64) -> Vec<u8> {
        let tag = self.seal_mac(node, object, size).finalize().into_bytes();
        tag.to_vec()
    }

    /// Returns whether a node gave this receipt for an object that it sealed at this length.
    #[must_use]
    pub fn is_receipt(&self, receipt: &[u8], node: NodeId, object: ObjectId, size: u64) -> bool {
        let mac = self.seal_mac(node, object, size);
        mac.verify_slice(receipt).is_ok()
    }
}

impl Capability {
    /// Whether the capability allows `rights` on `object` of `node` at the time `now_ns`.
    ///
    /// # Errors
    /// The reason why the capability does not allow the operation.
    pub fn allows(
        &self,
        node: NodeId,
        object: ObjectId,
        rights: u32,
        now_ns: u64,
    ) -> Result<(), CapabilityRefusal> {
        if self.object != object || self.node != node {
            return Err(CapabilityRefusal::OtherObject);
        }
        if self.rights & rights != rights {
            return Err(CapabilityRefusal::Rights);
        }
        if self.expires_at_ns <= now_ns {
            return Err(CapabilityRefusal::Expired);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPABILITY: Capability = Capability {
        object: ObjectId(7),
        node: NodeId(2),
        rights: rights::READ | rights::WRITE,
        uid: 1000,
        expires_at_ns: 100,
        attributes: None,
    };

    fn to_write(part: Option<[u8; 32]>, path: &[u8]) -> Capability {
        Capability {
            attributes: Some(Attributes {
                inode: 9,
                uid: 1001,
                gid: 1002,
                mode: 0o640,
                part,
                path: path.to_vec(),
            }),
            ..CAPABILITY
        }
    }

    fn read(bytes: &[u8]) -> Result<Capability, CapabilityRefusal> {
        CapabilityKey::new([1; 32]).read(bytes)
    }

    #[test]
    fn capability_is_valid_for_its_object_rights_and_time() {
        let key = CapabilityKey::new([1; 32]);
        let bytes = key.sign(&CAPABILITY);
        assert_eq!(bytes.len(), LENGTH);
        assert_eq!(read(&bytes), Ok(CAPABILITY));
        let on = |node, object, rights, now| {
            CAPABILITY.allows(NodeId(node), ObjectId(object), rights, now)
        };
        assert_eq!(on(2, 7, rights::READ, 99), Ok(()));
        assert_eq!(
            on(2, 8, rights::READ, 99),
            Err(CapabilityRefusal::OtherObject)
        );
        assert_eq!(
            on(3, 7, rights::READ, 99),
            Err(CapabilityRefusal::OtherObject)
        );
        assert_eq!(on(2, 7, rights::REMOVE, 99), Err(CapabilityRefusal::Rights));
        assert_eq!(on(2, 7, rights::READ, 100), Err(CapabilityRefusal::Expired));
        assert!(CapabilityRefusal::Expired.to_string().contains("clocks"));
        assert_eq!(
            read(&CapabilityKey::new([2; 32]).sign(&CAPABILITY)),
            Err(CapabilityRefusal::Forged)
        );
    }

    #[test]
    fn capability_signature_covers_attributes() {
        let key = CapabilityKey::new([1; 32]);
        let part = Some([5; 32]);
        let longest = vec![b'x'; PATH_BYTES_MAX];
        for (part, path) in [(part, &b"/a"[..]), (None, b""), (None, &longest)] {
            let capability = to_write(part, path);
            let bytes = key.sign(&capability);
            assert_eq!(bytes.len(), LENGTH_ATTRIBUTES + path.len());
            assert_eq!(read(&bytes), Ok(capability));
            // The attributes cannot be cut off.
            assert_eq!(read(&bytes[..LENGTH]), Err(CapabilityRefusal::Forged));
            assert_eq!(
                read(&bytes[..LENGTH + 1]),
                Err(CapabilityRefusal::Malformed)
            );
            assert!(read(&bytes[..bytes.len() - 1]).is_err());
            assert!(read(&[&bytes[..], b"x"].concat()).is_err());
        }
        let long = to_write(None, &[b'x'; PATH_BYTES_MAX + 1]);
        assert_eq!(read(&key.sign(&long)), Ok(to_write(None, b"")));
    }

    #[test]
    fn receipt_is_valid_for_one_length_of_one_object_on_one_node() {
        let key = CapabilityKey::new([1; 32]);
        let receipt = key.receipt(NodeId(2), ObjectId(7), 4096);
        let is = |receipt: &[u8], node, object, size| {
            key.is_receipt(receipt, NodeId(node), ObjectId(object), size)
        };
        assert!(is(&receipt, 2, 7, 4096));
        assert!(!is(&receipt, 3, 7, 4096) && !is(&receipt, 2, 8, 4096));
        assert!(!is(&receipt, 2, 7, 4097));
        assert!(!is(&receipt[..31], 2, 7, 4096) && !is(b"", 2, 7, 4096));
        let other = CapabilityKey::new([2; 32]).receipt(NodeId(2), ObjectId(7), 4096);
        assert!(!is(&other, 2, 7, 4096));
        // Neither can serve as the other.
        assert!(read(&receipt).is_err());
        assert!(!is(&key.sign(&CAPABILITY), 2, 7, 4096));
    }

    proptest! {
        #[test]
        fn capability_with_any_changed_byte_is_refused(at in 0..LENGTH, flip in 1u8..=255) {
            let mut bytes = CapabilityKey::new([1; 32]).sign(&CAPABILITY);
            bytes[at] ^= flip;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn capability_with_any_changed_attribute_is_refused(at in 0..LENGTH_ATTRIBUTES + 2, flip in 1u8..=255) {
            let mut bytes = CapabilityKey::new([1; 32]).sign(&to_write(Some([5; 32]), b"/a"));
            bytes[at] ^= flip;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused_as_capability(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(read(&bytes).is_err());
        }
    }
}
