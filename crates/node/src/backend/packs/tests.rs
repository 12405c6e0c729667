//! Tests of packs in an external store in memory, with all kinds of faults during a write.

use super::super::tests::{BackendBench, make_durable, read};
use super::super::{Backend, Error, Remote, RemoteStore};
use super::recovery::Contents;
use super::*;
use crate::store::{ObjectFile, Store as _, StoreError};
use std::collections::BTreeMap;
use tidemill_model::id::ObjectId;

const PACKED: Packing = Packing::Chunks { compress: true };

/// Returns incompressible bytes that differ for each seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut noise);
    noise
}

fn packs(bench: &BackendBench) -> Vec<String> {
    let mut names = bench.far.names();
    names.retain(|name| name.starts_with(DIRECTORY));
    names
}

fn taken(bench: &BackendBench) -> usize {
    let files = bench.far.files.lock();
    files.all.values().map(|(content, _)| content.len()).sum()
}

/// Makes unused packs old enough to be removed now instead of after an hour.
fn age(bench: &BackendBench) {
    let age = |db: &rusqlite::Connection| db.execute("UPDATE pack SET since = 0", []);
    bench.db.write_blocking(false, age).unwrap();
}

/// Repeats the clean-up until nothing remains to be cleaned up.
pub(in super::super) fn tidy(bench: &BackendBench, store: &Backend) {
    age(bench);
    while store.tidy().unwrap() {}
}

/// Checks that the counts in the database equal the actual content of the packs.
fn sane(bench: &BackendBench) {
    let wrong = |db: &rusqlite::Connection| {
        let sql = "SELECT (SELECT count(*) FROM pack WHERE live !=
                       (SELECT coalesce(sum(size), 0) FROM chunk WHERE pack = pack.id AND count > 0)
                       + (SELECT coalesce(sum(length(part)), 0) FROM manifest WHERE pack = pack.id))
                   + (SELECT count(*) FROM chunk WHERE pack NOT IN (SELECT id FROM pack WHERE state = 1))
                   + (SELECT count(*) FROM manifest WHERE pack NOT IN (SELECT id FROM pack WHERE state = 1))";
        db.query_row(sql, [], |row| row.get::<_, i64>(0))
    };
    assert_eq!(bench.db.read(wrong).unwrap(), 0);
}

fn recovered(bench: &BackendBench) -> BTreeMap<String, Vec<u8>> {
    let far = std::sync::Arc::clone(&bench.far) as Remote;
    bench.runtime.block_on(async {
        let mut contents = Contents::default();
        for pack in packs(bench) {
            let pack = far.stat(&pack).await.unwrap();
            contents.add(far.as_ref(), pack).await.unwrap();
        }
        let mut files = BTreeMap::new();
        for file in contents.files() {
            let Some(mut reading) = contents.read(far.clone(), &file) else {
                continue;
            };
            let mut content = Vec::new();
            while let Some(more) = reading.next().await.unwrap() {
                content.extend_from_slice(&more);
            }
            files.insert(file.name, content);
        }
        files
    })
}

fn is_loss(reported: Option<Result<(), StoreError>>) -> bool {
    matches!(reported, Some(Err(StoreError::Backend { why, .. })) if why.is_loss())
}

#[test]
fn pack_upload_skips_known_chunks_and_reads_equal_file() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let large = noise(1, 40 << 20);
    let one = bench.version(&store, 0x101, "/of/one", &large);
    make_durable(&store, &one).unwrap();
    let (before, count) = (taken(&bench), packs(&bench).len());
    assert!((3..=4).contains(&count), "{count}");
    assert!(
        bench
            .far
            .names()
            .iter()
            .all(|name| name.starts_with(DIRECTORY))
    );
    // The versions are of another user; one has some more bytes in its middle.
    let mut changed = large.clone();
    changed.splice(20 << 20..20 << 20, *b"more");
    for (id, content) in [(0x102, &large), (0x103, &changed), (0x104, &Vec::new())] {
        let more = bench.version(&store, id, &format!("/other/{id}"), content);
        make_durable(&store, &more).unwrap();
        assert!(content.is_empty() || store.cache.stat(more.0).is_err());
        assert!(read(&store, more.0).unwrap() == *content, "{id}");
    }
    let sent = taken(&bench) - before;
    assert!(sent < 3 << 20, "{sent}");
    assert_eq!(store.reported().sent, taken(&bench) as u64);
    assert_eq!(store.reported().bytes, 3 * (40 << 20) + 4);
    // A read of a range fetches only the necessary frames of a pack.
    let reopened = bench.open_as(0, Packing::Files);
    bench.far.files.lock().read = 0;
    let mut bytes = [0; 3];
    let opened = reopened.open(one.0).unwrap();
    opened.bytes.read_at((40 << 20) - 3, &mut bytes).unwrap();
    assert_eq!(bytes, large[(40 << 20) - 3..]);
    assert!(bench.far.files.lock().read < 6 << 20);
    sane(&bench);
}

