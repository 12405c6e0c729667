//! Capabilities that ordinary users hold. A change of a file's mode or owner revokes the capabilities at once, before they expire. This
//! module does not track capabilities of mounts, since a mount gives bytes only to processes that have the file open.
//! The server sends each revoked capability to its node, and sends it again after the node reconnects, until all revoked capabilities have
//! expired (next: `server/src/cluster/revocations.rs` and `node/src/revoked.rs`). A restarted server does not know earlier capabilities, which stay valid until they expire.

use super::clock;
use super::wakes::{REVOKED, Wakes};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_wire::v1;

/// Maximum number of files whose capabilities are tracked; capabilities for further files can't be revoked and end when they expire.
const FILES_MAX: usize = 100_000;

/// A node, and an object on the node.
type LentObject = (u32, u64);

/// Record of granted and revoked capabilities, as described in the module's documentation.
#[derive(Debug, Default)]
pub struct GrantedCapabilities {
    /// Expiry of the capabilities for each object of each file, in nanoseconds since the Unix epoch.
    files: Mutex<HashMap<u64, BTreeMap<LentObject, u64>>>,
    changes: AtomicU64,
    ended: Mutex<BTreeMap<LentObject, EndedLease>>,
    wakes: Arc<Wakes>,
}

#[derive(Debug)]
struct EndedLease {
    /// Capabilities that expire at this time or earlier are revoked.
    until_ns: u64,
    reported: bool,
}

fn now_ns() -> u64 {
    clock::now_ns().unsigned_abs()
}

impl GrantedCapabilities {
    /// Returns an empty record that sends a signal for each revocation.
    pub(crate) fn new(wakes: Arc<Wakes>) -> Self {
        Self {
            wakes,
            ..Self::default()
        }
    }

    /// Records that a user received a capability for an object of a file.
    pub fn on_granted(&self, ino: u64, held: LentObject, expires_ns: u64) {
        let mut files = self.files.lock();
        if files.len() < FILES_MAX || files.contains_key(&ino) {
            let known = files.entry(ino).or_default().entry(held).or_default();
            *known = expires_ns.max(*known);
        }
    }

    /// Returns the number of permission changes. A read in parallel with the writer sees a file in an earlier state. If the number is equal
    /// before the read and after the signing, no capability was signed with permissions that have been withdrawn.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Revokes the capabilities for a file whose permissions have changed. Every later request is answered with the new permissions.
    pub(crate) fn on_rights_changed(&self, ino: u64) {
        let mut files = self.files.lock();
        self.changes.fetch_add(1, Ordering::Release);
        let Some(granted) = files.remove(&ino) else {
            return;
        };
        drop(files);
        let mut ended = self.ended.lock();
        for (held, until_ns) in granted {
            let reported = false;
            ended.insert(held, EndedLease { until_ns, reported });
        }
        drop(ended);
        self.wakes.wake(REVOKED);
    }

    /// Returns whether any capability is recorded that may expire.
    pub fn any(&self) -> bool {
        !self.files.lock().is_empty() || !self.ended.lock().is_empty()
    }

    /// Deletes expired capabilities from the record.
    pub fn forget(&self) {
        let now = now_ns();
        self.files.lock().retain(|_, granted| {
            granted.retain(|_, expires_ns| *expires_ns > now);
            !granted.is_empty()
        });
    }

