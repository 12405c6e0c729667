//! List of capabilities that the server has revoked early: for each object, capabilities that expire before some time.

use parking_lot::Mutex;
use std::collections::HashMap;
use tidemill_model::id::ObjectId;
use tidemill_wire::capability::{Capability, CapabilityRefusal};
use tidemill_wire::v1;

/// List of revocations, in memory only. The server sends the revocations again to a node that was restarted.
#[derive(Debug, Default)]
pub(crate) struct Revoked(Mutex<HashMap<ObjectId, u64>>);

impl Revoked {
    /// Adds the server's revocations and removes expired revocations.
    pub(crate) fn on_revoke(&self, revoke: &v1::Revoke, now_ns: u64) {
        let mut until = self.0.lock();
        until.retain(|_, until_ns| *until_ns > now_ns);
        for revoked in &revoke.revoked {
            let known = until.entry(ObjectId(revoked.object)).or_default();
            *known = revoked.until_ns.max(*known);
        }
    }

    /// Returns an error if the server has revoked an otherwise valid capability.
    pub(crate) fn check(&self, capability: &Capability) -> Result<(), CapabilityRefusal> {
        match self.0.lock().get(&capability.object) {
            Some(until_ns) if capability.expires_at_ns <= *until_ns => {
                Err(CapabilityRefusal::Expired)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::NodeId;

    #[test]
    fn revoked_capability_of_object_is_refused() {
        let of = |object, expires_at_ns| Capability {
            object: ObjectId(object),
            node: NodeId(0),
            rights: 1,
            uid: 7,
            expires_at_ns,
            attributes: None,
        };
        let revoke = |object, until_ns| v1::Revoke {
            revoked: vec![v1::Revoked { object, until_ns }],
        };
        let revoked = Revoked::default();
        revoked.on_revoke(&revoke(5, 100), 0);
        revoked.on_revoke(&revoke(5, 90), 0);
        assert_eq!(revoked.check(&of(5, 100)), Err(CapabilityRefusal::Expired));
        assert_eq!(revoked.check(&of(5, 101)), Ok(()));
        assert_eq!(revoked.check(&of(6, 100)), Ok(()));
        revoked.on_revoke(&revoke(6, 200), 150);
        assert_eq!(revoked.0.lock().len(), 1, "expired revocations are removed");
    }
}