#[test]
fn upload_packs_and_compresses_small_files() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let text = |id: u64| format!("{id} int main(void) {{ return {id}; }}\n").repeat(40);
    let small: Vec<(ObjectId, ObjectFile)> = (0..500)
        .map(|id| {
            bench.version(
                &store,
                0x1000 + id,
                &format!("/s/{id}"),
                text(id).as_bytes(),
            )
        })
        .collect();
    assert!(store.make_durable(&small).iter().all(Result::is_ok));
    assert_eq!(packs(&bench).len(), 1);
    let plain: usize = (0..500).map(|id| text(id).len()).sum();
    assert!(taken(&bench) * 4 < plain, "{} of {plain}", taken(&bench));
    for (id, (object, _)) in (0..).zip(&small) {
        assert_eq!(read(&store, *object).unwrap(), text(id).into_bytes());
    }
    assert_eq!(recovered(&bench).len(), 500);
    assert_eq!(recovered(&bench)["s/7"], text(7).into_bytes());
}

#[test]
fn files_stay_readable_after_change_of_storage_format() {
    let bench = BackendBench::new();
    let mut all = Vec::new();
    let ways = [
        Packing::Files,
        PACKED,
        Packing::Chunks { compress: false },
        Packing::Files,
    ];
    for (id, way) in (0..).zip(ways) {
        let store = bench.open_as(0, way);
        let content = noise(id, 100_000);
        let one = bench.version(&store, 0x101 + id, &format!("/f{id}"), &content);
        make_durable(&store, &one).unwrap();
        all.push((one.0, content));
        for (object, content) in &all {
            assert!(read(&store, *object).unwrap() == *content);
            assert!(matches!(store.vouch(*object), Some(Ok(()))));
        }
    }
    assert_eq!(bench.far.names().len() - packs(&bench).len(), 2);
}

#[test]
fn interrupted_pack_upload_sends_only_missing_packs_later() {
    for allowed in 0..3 {
        let bench = BackendBench::new();
        let store = bench.open_as(0, PACKED);
        let large = noise(1, 60 << 20);
        let one = bench.version(&store, 0x101, "/large", &large);
        *bench.far.changes_left.lock() = Some(allowed);
        assert!(make_durable(&store, &one).is_err());
        assert!(!store.is_far(one.0) && read(&store, one.0).unwrap() == large);
        // The process is killed, too.
        drop(store);
        let store = bench.open_as(0, PACKED);
        *bench.far.changes_left.lock() = None;
        store.tidy();
        let before = bench.far.files.lock().writes;
        assert_eq!(packs(&bench).len() as u64, allowed);
        make_durable(&store, &one).unwrap();
        let more = bench.far.files.lock().writes - before;
        assert!(more + allowed <= 5, "{more} after {allowed}");
        assert!(read(&store, one.0).unwrap() == large);
        tidy(&bench, &store);
        sane(&bench);
        assert!(recovered(&bench)["large"] == large);
    }
}

#[test]
fn tidy_removes_unrecorded_pack_and_keeps_recorded_pack() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let one = bench.version(&store, 0x101, "/one", b"one");
    make_durable(&store, &one).unwrap();
    drop(store);
    // The process was killed: one pack was being sent, the other was complete in the store.
    let begin = |db: &rusqlite::Connection| {
        rows::begin(db, ".tidemill-packs/00/a", 0)?;
        rows::begin(db, ".tidemill-packs/00/b", 0)
    };
    bench.db.write_blocking(true, begin).unwrap();
    bench.far.put_file(".tidemill-packs/00/b", b"half known");
    let store = bench.open_as(0, PACKED);
    assert_eq!(packs(&bench).len(), 2);
    tidy(&bench, &store);
    assert_eq!(packs(&bench).len(), 1);
    assert_eq!(read(&store, one.0).unwrap(), b"one");
}

/// The upload succeeds, but the database of the node is full.
#[test]
fn upload_is_retried_if_database_cannot_record_it() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let run = |sql: &'static str| {
        let run = move |db: &rusqlite::Connection| db.execute_batch(sql);
        bench.db.write_blocking(true, run).unwrap();
    };
    for (id, table) in (0x101..).zip(["manifest", "chunk", "pack"]) {
        let one = bench.version(&store, id, "/one", b"one");
        run(match table {
            "manifest" => {
                "CREATE TRIGGER full BEFORE INSERT ON manifest BEGIN SELECT RAISE(ABORT, 'full'); END"
            }
            "chunk" => {
                "CREATE TRIGGER full BEFORE INSERT ON chunk BEGIN SELECT RAISE(ABORT, 'full'); END"
            }
            _ => "CREATE TRIGGER full BEFORE INSERT ON pack BEGIN SELECT RAISE(ABORT, 'full'); END",
        });
        assert!(make_durable(&store, &one).is_err(), "{table}");
        assert!(!store.is_far(one.0));
        assert_eq!(read(&store, one.0).unwrap(), b"one");
        run("DROP TRIGGER full");
        tidy(&bench, &store);
        assert!(packs(&bench).is_empty(), "{table}");
        make_durable(&store, &one).unwrap();
        assert_eq!(read(&store, one.0).unwrap(), b"one");
        assert!(store.remove(one.0).unwrap());
        tidy(&bench, &store);
        assert!(packs(&bench).is_empty());
    }
    sane(&bench);
}

