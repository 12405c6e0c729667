//! Tests of the burst tier with files that are staged out, staged in, reserved for and lost.

use super::{NodeProperties, files, labels};
use crate::clock;
use crate::replicas::NodesView;
use std::collections::BTreeSet;
use tidemill_meta::placement::burst::{
    TierNode, can_make_space, make_space, reported, staged_out, to_evict,
};
use tidemill_meta::placement::{corruption, nodes, reservations};
use tidemill_meta::quota::used;
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Caller, Fault, Names as _, NamesRequest, SqliteNames, ids};
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::label::Corrupt;
use tidemill_model::replicas::OnlineNode;
use tidemill_sched::burst::TierLimits;
use tidemill_wire::v1::name_op::Op;
use tidemill_wire::v1::{self, name_result::Result as Answer};

/// Largest sum of bytes that `sum_of` returns.
const MOST: u64 = 9_200_000_000_000_000_000;

/// A namespace with a node of the burst tier, number 3.
struct Tier {
    names: SqliteNames,
    ino: u64,
    object: u64,
    _directory: tempfile::TempDir,
}

impl Tier {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.add_node(NodeId(3));
        names.shared().bursts.set([3].into());
        names.shared().nodes.set_moving();
        let all = names
            .database()
            .write_blocking(|db| ids::reserve_for(db, &Caller::root(), 10, 10));
        let (ino, object) = all.unwrap();
        Self {
            names,
            ino,
            object,
            _directory: directory,
        }
    }

    fn ask(&self, op: Op) {
        let request = NamesRequest {
            caller: Caller::root(),
            session: 5,
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        let answer = self.names.apply_blocking(request).unwrap().remove(0).result;
        assert!(!matches!(answer, Some(Answer::Error(_))), "{answer:?}");
    }

    /// Creates and closes a file on the node of the burst tier; returns its object.
    fn closed(&mut self, size: u64) -> u64 {
        let (ino, object) = (self.ino, self.object);
        (self.ino, self.object) = (ino + 1, object + 1);
        self.ask(Op::Create(v1::Create {
            parent: 1,
            name: ino.to_string().into_bytes(),
            kind: v1::Kind::File.into(),
            mode: 0o644,
            ino,
            object,
            ..v1::Create::default()
        }));
        let key = self.names.shared().key();
        let receipt = key.receipt(NodeId(3), ObjectId(object), size);
        self.ask(Op::Seal(v1::Seal {
            ino,
            object,
            size,
            receipts: vec![receipt],
            ..v1::Seal::default()
        }));
        object
    }

    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let shared = self.names.shared().clone();
        self.names.database().write_blocking(move |db| {
            let root = Caller::root();
            work(&Tx::new(db, &shared, &root, 0, clock::now_ns()))
        })
    }

    fn sql(&self, sql: String) {
        let done = self.write(move |tx| Ok(tx.db.raw().execute_batch(&sql)?));
        done.unwrap();
    }

    fn stage_out(&self, until: i64) -> v1::StageReply {
        let request = v1::StageRequest {
            path: b"/".to_vec(),
            until,
            ..v1::StageRequest::default()
        };
        let staged = self.write(move |tx| files::stage_out(tx, &request));
        staged.unwrap().unwrap()
    }

    fn staged_out(&self, object: u64) -> bool {
        self.names
            .database()
            .read(|db| {
                let sql = "SELECT 1 FROM replica WHERE object = ?1 AND tier = 2";
                let mut staged = db.raw().prepare(sql)?;
                Ok(staged.exists([object.cast_signed()])?)
            })
            .unwrap()
    }
}

#[test]
fn stage_out_waits_only_for_files_closed_before_request() {
    let mut tier = Tier::new();
    let first = tier.closed(5);
    let asked = tier.stage_out(0);
    assert_eq!((asked.objects, asked.bytes), (1, 5));
    tier.closed(7);
    let again = tier.stage_out(asked.until);
    assert_eq!((again.objects, again.bytes), (1, 5), "{again:?}");
    assert_eq!((again.files, again.until), (2, asked.until));
    assert_eq!(tier.stage_out(0).bytes, 12);
    // The clock was set back after the seal.
    let late = clock::now_ns() + 3_600_000_000_000;
    tier.sql(format!(
        "UPDATE version SET sealed_at = {late} WHERE object = {first}"
    ));
    assert_eq!(tier.stage_out(0).until, late);
    assert_eq!(tier.stage_out(late).bytes, 12);
}

