//! Tests of the backend with an external store in memory, which other programs use, too.

use super::presence::MARK;
use super::*;
use crate::records::{self, ObjectRecord};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidemill_model::attribute::object;
use tidemill_model::label::Owner;
use tidemill_model::time::Time;
use tidemill_remote::{DirectoryPages, FileReader, Lister, PathType, StoreWriter};
use tidemill_wire::v1;
use tonic::async_trait;

#[derive(Debug, Default)]
pub(super) struct Files {
    /// Content and tag of each file, by path.
    pub(super) all: BTreeMap<String, (Vec<u8>, u64)>,
    /// Number of writes to the external store.
    pub(super) writes: u64,
    /// Number of bytes read from the external store.
    pub(super) read: u64,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) files: Mutex<Files>,
    pub(super) offline: Mutex<bool>,
    /// Number of changes that the external store still accepts; `None`: no limit.
    pub(super) changes_left: Mutex<Option<u64>>,
    /// File that another program writes just before the next write of the node.
    rush: Mutex<Option<(String, Vec<u8>)>>,
    /// Paths in the external store that exist and are no files.
    directories: Mutex<Vec<String>>,
    /// Number of unanswered requests so far; `None`: the external store answers requests.
    silent: Mutex<Option<usize>>,
    /// Lock that stops all writes while a test holds it.
    hold: Mutex<()>,
    /// Pairs of names of one file. The tag of the second name changes when the first name is removed. `None`: tags do not change.
    linked: Mutex<Option<Vec<(String, String)>>>,
}

/// Returns the cause of the condition that the backend reports.
fn reported(store: &Backend) -> String {
    store.condition(0).map(|one| one.cause).unwrap_or_default()
}

fn file(path: &str, content: &[u8], tag: u64) -> StoreFile {
    StoreFile {
        path: path.to_owned(),
        size: content.len() as u64,
        tag: tag.to_string(),
        checked_by_store: true,
    }
}