    /// Returns the revocations to send to each node, each once: all revocations to nodes that have reconnected, and only new revocations to
    /// other nodes.
    pub fn to_tell(&self, reconnected: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<v1::Revoked>> {
        let now = now_ns();
        let mut tell: BTreeMap<u32, Vec<v1::Revoked>> = BTreeMap::new();
        self.ended.lock().retain(|&(node, object), ended| {
            let until_ns = ended.until_ns;
            let over = until_ns <= now;
            if !over && (!std::mem::replace(&mut ended.reported, true) || reconnected(node)) {
                let revoked = v1::Revoked { object, until_ns };
                tell.entry(node).or_default().push(revoked);
            }
            !over
        });
        tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Names as _, NamesRequest, SqliteNames, ids};
    use tidemill_model::id::{NodeId, ObjectId};
    use tidemill_wire::v1::{name_op::Op, name_result::Result as Answer};

    /// Returns the receipt of node 3 for an object of 5 bytes.
    fn receipt(names: &SqliteNames, object: u64) -> Vec<u8> {
        let key = names.shared().key();
        key.receipt(NodeId(3), ObjectId(object), 5)
    }

    #[test]
    fn capability_revocation_is_sent_once_to_each_node() {
        let granted = GrantedCapabilities::default();
        let soon = clock::now_ns().unsigned_abs() + 1_000_000_000_000;
        granted.on_granted(7, (0, 70), soon);
        granted.on_granted(7, (1, 71), soon + 5);
        granted.on_granted(8, (0, 80), soon);
        granted.on_rights_changed(7);
        granted.on_rights_changed(9);
        let reported = granted.to_tell(|_| false);
        assert_eq!(reported.len(), 2);
        assert_eq!((reported[&0].len(), reported[&0][0].object), (1, 70));
        assert_eq!(
            (reported[&1][0].object, reported[&1][0].until_ns),
            (71, soon + 5)
        );
        assert!(granted.to_tell(|_| false).is_empty());
        // A node that reconnects may have forgotten the revocation.
        assert_eq!(granted.to_tell(|node| node == 1).len(), 1);
    }

    fn answer(names: &SqliteNames, caller: &Caller, op: Op) -> Answer {
        let request = NamesRequest {
            caller: caller.clone(),
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        let mut results = names.apply_blocking(request).unwrap();
        results.remove(0).result.unwrap()
    }

    /// Creates a file with content that everybody may read; returns its inode.
    fn shown_to_all(names: &SqliteNames) -> u64 {
        names.add_node(NodeId(3));
        let ids = |db: &_| ids::reserve_for(db, &Caller::root(), 1, 1);
        let (ino, object) = names.database().write_blocking(ids).unwrap();
        let create = v1::Create {
            parent: 1,
            name: b"file".to_vec(),
            kind: v1::Kind::File.into(),
            mode: 0o644,
            ino,
            object,
            ..v1::Create::default()
        };
        answer(names, &Caller::root(), Op::Create(create));
        let seal = v1::Seal {
            ino,
            object,
            size: 5,
            receipts: vec![receipt(names, object)],
            ..v1::Seal::default()
        };
        answer(names, &Caller::root(), Op::Seal(seal));
        ino
    }

    /// A client that guesses an object's number learns nothing, and the writer of the version receives the answer to a repeated seal.
    #[test]
    fn repeated_seal_answers_writer_and_refuses_other_users() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.add_node(NodeId(3));
        let caller = |uid| Caller {
            uid,
            gid: uid,
            ..Caller::default()
        };
        let mode = v1::SetAttr {
            ino: 1,
            mode: Some(0o777),
            ..v1::SetAttr::default()
        };
        answer(&names, &Caller::root(), Op::SetAttr(mode));
        let user = caller(7);
        let ids = move |db: &_| ids::reserve_for(db, &user, 1, 1);
        let (ino, object) = names.database().write_blocking(ids).unwrap();
        let create = v1::Create {
            parent: 1,
            name: b"private".to_vec(),
            kind: v1::Kind::File.into(),
            mode: 0o600,
            ino,
            object,
            ..v1::Create::default()
        };
        let opened = answer(&names, &caller(7), Op::Create(create));
        let Answer::Opened(opened) = opened else {
            panic!("{opened:?}");
        };
        // The node records the file's attributes as the server knows them.
        let signed = names.shared().key().read(&opened.capability).unwrap();
        let signed = signed.attributes.unwrap();
        assert_eq!((signed.inode, signed.uid, signed.gid), (ino, 7, 7));
        assert_eq!((signed.mode, signed.part), (0o600, None));
        assert_eq!(signed.path, b"/private");
        let seal = |uid| {
            let seal = v1::Seal {
                ino,
                object,
                size: 5,
                receipts: vec![receipt(&names, object)],
                ..v1::Seal::default()
            };
            answer(&names, &caller(uid), Op::Seal(seal))
        };
        assert!(matches!(seal(8), Answer::Error(_)));
        assert!(matches!(seal(7), Answer::Attr(_)));
        let refused = seal(8);
        let Answer::Error(error) = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.errno, rustix::io::Errno::STALE.raw_os_error());
        assert!(matches!(seal(7), Answer::Attr(_)));
        assert!(matches!(seal(0), Answer::Attr(_)));
    }

    /// A client that opens a file while its permission is being withdrawn receives no capability that remains unrevoked.
    #[test]
    fn capability_is_not_granted_after_permission_is_withdrawn() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let ino = shown_to_all(&names);
        let root = Caller::root();
        let user = Caller {
            uid: 7,
            gid: 7,
            ..Caller::default()
        };
        let change = |mode| {
            let mode = v1::SetAttr {
                ino,
                mode: Some(mode),
                ..v1::SetAttr::default()
            };
            let changed = answer(&names, &root, Op::SetAttr(mode));
            assert!(matches!(changed, Answer::Attr(_)), "{changed:?}");
        };
        let granted = || {
            let open = v1::Open {
                ino,
                ..v1::Open::default()
            };
            match answer(&names, &user, Op::Open(open)) {
                Answer::Opened(opened) => {
                    let right = names.shared().key().read(&opened.capability);
                    Some(right.unwrap().expires_at_ns)
                }
                _ => None,
            }
        };
        for _ in 0..200 {
            change(0o644);
            let first = granted().unwrap();
            let last = std::thread::scope(|scope| {
                let opener = scope.spawn(|| std::iter::from_fn(granted).last());
                change(0o600);
                opener.join().unwrap().unwrap_or(first)
            });
            let ended = names.shared().granted().ended.lock();
            assert!(ended.values().all(|ended| ended.until_ns >= last));
            assert_eq!(ended.len(), 1);
        }
    }

    #[test]
    fn expired_capabilities_are_neither_revoked_nor_stored() {
        let granted = GrantedCapabilities::default();
        granted.on_granted(7, (0, 70), 1);
        granted.on_rights_changed(7);
        assert!(granted.to_tell(|_| true).is_empty() && granted.ended.lock().is_empty());
        let good = now_ns() + 1_000_000_000_000;
        for version in 0..1000 {
            granted.on_granted(7, (0, version), 1);
            granted.on_granted(version, (1, version), 1);
        }
        granted.on_granted(8, (0, 80), good);
        granted.forget();
        let files = granted.files.lock();
        assert_eq!(files.len(), 1);
        assert_eq!(files[&8], BTreeMap::from([((0, 80), good)]));
    }
}
