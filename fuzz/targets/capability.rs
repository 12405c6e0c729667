//! Capabilities: only signed capabilities pass, and only with unchanged contents.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::capability::{Attributes, Capability, CapabilityKey};

fuzz_target!(|bytes: &[u8]| {
    let key = CapabilityKey::new([7; 32]);
    // Bytes that were made without the key are no capability.
    assert!(key.read(bytes).is_err());
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let signed = Capability {
        object: ObjectId(number(0)),
        node: NodeId(number(8) as u32),
        rights: number(16) as u32,
        uid: number(24) as u32,
        expires_at_ns: number(32),
        attributes: (bytes.len() % 2 == 1).then(|| Attributes {
            inode: number(49),
            uid: number(57) as u32,
            gid: number(61) as u32,
            mode: number(65) as u32,
            part: bytes.get(69..101).and_then(|part| part.try_into().ok()),
        }),
    };
    let mut good = key.sign(&signed);
    assert_eq!(key.read(&good), Ok(signed));
    let (at, flip) = (number(40) as usize % good.len(), bytes.get(48).copied().unwrap_or(0));
    good[at] ^= flip;
    assert_eq!(key.read(&good).is_ok(), flip == 0);
});