#[test]
fn changed_pack_byte_is_corrupt_and_new_upload_repairs_all_files() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let content = noise(3, 500_000);
    let one = bench.version(&store, 0x101, "/one", &content);
    make_durable(&store, &one).unwrap();
    let pack = packs(&bench).remove(0);
    // A byte changes, and the store does not notice.
    let whole = {
        let mut files = bench.far.files.lock();
        let (bytes, _) = files.all.get_mut(&pack).unwrap();
        let whole = bytes.clone();
        bytes[1000] ^= 1;
        whole
    };
    assert!(
        matches!(store.vouch(one.0), Some(Ok(()))),
        "no byte was read"
    );
    assert!(read(&store, one.0).is_err());
    assert!(
        is_loss(store.vouch(one.0)),
        "the corruption that the read found is recorded"
    );
    assert!(store.open(one.0).is_err());
    // Another file has the same content.
    let two = bench.version(&store, 0x102, "/two", &content);
    make_durable(&store, &two).unwrap();
    for object in [one.0, two.0] {
        assert!(matches!(store.vouch(object), Some(Ok(()))));
        assert!(read(&store, object).unwrap() == content);
    }
    // Recovery from the packs alone works, too: one pack is intact, the other is not.
    let found = recovered(&bench);
    assert!(found.len() == 2 && found.values().all(|bytes| *bytes == content));
    // All packs are lost, and one is restored later, unchanged.
    for pack in packs(&bench) {
        bench.far.files.lock().all.remove(&pack);
    }
    let store = bench.open_as(0, PACKED);
    assert!(is_loss(store.vouch(one.0)));
    assert!(read(&store, two.0).is_err());
    bench.far.put_file(&pack, &whole);
    let three = bench.version(&store, 0x103, "/three", &content);
    make_durable(&store, &three).unwrap();
    assert!(read(&store, one.0).unwrap() == content);
    sane(&bench);
}

/// Creates many files and removes most of them. Returns the remaining files.
fn mostly_removed(bench: &BackendBench, store: &Backend) -> Vec<(ObjectId, Vec<u8>)> {
    let all: Vec<_> = (0..60)
        .map(|id| {
            let content = noise(id, 300_000);
            let named = bench.version(store, 0x1000 + id, &format!("/f/{id}"), &content);
            (named, content)
        })
        .collect();
    let named: Vec<_> = all.iter().map(|(named, _)| named.clone()).collect();
    assert!(store.make_durable(&named).iter().all(Result::is_ok));
    let mut left = Vec::new();
    for (index, ((object, _), content)) in all.into_iter().enumerate() {
        match index % 5 {
            0 => left.push((object, content)),
            _ => assert!(store.remove(object).unwrap()),
        }
    }
    left
}

#[test]
fn tidy_rewrites_sparse_packs_after_kill_at_any_step() {
    for allowed in 0..8 {
        let bench = BackendBench::new();
        let store = bench.open_as(0, PACKED);
        let left = mostly_removed(&bench, &store);
        let before = taken(&bench);
        *bench.far.changes_left.lock() = Some(allowed);
        for _ in 0..4 {
            store.tidy();
        }
        drop(store);
        let store = bench.open_as(0, PACKED);
        for (object, content) in &left {
            assert!(read(&store, *object).unwrap() == *content, "{allowed}");
        }
        *bench.far.changes_left.lock() = None;
        tidy(&bench, &store);
        let after = taken(&bench);
        assert!(after * 3 < before, "{after} of {before}");
        for (object, content) in &left {
            assert!(read(&store, *object).unwrap() == *content, "{allowed}");
        }
        let again = recovered(&bench);
        assert_eq!(again.len(), left.len(), "{:?}", again.keys());
        sane(&bench);
        for (object, _) in &left {
            assert!(store.remove(*object).unwrap());
        }
        tidy(&bench, &store);
        assert!(packs(&bench).is_empty());
    }
}