#[test]
fn stage_out_by_inode_waits_and_refuses_eviction_and_stage_in() {
    let tier = Tier::new();
    let by_number = v1::StageRequest {
        directory: 1,
        ..v1::StageRequest::default()
    };
    let free = v1::StageRequest {
        evict: true,
        ..by_number.clone()
    };
    let staged = tier.write(move |tx| files::stage_out(tx, &free));
    assert!(matches!(staged, Err(Fault::Malformed(_))), "{staged:?}");
    let stage_in = v1::StageIn::default();
    let request = v1::StageRequest {
        stage_in: Some(stage_in.clone()),
        ..by_number.clone()
    };
    let brought = tier.write(move |tx| files::stage_in(tx, (&request, &stage_in), (&[], &[])));
    assert!(matches!(brought, Err(Fault::Malformed(_))), "{brought:?}");
    let waited = tier.write(move |tx| files::stage_out(tx, &by_number));
    assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
}

#[test]
fn stolen_version_is_removed_from_node_where_it_was_written() {
    let mut tier = Tier::new();
    tier.names.add_node(NodeId(4));
    let ino = tier.ino;
    tier.closed(5);
    let version = |object, node, steal| {
        Op::NewVersion(v1::NewVersion {
            ino,
            object,
            node,
            steal,
            ..v1::NewVersion::default()
        })
    };
    let object = tier.object;
    tier.ask(version(object, Some(4), false));
    tier.ask(version(object + 1, None, true));
    let goes = tier.names.database().read(move |db| {
        let sql = "SELECT node FROM replica WHERE object = ?1 AND want = 2";
        let mut goes = db.raw().prepare(sql)?;
        Ok(goes.query_row([object.cast_signed()], |row| row.get::<_, u32>(0))?)
    });
    assert_eq!(goes.unwrap(), 4);
}

#[test]
fn removal_of_node_schedules_versions_that_other_nodes_have() {
    let mut tier = Tier::new();
    let object = tier.closed(5).cast_signed();
    tier.sql(format!(
        "DELETE FROM short; DELETE FROM replica;
         INSERT INTO replica(object, node, state, size, since) VALUES ({object}, 4, 2, 5, 0)"
    ));
    let removed = tier.write(move |tx| {
        nodes::remove(tx.db, tx.shared, 3, tx.now)?;
        let sql = "SELECT has FROM short WHERE object = ?1";
        Ok(tx
            .db
            .raw()
            .query_row(sql, [object], |row| row.get::<_, i64>(0))?)
    });
    assert_eq!(removed.unwrap(), 1);
}