impl Memory {
    fn may_change(&self) -> Result<(), Error> {
        match &mut *self.changes_left.lock() {
            Some(0) => Err(Error::Other("it refuses".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn put_file(&self, path: &str, content: &[u8]) -> StoreFile {
        let mut files = self.files.lock();
        files.writes += 1;
        let tag = files.writes;
        files.all.insert(path.to_owned(), (content.to_vec(), tag));
        file(path, content, tag)
    }

    /// Handles a name that was removed or now belongs to another file.
    fn unlink(&self, path: &str) {
        let mut linked = self.linked.lock();
        let lost = linked
            .iter_mut()
            .flatten()
            .filter(|(first, _)| first == path);
        let lost: Vec<String> = lost.map(|(_, second)| second.clone()).collect();
        linked
            .iter_mut()
            .for_each(|all| all.retain(|(first, _)| first != path));
        drop(linked);
        for second in lost {
            if let Ok((content, _)) = self.get(&second) {
                self.put_file(&second, &content);
            }
        }
    }

    pub(super) fn get(&self, path: &str) -> Result<(Vec<u8>, StoreFile), Error> {
        if *self.offline.lock() {
            return Err(Error::Other("offline".into()));
        }
        if self
            .directories
            .lock()
            .iter()
            .any(|directory| directory == path)
        {
            return Err(Error::Changed(path.to_owned()));
        }
        let files = self.files.lock();
        let (content, tag) = files
            .all
            .get(path)
            .ok_or_else(|| Error::Missing(path.to_owned()))?;
        Ok((content.clone(), file(path, content, *tag)))
    }

    /// Returns all names except the marker file.
    pub(super) fn names(&self) -> Vec<String> {
        let files = self.files.lock();
        let names = files.all.keys().filter(|name| *name != MARK);
        names.cloned().collect()
    }
}

#[async_trait]
impl RemoteStore for Memory {
    async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        let asked = self.silent.lock().as_mut().map(|asked| *asked += 1);
        if asked.is_some() {
            std::future::pending::<()>().await;
        }
        self.get(path).map(|(_, placed)| placed)
    }

    async fn read_at(&self, of: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        let (content, now) = self.get(&of.path)?;
        let range = usize::try_from(from).unwrap()..usize::try_from(from + count).unwrap();
        self.files.lock().read += count;
        match now == *of {
            true => Ok(Bytes::from(content).slice(range)),
            false => Err(Error::Changed(of.path.clone())),
        }
    }

    async fn put(&self, path: &str, bytes: Bytes, over: Overwrite) -> Result<StoreFile, Error> {
        if path == MARK {
            let mut files = self.files.lock();
            files.all.insert(MARK.to_owned(), (Vec::new(), 0));
            return Ok(file(MARK, &[], 0));
        }
        let _hold = self.hold.lock();
        if let Some((path, content)) = self.rush.lock().take() {
            self.put_file(&path, &content);
        }
        let now = self.get(path).ok().map(|(_, placed)| placed);
        match (over, now) {
            (Overwrite::Nothing, Some(_)) => return Err(Error::Changed(path.to_owned())),
            (Overwrite::This(wanted), now) if now.as_ref() != Some(&wanted) => {
                return Err(Error::Changed(path.to_owned()));
            }
            _ => {}
        }
        self.may_change()?;
        let offline = *self.offline.lock();
        match offline {
            true => Err(Error::Other("offline".into())),
            false => {
                self.unlink(path);
                Ok(self.put_file(path, &bytes))
            }
        }
    }

    async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        let (content, _) = self.get(path)?;
        if let Some(linked) = &mut *self.linked.lock() {
            linked.push((path.to_owned(), other.to_owned()));
        }
        Ok(self.put_file(other, &content))
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        self.may_change()?;
        self.unlink(path);
        self.files.lock().all.remove(path);
        Ok(())
    }

    async fn look(&self, path: &str) -> Result<PathType, Error> {
        Err(Error::Missing(path.to_owned()))
    }

    async fn entries(&self, _: &str) -> Result<Box<dyn DirectoryPages>, Error> {
        Err(Error::Unable("list files"))
    }

    fn list(&self, _: &str) -> Lister {
        unreachable!("a backend lists no files")
    }

    async fn read(&self, _: &StoreFile) -> Result<FileReader, Error> {
        Err(Error::Unable("be read in order"))
    }

    async fn write_over(&self, _: &str, _: Overwrite) -> Result<Box<dyn StoreWriter>, Error> {
        Err(Error::Unable("store large files"))
    }

    async fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

pub(super) struct BackendBench {
    directory: tempfile::TempDir,
    pub(super) far: Arc<Memory>,
    pub(super) db: Db,
    pub(super) runtime: tokio::runtime::Runtime,
}

impl BackendBench {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(&directory.path().join("node.db")).unwrap();
        Self {
            directory,
            far: Arc::default(),
            db,
            runtime: tokio::runtime::Runtime::new().unwrap(),
        }
    }

    /// Opens the backend as a starting process does.
    fn open(&self, cache_bytes_max: u64) -> Backend {
        self.open_as(cache_bytes_max, Packing::Files)
    }

    pub(super) fn open_as(&self, cache_bytes_max: u64, packing: Packing) -> Backend {
        let at = BackendSettings {
            far: Arc::clone(&self.far) as Remote,
            scans: Arc::clone(&self.far) as Remote,
            address: RemoteAddress::parse("file:///memory").unwrap(),
            packing,
            cache_bytes_max,
        };
        let cache = DirectoryStore::open(self.directory.path(), None).unwrap();
        let with = (self.db.clone(), self.runtime.handle().clone());
        Backend::open(cache, &at, None, with).unwrap()
    }

    /// Creates a version of a file that is closed and recorded.
    pub(super) fn version(
        &self,
        store: &Backend,
        id: u64,
        path: &str,
        content: &[u8],
    ) -> (ObjectId, ObjectFile) {
        let object = ObjectId(id);
        store.put(object, content).unwrap();
        let record = ObjectRecord {
            id: object,
            size: content.len() as u64,
            owner: Owner { uid: 0, gid: 0 },
            inode: id,
            path: path.as_bytes().to_vec(),
            mode: None,
            task: None,
            sealed_at: Time(1),
            part: None,
            hash: Some(blake3::hash(content).into()),
            memory: false,
        };
        let named = ObjectFile {
            path: path.to_owned(),
            part: false,
            hash: record.hash,
        };
        let put = move |db: &rusqlite::Connection| records::put_object(db, &record);
        self.db.write_blocking(true, put).unwrap();
        (object, named)
    }
}

/// Returns the server's answer about the file of an object.
fn file_of(object: ObjectId, path: &str) -> v1::FileOfObject {
    v1::FileOfObject {
        object: object.0,
        path: path.into(),
        part: false,
    }
}

pub(super) fn read(store: &Backend, object: ObjectId) -> Result<Vec<u8>, String> {
    let opened = store.open(object).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; usize::try_from(opened.stat.size).unwrap()];
    let count = opened.bytes.read_at(0, &mut bytes);
    let count = count.map_err(|error| error.to_string())?;
    bytes.truncate(count);
    Ok(bytes)
}

pub(super) fn make_durable(
    store: &Backend,
    one: &(ObjectId, ObjectFile),
) -> Result<(), StoreError> {
    store.make_durable(std::slice::from_ref(one)).pop().unwrap()
}

#[test]
fn files_of_attached_directory_keep_names_if_node_packs_files() {
    let bench = BackendBench::new();
    let store = Arc::new(bench.open_as(0, Packing::Chunks { compress: true }));
    let attached = vec![AttachedDirectory {
        directory: "/cloud".into(),
        prefix: "p".into(),
    }];
    let follower = Follower::new(Arc::clone(&store));
    bench.runtime.block_on(follower.attach(attached)).unwrap();
    let files = [
        (0x201, "/x/a", &b"packed"[..]),
        (0x202, "/cloud/a", b"by its name"),
        (0x203, "/x/b", b"packed, too"),
    ];
    let objects = files.map(|(id, path, bytes)| bench.version(&store, id, path, bytes));
    for ended in store.make_durable(&objects) {
        ended.unwrap();
    }
    assert_eq!(bench.far.get("p/a").unwrap().0, b"by its name");
    assert!(!bench.far.names().iter().any(|name| name.starts_with("x/")));
    for (id, _, bytes) in files {
        assert_eq!(read(&store, ObjectId(id)).unwrap(), bytes);
    }
}

/// The object is written to the path that the server names instead of the path that was stored with the object.
#[test]
fn object_is_uploaded_when_server_has_named_its_file() {
    let bench = BackendBench::new();
    let store = Arc::new(bench.open(0));
    let follower = Follower::new(Arc::clone(&store));
    let (object, _) = bench.version(&store, 0x101, "/theirs", b"one");
    store.sealed(object, Ok(3)).unwrap();
    assert_eq!(store.unnamed(), [0x101]);
    assert_eq!(store.unnamed(), [0; 0], "it was asked for just now");
    // The server does not know the file yet, or names one of another object.
    store.on_files(vec![file_of(ObjectId(0x999), "/x")]);
    assert!(store.upload_some());
    assert!(follower.is_waiting(object));
    assert_eq!(bench.far.names(), Vec::<String>::new());
    store.on_files(vec![file_of(object, "/a/b")]);
    assert!(store.upload_some());
    assert!(!follower.is_waiting(object));
    assert_eq!(bench.far.names(), ["a/b"]);
    // The node ends before this object is in the store.
    let (late, _) = bench.version(&store, 0x102, "/theirs", b"late");
    store.sealed(late, Ok(4)).unwrap();
    store.on_files(vec![file_of(late, "/a/c")]);
    drop((store, follower));
    let store = bench.open(0);
    assert_eq!(store.unnamed(), [0x102]);
    store.on_files(vec![file_of(late, "/a/d")]);
    assert!(store.upload_some());
    assert_eq!(bench.far.names(), ["a/b", "a/d"]);
    // An object that was removed waits no longer, and neither does one whose file has a later version.
    let (gone, _) = bench.version(&store, 0x103, "/gone", b"gone");
    let (old, _) = bench.version(&store, 0x104, "/old", b"old");
    for object in [gone, old] {
        store.sealed(object, Ok(3)).unwrap();
    }
    store.remove(gone).unwrap();
    assert_eq!(store.unnamed(), [0x104]);
    store.on_files(vec![file_of(gone, "/gone"), file_of(old, "")]);
    assert!(store.upload_some());
    let names = bench.far.names();
    assert_eq!(names, [".tidemill-objects/0000000000000104", "a/b", "a/d"]);
    assert_eq!(store.unnamed(), [0; 0]);
}

/// The directory `/p` of the cluster has the same names in the store as `/cloud`, which is attached to `p`.
#[test]
fn upload_from_other_directory_never_replaces_attached_files() {
    let bench = BackendBench::new();
    let store = Arc::new(bench.open(0));
    let attached = vec![AttachedDirectory {
        directory: "/cloud".into(),
        prefix: "p".into(),
    }];
    let follower = Follower::new(Arc::clone(&store));
    bench.runtime.block_on(follower.attach(attached)).unwrap();
    let genuine = bench.version(&store, 0x101, "/cloud/a", b"genuine");
    make_durable(&store, &genuine).unwrap();
    let other = bench.version(&store, 0x102, "/p/a", b"other");
    make_durable(&store, &other).unwrap();
    assert_eq!(bench.far.get("p/a").unwrap().0, b"genuine");
    assert_eq!(bench.far.names(), ["p/a", "p/a.0000000000000102"]);
    // The same holds if the object with the name has just been removed.
    assert!(store.remove(genuine.0).unwrap());
    let third = bench.version(&store, 0x103, "/p/a", b"third");
    make_durable(&store, &third).unwrap();
    assert_eq!(bench.far.get("p/a").unwrap().0, b"genuine");
    // A version of the same file gets its name.
    let one = bench.version(&store, 0x104, "/p/b", b"one");
    make_durable(&store, &one).unwrap();
    let two = bench.version(&store, 0x105, "/p/b", b"two");
    let same = |db: &rusqlite::Connection| {
        let inode = 0x104_u64.to_le_bytes();
        records::set_attribute(db, ObjectId(0x105), object::PAGE, object::INODE, &inode)
    };
    bench.db.write_blocking(true, same).unwrap();
    make_durable(&store, &two).unwrap();
    assert_eq!(bench.far.get("p/b").unwrap().0, b"two");
    // A file of the attached directory replaces its own former version.
    let next = bench.version(&store, 0x106, "/cloud/b", b"next");
    make_durable(&store, &next).unwrap();
    assert_eq!(bench.far.get("p/b").unwrap().0, b"next");
}

#[test]
fn upload_uses_name_of_file_unless_foreign_file_has_it() {
    let bench = BackendBench::new();
    bench.far.put_file("theirs", b"theirs");
    let store = bench.open(0);
    let one = bench.version(&store, 0x101, "/a/b", b"one");
    let two = bench.version(&store, 0x102, "/a/b", b"two");
    let ours = bench.version(&store, 0x103, "/theirs", b"ours");
    for version in [&one, &two, &ours] {
        make_durable(&store, version).unwrap();
    }
    let all = [
        "a/b",
        "a/b.0000000000000101",
        "theirs",
        "theirs.0000000000000103",
    ];
    assert_eq!(bench.far.names(), all);
    assert_eq!(bench.far.get("a/b").unwrap().0, b"two");
    for (version, content) in [(&one, "one"), (&two, "two"), (&ours, "ours")] {
        assert!(store.cache.stat(version.0).is_err(), "no space for it");
        assert_eq!(read(&store, version.0).unwrap(), content.as_bytes());
    }
    // Another program changes a file that is about to be removed: the file stays.
    bench.far.put_file("a/b", b"changed");
    for version in [&one, &two, &ours] {
        assert!(store.remove(version.0).unwrap());
        assert!(read(&store, version.0).is_err());
    }
    store.remove_some();
    assert_eq!(bench.far.names(), ["a/b", "theirs"]);
    assert_eq!(bench.far.get("theirs").unwrap().0, b"theirs");
}

#[test]
fn upload_resumes_after_node_was_killed() {
    let bench = BackendBench::new();
    let store = bench.open(1 << 20);
    let one = bench.version(&store, 0x101, "/a", b"one");
    // The file was written, and only the attempt was recorded.
    store.attempt(vec![("a".into(), one.0)]).unwrap();
    bench.far.put_file("a", b"one");
    drop(store);
    let store = bench.open(1 << 20);
    assert_eq!(store.reported().waiting, 1);
    store.on_files(vec![file_of(one.0, "/a")]);
    assert!(store.upload_some());
    assert_eq!(
        (bench.far.names(), store.reported().waiting),
        (vec!["a".to_owned()], 0)
    );
    assert!(store.cache.stat(one.0).is_ok());
    drop(store);
    // The host crashed: cached files may have any content.
    let forget = |db: &rusqlite::Connection| records::set_identity(db, BOOT, b"before");
    bench.db.write_blocking(true, forget).unwrap();
    let store = bench.open(1 << 20);
    assert!(store.cache.stat(one.0).is_err());
    assert_eq!(read(&store, one.0).unwrap(), b"one");
    assert!(store.remove(one.0).unwrap());
    drop(store);
    bench.open(0).remove_some();
    assert!(bench.far.names().is_empty());
}

#[test]
fn changed_or_unreachable_backend_file_is_never_read_as_version() {
    let bench = BackendBench::new();
    let store = bench.open(0);
    let one = bench.version(&store, 0x101, "/a", b"one");
    *bench.far.offline.lock() = true;
    assert!(make_durable(&store, &one).is_err());
    assert_eq!(read(&store, one.0).unwrap(), b"one");
    *bench.far.offline.lock() = false;
    make_durable(&store, &one).unwrap();
    let stub = bench.far.put_file("stub", b"stub");
    let link = ObjectId(0x102);
    assert_eq!(store.make_stub(link, "stub").unwrap(), stub.size);
    assert_eq!(store.seal(link, true).unwrap(), stub.size);
    assert!(store.write_at(link, 0, b"x").is_err() && store.create(link).is_err());
    assert_eq!(read(&store, link).unwrap(), b"stub");
    for (object, path) in [(one.0, "a"), (link, "stub")] {
        assert!(matches!(store.vouch(object), Some(Ok(()))));
        bench.far.put_file(path, b"other!");
        let lost = Some(Err(Error::Changed(path.to_owned())));
        let reported = store.vouch(object).map(|reported| {
            reported.map_err(|error| match error {
                StoreError::Backend { why, .. } => why,
                error => panic!("{error}"),
            })
        });
        assert_eq!(reported, lost, "{path}");
    }
    // Bytes that were fetched before belong to the version.
    assert_eq!(read(&store, link).unwrap(), b"stub");
    assert!(read(&store, one.0).is_err());
    // A file of a stub object is never removed.
    assert!(store.remove(link).unwrap() && store.remove(one.0).unwrap());
    store.remove_some();
    assert_eq!(bench.far.names(), ["a", "stub"]);
}

/// A write replaces the file of the stub object in the attached directory. The write never replaces a file that another program has written
/// since.
#[test]
fn upload_to_attached_directory_replaces_only_own_version() {
    let bench = BackendBench::new();
    let theirs = bench.far.put_file("p/a", b"theirs");
    let store = Arc::new(bench.open(0));
    let follower = Follower::new(Arc::clone(&store));
    let attached = vec![AttachedDirectory {
        directory: "/cloud".into(),
        prefix: "p".into(),
    }];
    bench.runtime.block_on(follower.attach(attached)).unwrap();
    let stub = ObjectId(0x101);
    follower.follow(stub, theirs.clone()).unwrap();
    assert_eq!(read(&store, stub).unwrap(), b"theirs");
    assert_eq!(follower.known(&theirs).unwrap().versions, [stub]);
    // The earlier version is removed, and the process ends.
    assert!(store.remove(stub).unwrap());
    drop((store, follower));
    let store = Arc::new(bench.open(0));
    let follower = Follower::new(Arc::clone(&store));
    let ours = bench.version(&store, 0x102, "/cloud/a", b"ours");
    make_durable(&store, &ours).unwrap();
    assert_eq!(bench.far.names(), ["p/a"]);
    let (content, now) = bench.far.get("p/a").unwrap();
    assert_eq!(content, b"ours");
    assert_eq!(follower.known(&now).unwrap().ours, Some(ours.0));
    // Another program is faster: both files exist.
    for (id, name) in [(0x103, "a"), (0x104, "b")] {
        *bench.far.rush.lock() = Some((format!("p/{name}"), b"quick".to_vec()));
        let next = bench.version(&store, id, &format!("/cloud/{name}"), b"next");
        assert!(make_durable(&store, &next).is_err());
        assert!(follower.is_waiting(next.0));
        make_durable(&store, &next).unwrap();
        assert_eq!(bench.far.get(&format!("p/{name}")).unwrap().0, b"quick");
        assert_eq!(read(&store, next.0).unwrap(), b"next");
        assert!(!follower.is_waiting(next.0));
    }
    // A change by others is no corruption here, and is reported to the follower.
    let changed = store.vouch(ours.0);
    let other = |reported: &Result<(), StoreError>| {
        matches!(
            reported,
            Err(StoreError::Backend {
                why: Error::Other(_),
                ..
            })
        )
    };
    let aside = store.remove(ours.0).unwrap();
    assert!(aside && changed.is_some_and(|reported| reported.is_ok() || other(&reported)));
    // A remembered row is deleted when the store no longer has its file.
    let two = bench.far.put_file("p/two", b"two");
    follower.follow(ObjectId(0x201), two).unwrap();
    store.remove(ObjectId(0x201)).unwrap();
    let remembered = || {
        bench
            .db
            .read(|db| rows::remembered(db, ObjectId(0), 9))
            .unwrap()
            .len()
    };
    follower.forget_some(ObjectId(0)).unwrap();
    assert_eq!(remembered(), 1);
    bench.far.put_file("p/two", b"three");
    follower.forget_some(ObjectId(0)).unwrap();
    assert_eq!(remembered(), 0);
    assert!(bench.far.names().contains(&"p/two".to_owned()));
}

/// The external store is empty, as if its file system were not mounted. No file is declared lost, and none is written.
#[test]
fn backend_without_known_files_is_offline() {
    for packing in [Packing::Files, Packing::Chunks { compress: false }] {
        let bench = BackendBench::new();
        let store = bench.open_as(0, packing);
        let (one, two) = (
            bench.version(&store, 0x101, "/a", b"one"),
            bench.version(&store, 0x102, "/b", b"two"),
        );
        make_durable(&store, &one).unwrap();
        assert_eq!(store.condition(0), None);
        let all = std::mem::take(&mut bench.far.files.lock().all);
        assert!(all.contains_key(MARK));
        drop(store);
        let store = bench.open_as(0, packing);
        let offline = |result: Result<(), StoreError>| {
            let why = result.unwrap_err();
            assert!(
                matches!(
                    &why,
                    StoreError::Backend {
                        why: Error::Other(_),
                        ..
                    }
                ),
                "{why}"
            );
        };
        offline(store.vouch(one.0).unwrap());
        offline(make_durable(&store, &two));
        assert!(read(&store, one.0).is_err());
        assert!(reported(&store).contains("none of the known files exists"));
        assert!(bench.far.names().is_empty());
        assert!(store.remove(one.0).unwrap());
        store.remove_some();
        store.tidy();
        // A removal also waits for the store.
        bench.far.files.lock().all = all;
        make_durable(&store, &two).unwrap();
        assert_eq!(store.condition(0), None);
        store.remove_some();
        packs::tests::tidy(&bench, &store);
        assert_eq!(read(&store, two.0).unwrap(), b"two");
        assert_eq!(bench.far.names().len(), 1);
    }
}

/// The marker file alone, or one of the known files alone, proves that the external store is mounted.
#[test]
fn backend_with_some_known_files_reports_others_lost() {
    let bench = BackendBench::new();
    let store = bench.open(0);
    let lost = |store: &Backend, object| {
        let why = store.vouch(object).unwrap().unwrap_err();
        assert!(
            matches!(
                why,
                StoreError::Backend {
                    why: Error::Missing(_),
                    ..
                }
            ),
            "{why}"
        );
    };
    let all: Vec<_> = (0..20_u64)
        .map(|id| bench.version(&store, 0x100 + id, &format!("/{id}"), b"one"))
        .collect();
    for one in &all {
        make_durable(&store, one).unwrap();
    }
    bench.far.files.lock().all.remove("7");
    lost(&store, ObjectId(0x107));
    let first = bench.far.files.lock().all.remove("0").unwrap();
    bench.far.files.lock().all.retain(|name, _| name == MARK);
    lost(&store, ObjectId(0x103));
    bench.far.files.lock().all.clear();
    assert!(!matches!(
        store.vouch(ObjectId(0x103)),
        Some(Err(StoreError::Backend {
            why: Error::Missing(_),
            ..
        }))
    ));
    bench.far.files.lock().all.insert("0".into(), first);
    lost(&store, ObjectId(0x103));
    assert_eq!(store.condition(0), None);
    // The next write creates the mark again.
    let store = bench.open(0);
    let more = bench.version(&store, 0x201, "/more", b"more");
    make_durable(&store, &more).unwrap();
    assert!(bench.far.files.lock().all.contains_key(MARK));
}

/// A store that contains only stub files gets no marker file.
#[test]
fn backend_with_stub_files_only_gets_no_marker() {
    let bench = BackendBench::new();
    bench.far.put_file("theirs", b"theirs");
    let store = bench.open(0);
    store.make_stub(ObjectId(0x101), "theirs").unwrap();
    store.vouch(ObjectId(0x101)).unwrap().unwrap();
    assert!(store.remove(ObjectId(0x101)).unwrap());
    while store.remove_some() {}
    let files = bench.far.files.lock();
    assert_eq!(files.all.keys().collect::<Vec<_>>(), ["theirs"]);
}

/// A foreign file is kept even with equal bytes, or if the node's own file can get no other name.
#[test]
fn upload_never_takes_foreign_file_as_own() {
    let bench = BackendBench::new();
    for (path, content) in [("same", ""), ("two", "x"), ("two.0000000000000102", "y")] {
        bench.far.put_file(path, content.as_bytes());
    }
    bench.far.directories.lock().push("directory".into());
    let store = bench.open(0);
    let ours = [
        bench.version(&store, 0x101, "/same", b""),
        bench.version(&store, 0x102, "/two", b"ours"),
        bench.version(&store, 0x103, "/directory", b"ours"),
    ];
    for one in &ours {
        make_durable(&store, one).unwrap();
    }
    let theirs = ["same", "two", "two.0000000000000102"];
    let mut names = bench.far.names();
    names.retain(|name| !theirs.contains(&name.as_str()));
    assert_eq!(
        names,
        [
            ".tidemill-objects/0000000000000102",
            "directory.0000000000000103",
            "same.0000000000000101"
        ]
    );
    assert!(store.tidy_attempts());
    for (object, _) in &ours {
        store.remove(*object).unwrap();
    }
    store.remove_some();
    assert_eq!(bench.far.names(), theirs);
    assert_eq!(bench.far.get("two.0000000000000102").unwrap().0, b"y");
    let left = bench.db.read(|db| rows::attempts(db, i64::MAX)).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// The external store refuses the new version after the earlier version was moved aside.
#[test]
fn version_gets_its_name_when_backend_accepts_it_after_refusal() {
    let bench = BackendBench::new();
    *bench.far.linked.lock() = Some(Vec::new());
    let store = bench.open(0);
    let one = bench.version(&store, 0x101, "/a", b"one");
    make_durable(&store, &one).unwrap();
    let two = bench.version(&store, 0x102, "/a", b"two");
    *bench.far.changes_left.lock() = Some(0);
    assert!(make_durable(&store, &two).is_err());
    *bench.far.changes_left.lock() = None;
    drop(store);
    let store = bench.open(0);
    make_durable(&store, &two).unwrap();
    assert_eq!(bench.far.names(), ["a", "a.0000000000000101"]);
    assert_eq!(bench.far.get("a").unwrap().0, b"two");
    assert_eq!(read(&store, one.0).unwrap(), b"one");
    assert!(matches!(store.vouch(one.0), Some(Ok(()))));
    // A version that is never written leaves nothing of the file that it should have replaced.
    let three = bench.version(&store, 0x103, "/a", b"three");
    *bench.far.changes_left.lock() = Some(0);
    assert!(make_durable(&store, &three).is_err());
    *bench.far.changes_left.lock() = None;
    store.remove(three.0).unwrap();
    let deleted = |db: &rusqlite::Connection| {
        db.execute("DELETE FROM object", [])?;
        db.execute("UPDATE backend_attempt SET since = 0", [])
            .map(drop)
    };
    bench.db.write_blocking(true, deleted).unwrap();
    assert!(store.tidy_attempts());
    assert!(!bench.far.names().contains(&"a".to_owned()));
    for (object, content) in [(one.0, "one"), (two.0, "two")] {
        assert!(matches!(store.vouch(object), Some(Ok(()))));
        assert_eq!(read(&store, object).unwrap(), content.as_bytes());
        store.remove(object).unwrap();
    }
    while store.remove_some() {}
    assert!(bench.far.names().is_empty(), "{:?}", bench.far.names());
}

#[test]
fn version_removed_during_upload_is_removed_from_backend() {
    for packing in [Packing::Files, Packing::Chunks { compress: false }] {
        let bench = BackendBench::new();
        let store = bench.open_as(1 << 20, packing);
        let other = bench.version(&store, 0x100, "/other", b"other");
        make_durable(&store, &other).unwrap();
        let one = bench.version(&store, 0x101, "/a", b"one");
        std::thread::scope(|scope| {
            let held = bench.far.hold.lock();
            let uploading = scope.spawn(|| make_durable(&store, &one));
            while !store.known.lock().going.contains_key(&one.0) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(store.remove(one.0).unwrap());
            drop(held);
            // The caller may get either result.
            let _ = uploading.join().unwrap();
        });
        while store.remove_some() {}
        assert!(read(&store, one.0).is_err());
        assert_eq!(store.reported().files, 1);
        assert!(packing != Packing::Files || bench.far.names() == ["other"]);
        assert!(store.known.lock().going.is_empty());
    }
}

/// The node reports the condition after a minute, for any number of waiting files, because it sends few files at once. All files are sent
/// when the store answers again.
#[test]
fn silent_backend_is_reported_without_blocking_each_file() {
    let bench = BackendBench::new();
    let store = bench.open(1 << 20);
    let files: Vec<_> = (0..40_u64)
        .map(|id| bench.version(&store, 0x100 + id, &format!("/{id}"), b"one"))
        .collect();
    *bench.far.silent.lock() = Some(0);
    let silent = |uploaded: &Result<(), StoreError>| {
        let silent = Error::Silent;
        matches!(uploaded, Err(StoreError::Backend { why, .. }) if *why == silent)
    };
    assert!(store.make_durable(&files).iter().all(silent));
    let asked = bench.far.silent.lock().take();
    assert!(
        asked.is_some_and(|asked| asked <= uploading::AT_ONCE),
        "{asked:?}"
    );
    assert!(
        reported(&store).contains("did not answer within one minute"),
        "{}",
        reported(&store)
    );
    assert!(store.make_durable(&files).iter().all(Result::is_ok));
    assert_eq!(bench.far.names().len(), 40);
}