#[test]
fn tidy_merges_many_small_packs() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let mut all = Vec::new();
    for id in 0..40 {
        let content = noise(id, 3000);
        let one = bench.version(&store, 0x1000 + id, &format!("/f/{id}"), &content);
        make_durable(&store, &one).unwrap();
        all.push((one.0, content));
    }
    assert_eq!(packs(&bench).len(), 40);
    tidy(&bench, &store);
    assert_eq!(packs(&bench).len(), 1);
    for (object, content) in &all {
        assert!(read(&store, *object).unwrap() == *content);
    }
}

/// The packs are small because their contents compress well, or because few of their chunks are in use. A pack that cannot grow is not
/// rewritten.
#[test]
fn tidy_does_not_rewrite_packs_that_stay_small() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let upload_one = |id: u64, content: &[u8]| {
        let one = bench.version(&store, 0x1000 + id, &format!("/f/{id}"), content);
        make_durable(&store, &one).unwrap();
        one.0
    };
    let mut all = Vec::new();
    for id in 0..40_u64 {
        // The content has some MiB and is compressed to a few KiB. The content for one full pack is larger than one batch of rewriting.
        let mut content = vec![u8::try_from(id).unwrap(); 3 << 20];
        content[..8].copy_from_slice(&id.to_le_bytes());
        all.push((upload_one(id, &content), content));
    }
    for id in 40..75_u64 {
        let content = noise(id, 3000);
        all.push((upload_one(id, &content), content));
    }
    age(&bench);
    let mut rounds = 0;
    while store.tidy().unwrap() {
        rounds += 1;
        assert!(rounds < 20, "{:?}", packs(&bench).len());
    }
    let writes = bench.far.files.lock().writes;
    for _ in 0..3 {
        assert_eq!(store.tidy(), Some(false));
    }
    drop(store);
    let store = bench.open_as(0, PACKED);
    assert_eq!(store.tidy(), Some(false));
    assert_eq!(bench.far.files.lock().writes, writes);
    for (object, content) in &all {
        assert!(read(&store, *object).unwrap() == *content);
    }
    sane(&bench);
}

#[test]
fn concurrent_remove_and_upload_keep_used_chunks() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let contents: Vec<_> = (0..4).map(|seed| noise(seed, 200_000)).collect();
    std::thread::scope(|scope| {
        let (bench, store, contents) = (&bench, &store, &contents);
        let busy: Vec<_> = (0..3_u64)
            .map(|user| {
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..30_u64 {
                        let content = &contents[usize::try_from((round + user) % 4).unwrap()];
                        let id = 0x1000 + user * 0x100 + round;
                        let one = bench.version(store, id, &format!("/{user}/{round}"), content);
                        make_durable(store, &one).unwrap();
                        match round % 7 {
                            0 => kept.push((one.0, content)),
                            _ => assert!(store.remove(one.0).unwrap()),
                        }
                    }
                    kept
                })
            })
            .collect();
        while busy.iter().any(|busy| !busy.is_finished()) {
            age(bench);
            store.tidy();
        }
        for (object, content) in busy.into_iter().flat_map(|busy| busy.join().unwrap()) {
            assert!(read(store, object).unwrap() == *content);
        }
    });
    tidy(&bench, &store);
    sane(&bench);
}

#[test]
fn pack_recovery_skips_foreign_packs_and_marks_partial_files() {
    let bench = BackendBench::new();
    let store = bench.open_as(0, PACKED);
    let large = noise(1, 40 << 20);
    let one = bench.version(&store, 0x101, "/large", &large);
    make_durable(&store, &one).unwrap();
    let two = bench.version(&store, 0x102, "/small", b"small");
    make_durable(&store, &two).unwrap();
    let all = packs(&bench);
    let lost = all
        .iter()
        .max_by_key(|pack| bench.far.get(pack).unwrap().0.len());
    let lost = lost.unwrap();
    let cut = bench.far.get(lost).unwrap().0[..1 << 20].to_vec();
    bench.far.put_file(lost, &cut);
    bench.far.put_file(".tidemill-packs/00/short", b"short");
    bench.far.put_file(".tidemill-packs/00/long", &[7; 1000]);
    let far: &dyn RemoteStore = bench.far.as_ref();
    let mut contents = Contents::default();
    let mut refused = 0;
    for pack in packs(&bench) {
        let pack = bench.runtime.block_on(far.stat(&pack)).unwrap();
        let added = bench.runtime.block_on(contents.add(far, pack));
        refused += u32::from(added.is_err());
    }
    assert_eq!(refused, 3);
    let files = contents.files();
    let whole: Vec<_> = files
        .iter()
        .map(|file| (file.name.as_str(), file.whole))
        .collect();
    let small = ("small", true);
    assert!(
        whole == [("large", false), small] || whole == [small],
        "{whole:?}"
    );
    assert!(matches!(
        bench.runtime.block_on(far.stat("none")),
        Err(Error::Missing(_))
    ));
}