/// Settles a copy that made the second of two wanted replicas, after `change`. Returns whether the version is still to be examined.
fn is_open_after_copy(change: fn(&Tx<'_>) -> Result<(), Fault>) -> bool {
    let mut tier = Tier::new();
    tier.names.shared().bursts.set(BTreeSet::new());
    let object = tier.closed(5);
    tier.sql(format!(
        "UPDATE version SET replicas = 2 WHERE object = {object};
         INSERT INTO replica(object, node, state, size, since) VALUES ({object}, 4, 2, 5, 0);
         INSERT OR REPLACE INTO short VALUES ({object}, 1, 0)"
    ));
    let site = |node: u32| OnlineNode {
        node: NodeId(node),
        host: node.to_string(),
        free_bytes: 1 << 40,
        takes: true,
        memory: false,
        burst: false,
        backend: false,
    };
    let view = NodesView {
        stores: vec![3, 4, 5],
        bursts: BTreeSet::new(),
        sites: [3, 4, 5].map(site).into(),
    };
    let open = tier.write(move |tx| {
        change(tx)?;
        view.settle(tx.db, ObjectId(object), (&tx.shared.nodes, tx.now))?;
        let sql = "SELECT count(*) FROM short";
        Ok(tx.db.raw().query_row(sql, [], |row| row.get::<_, u32>(0))?)
    });
    open.unwrap() == 1
}

#[test]
fn end_of_copy_is_decided_from_nodes_of_its_transaction() {
    assert!(!is_open_after_copy(|_| Ok(())));
    // The view that was made before still shows the node.
    assert!(is_open_after_copy(|tx| {
        nodes::remove(tx.db, tx.shared, 3, tx.now)
    }));
    assert!(is_open_after_copy(|tx| {
        let corrupt = "UPDATE replica SET state = 3 WHERE node = 4";
        Ok(tx.db.raw().execute_batch(corrupt)?)
    }));
}

#[test]
fn full_tier_is_examined_only_if_something_changes() {
    let mut tier = Tier::new();
    let object = tier.closed(1000);
    let free = TierNode {
        node: 3,
        bytes: 0,
        capacity: 1000,
    };
    let limits = TierLimits::default();
    let can = |tier: &Tier| {
        let can = tier.write(move |tx| can_make_space(tx.db, limits, (free, tx.now)));
        can.unwrap()
    };
    let make = |tier: &Tier| {
        let made = tier.write(move |tx| make_space(tx.db, tx.shared, free, tx.now));
        made.unwrap();
    };
    assert!(can(&tier));
    make(&tier);
    assert!(!can(&tier), "the object is due already");
    tier.write(move |tx| staged_out(tx.db, object)).unwrap();
    assert!(can(&tier));
    make(&tier);
    assert!(!can(&tier), "the object is about to be evicted");
    let wanted = tier.write(move |tx| to_evict(tx.db, limits, (free, tx.now)));
    assert_eq!(wanted.unwrap(), 0);
}

#[test]
fn burst_sums_saturate_for_files_of_huge_total_length() {
    let mut tier = Tier::new();
    tier.sql(format!(
        "INSERT INTO space_reservation(reservation, ino, node, bytes, uid, bounded, since, until) VALUES (1, 1, 3, 100, 0, 0, 0, {0});
         INSERT INTO replica(object, node, state, reservation) VALUES ({1}, 3, 0, 1), ({2}, 3, 0, 1), ({3}, 3, 0, 1)",
        i64::MAX,
        tier.object,
        tier.object + 1,
        tier.object + 2,
    ));
    tier.names.shared().bursts.set_reserved();
    let size = i64::MAX.unsigned_abs();
    let objects = [size, size, 7].map(|size| tier.closed(size));
    let free = TierNode {
        node: 3,
        bytes: 0,
        capacity: 1 << 40,
    };
    let counted = tier.write(move |tx| {
        let (db, now) = (tx.db, tx.now);
        let reservations = reservations::all(db, now)?;
        assert_eq!(reservations[0].reservation.used, 1 << 62);
        let space = reservations::space(db, (3, 0), (&reservations, now))?;
        assert_eq!(space.unheard, MOST);
        let staged = reported(db, 3, now)?;
        assert_eq!((staged.objects, staged.bytes_left), (3, MOST));
        assert!(to_evict(db, TierLimits::default(), (free, now))? > 0);
        for object in objects {
            tx.stage_in(object, 4)?;
            staged_out(db, object)?;
        }
        assert_eq!((tx.evictable(3)?, tx.coming_to_burst(4)?), (MOST, MOST));
        assert_eq!(used(db, Inode::ROOT.0)?.0, MOST);
        labels::pending(db)
    });
    let bytes: Vec<u64> = counted.unwrap().iter().map(|one| one.bytes).collect();
    assert_eq!(bytes, [MOST]);
    // Evicted objects no longer count.
    tier.sql(format!(
        "DELETE FROM replica WHERE object IN ({0}, {1})",
        objects[0], objects[1]
    ));
    let left = tier.write(|tx| reservations::all(tx.db, tx.now)).unwrap();
    assert_eq!(left[0].reservation.used, 0);
}

/// Makes the replica of the object on node 0 unavailable, in the way that `way` selects.
fn lose(tier: &Tier, way: u32, object: u64) {
    let shared = tier.names.shared().clone();
    let lost = tier.write(move |tx| {
        let (db, now) = (tx.db, tx.now);
        let what = Corrupt {
            object: ObjectId(object),
            what: "has changed".into(),
        };
        let member = |node, burst| NodeProperties {
            node,
            store: true,
            memory: false,
            burst,
            up: burst,
        };
        match way {
            0 => corruption::found(db, &shared, NodeId(0), &[what], now).map(drop),
            1 => {
                let reviews = shared.nodes.renew(&[0].into(), &[]);
                let mut reviews = reviews.into_iter();
                reviews.try_for_each(|review| nodes::review(db, &shared.nodes, review, now))
            }
            _ => {
                let members = [member(0, false), member(1, false), member(3, true)];
                let gone = super::remove(db, &shared, (0, &members), (true, now))?;
                assert_eq!(gone.unwrap(), 1);
                Ok(())
            }
        }
    });
    lost.unwrap();
}

#[test]
fn version_whose_stored_replica_is_lost_is_staged_out_again() {
    for way in 0..3 {
        // The object was written to the tier or staged in, and has one or two stored replicas.
        for (brought, twice) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut tier = Tier::new();
            let object = tier.closed(5);
            tier.sql(match brought {
                false => {
                    format!("INSERT INTO replica(object, node, state) VALUES ({object}, 0, 2)")
                }
                true => format!(
                    "UPDATE version SET node = 0;
                     UPDATE inode SET node = 0 WHERE object = {object}"
                ),
            });
            if twice {
                tier.sql(format!(
                    "INSERT INTO replica(object, node, state) VALUES ({object}, 1, 2)"
                ));
            }
            let done = tier.write(move |tx| staged_out(tx.db, object));
            done.unwrap();
            tier.sql("DELETE FROM short".into());
            assert!(tier.staged_out(object));
            lose(&tier, way, object);
            let what = format!("way {way}, brought {brought}, twice {twice}");
            assert_eq!(tier.staged_out(object), twice, "{what}");
            assert_eq!(tier.stage_out(0).objects, u64::from(!twice), "{what}");
            let looked = tier.write(|tx| {
                let sql = "SELECT count(*) FROM short WHERE has > 0";
                Ok(tx.db.raw().query_row(sql, [], |row| row.get::<_, i64>(0))?)
            });
            assert_eq!(looked.unwrap(), 1, "{what}");
        }
    }
}
