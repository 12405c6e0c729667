//! Cases of POSIX semantics that the random test does not cover: permissions, times, limits, versions, attributes.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

use rustix::io::Errno;
use tidemill_meta::{Caller, Names, NamesRequest, SqliteNames};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

struct Tree {
    _dir: tempfile::TempDir,
    names: SqliteNames,
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn user(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        ..Caller::default()
    }
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&dir.path().join("server.db"), (0, 0)).unwrap();
        Self { _dir: dir, names }
    }

    async fn by(&self, caller: &Caller, session: u64, ops: Vec<Op>) -> Vec<Answer> {
        let ops = ops
            .into_iter()
            .map(|op| v1::NameOp { op: Some(op) })
            .collect();
        let request = NamesRequest {
            caller: caller.clone(),
            session,
            durable: false,
            ops,
        };
        let results = self.names.apply(request).await.unwrap();
        results
            .into_iter()
            .map(|result| result.result.unwrap())
            .collect()
    }

    async fn root(&self, op: Op) -> Answer {
        self.by(&Caller::root(), 0, vec![op]).await.remove(0)
    }

    async fn errno(&self, caller: &Caller, op: Op) -> Option<Errno> {
        match self.by(caller, 0, vec![op]).await.remove(0) {
            Answer::Error(error) => Some(Errno::from_raw_os_error(error.errno)),
            _ => None,
        }
    }

    async fn make(&self, parent: u64, name: &str, kind: Kind, mode: u32, uid: u32) -> u64 {
        let create = v1::Create {
            uid,
            gid: uid,
            ..create(parent, name, kind, mode)
        };
        attr(&self.root(Op::Create(create)).await).ino
    }

    async fn stat(&self, ino: u64) -> v1::Attr {
        attr(
            &self
                .root(Op::GetAttr(v1::GetAttr {
                    ino,
                    content: false,
                }))
                .await,
        )
    }
}

fn attr(answer: &Answer) -> v1::Attr {
    match answer {
        Answer::Attr(attr) => *attr,
        Answer::Entry(entry) => entry.attr.unwrap(),
        other => panic!("no attributes: {other:?}"),
    }
}

fn create(parent: u64, name: &str, kind: Kind, mode: u32) -> v1::Create {
    v1::Create {
        parent,
        name: bytes(name),
        kind: kind.into(),
        mode,
        ..v1::Create::default()
    }
}

fn unlink(parent: u64, name: &str) -> Op {
    Op::Unlink(v1::Unlink {
        parent,
        name: bytes(name),
        directory: false,
        time: 0,
    })
}

fn rename(parent: u64, name: &str, new_parent: u64, new_name: &str) -> Op {
    let (name, new_name) = (bytes(name), bytes(new_name));
    Op::Rename(v1::Rename {
        parent,
        name,
        new_parent,
        new_name,
        ..v1::Rename::default()
    })
}

fn resolve(path: &str) -> Op {
    Op::Resolve(v1::Resolve {
        path: bytes(path),
        follow: true,
        advise: false,
    })
}

#[tokio::test]
async fn files_in_private_directory_are_unreachable_by_name_or_inode() {
    let tree = Tree::new();
    let home = tree.make(1, "home", Kind::Directory, 0o700, 1000).await;
    let secret = tree.make(home, "secret", Kind::File, 0o666, 1000).await;
    let other = user(2000);
    let denied = Some(Errno::ACCESS);
    let ops = [
        resolve("/home/secret"),
        Op::Lookup(v1::Lookup {
            parent: home,
            name: bytes("secret"),
        }),
        Op::GetAttr(v1::GetAttr {
            ino: secret,
            content: false,
        }),
        Op::Open(v1::Open {
            ino: secret,
            ..v1::Open::default()
        }),
        Op::NewVersion(v1::NewVersion {
            ino: secret,
            object: 1,
            ..v1::NewVersion::default()
        }),
        Op::ReadDir(v1::ReadDir {
            ino: home,
            ..v1::ReadDir::default()
        }),
        Op::Link(v1::Link {
            ino: secret,
            parent: 1,
            name: bytes("mine"),
            time: 0,
        }),
        Op::GetXattr(v1::GetXattr {
            ino: secret,
            name: bytes("user.tidemill.version"),
        }),
        Op::ListXattr(v1::ListXattr { ino: secret }),
        Op::SetAttr(v1::SetAttr {
            ino: secret,
            mode: Some(0o777),
            ..v1::SetAttr::default()
        }),
        unlink(home, "secret"),
        rename(home, "secret", home, "other"),
        Op::Create(create(home, "new", Kind::File, 0o600)),
        Op::Create(create(1, "in-root", Kind::File, 0o600)),
    ];
    for op in ops {
        assert_eq!(tree.errno(&other, op.clone()).await, denied, "{op:?}");
    }
    assert_eq!(tree.errno(&user(1000), resolve("/home/secret")).await, None);
}

#[tokio::test]
async fn chmod_requires_owner_and_chown_requires_root() {
    let tree = Tree::new();
    let file = tree.make(1, "f", Kind::File, 0o6777, 1000).await;
    let set = |set: v1::SetAttr| Op::SetAttr(v1::SetAttr { ino: file, ..set });
    let mode = set(v1::SetAttr {
        mode: Some(0o700),
        ..v1::SetAttr::default()
    });
    assert_eq!(tree.errno(&user(2000), mode).await, Some(Errno::PERM));
    let give = set(v1::SetAttr {
        uid: Some(2000),
        ..v1::SetAttr::default()
    });
    assert_eq!(
        tree.errno(&user(1000), give.clone()).await,
        Some(Errno::PERM)
    );
    let group = set(v1::SetAttr {
        gid: Some(50),
        ..v1::SetAttr::default()
    });
    assert_eq!(
        tree.errno(&user(1000), group.clone()).await,
        Some(Errno::PERM)
    );
    let member = Caller {
        groups: vec![50],
        ..user(1000)
    };
    assert_eq!(tree.errno(&member, group).await, None);
    assert_eq!(
        tree.stat(file).await.mode,
        0o777,
        "a new owner or group ends set-id rights"
    );
    assert_eq!(attr(&tree.root(give).await).uid, 2000);
}

#[tokio::test]
async fn sticky_directory_protects_entries_of_others() {
    let tree = Tree::new();
    let tmp = tree.make(1, "tmp", Kind::Directory, 0o1777, 0).await;
    tree.make(tmp, "f", Kind::File, 0o666, 1000).await;
    tree.make(tmp, "g", Kind::File, 0o666, 2000).await;
    let refused = Some(Errno::PERM);
    assert_eq!(tree.errno(&user(2000), unlink(tmp, "f")).await, refused);
    assert_eq!(
        tree.errno(&user(2000), rename(tmp, "f", tmp, "h")).await,
        refused
    );
    assert_eq!(
        tree.errno(&user(2000), rename(tmp, "g", tmp, "f")).await,
        refused
    );
    assert_eq!(tree.errno(&user(1000), unlink(tmp, "f")).await, None);
}

#[tokio::test]
async fn user_cannot_create_kernel_directory_of_another_user() {
    let tree = Tree::new();
    tree.names.keep_kernels_directory((0, 0)).await.unwrap();
    let found = tree.root(resolve("/kernels")).await;
    let Answer::Entry(found) = found else {
        panic!("{found:?}")
    };
    let kernels = found.attr.unwrap().ino;
    let (alice, bob) = (user(1000), user(2000));
    // The Linux kernel of a mount's host has checked the mode, which lets everybody in.
    let mounted = Caller {
        checked: true,
        administrator: true,
        ..user(1000)
    };
    let directory = |name: &str| Op::Create(create(kernels, name, Kind::Directory, 0o700));
    for caller in [&alice, &mounted] {
        for name in ["2000", "0", "new", "1000 ", "01000"] {
            let refused = tree.errno(caller, directory(name)).await;
            assert_eq!(refused, Some(Errno::PERM), "{name}");
        }
    }
    assert_eq!(tree.errno(&alice, directory("1000")).await, None);
    // A user can't get another user's name through a name of their own.
    let away = rename(kernels, "1000", kernels, "2000");
    assert_eq!(tree.errno(&alice, away).await, Some(Errno::PERM));
    assert_eq!(tree.errno(&bob, directory("2000")).await, None);
    let swap = Op::Rename(v1::Rename {
        parent: kernels,
        name: b"1000".to_vec(),
        new_parent: kernels,
        new_name: b"2000".to_vec(),
        exchange: true,
        ..v1::Rename::default()
    });
    assert_eq!(tree.errno(&alice, swap).await, Some(Errno::PERM));
}

#[tokio::test]
async fn setgid_directory_passes_group_to_new_entries() {
    let tree = Tree::new();
    let shared = tree.make(1, "shared", Kind::Directory, 0o2777, 0).await;
    let set = v1::SetAttr {
        ino: shared,
        gid: Some(70),
        ..v1::SetAttr::default()
    };
    tree.root(Op::SetAttr(set)).await;
    let by = user(1000);
    let file = tree
        .by(
            &by,
            0,
            vec![Op::Create(create(shared, "f", Kind::File, 0o644))],
        )
        .await;
    let dir = tree
        .by(
            &by,
            0,
            vec![Op::Create(create(shared, "d", Kind::Directory, 0o755))],
        )
        .await;
    assert_eq!((attr(&file[0]).gid, attr(&file[0]).uid), (70, 1000));
    assert_eq!((attr(&dir[0]).gid, attr(&dir[0]).mode), (70, 0o2755));
}

#[tokio::test]
async fn names_paths_and_links_beyond_limits_fail_with_posix_errno() {
    let tree = Tree::new();
    let by = Caller::root();
    let make = |name: &str| Op::Create(create(1, name, Kind::File, 0o644));
    assert_eq!(tree.errno(&by, make(&"n".repeat(255))).await, None);
    assert_eq!(
        tree.errno(&by, make(&"n".repeat(256))).await,
        Some(Errno::NAMETOOLONG)
    );
    assert_eq!(tree.errno(&by, make("a/b")).await, Some(Errno::INVAL));
    assert_eq!(tree.errno(&by, make("..")).await, Some(Errno::INVAL));
    assert_eq!(tree.errno(&by, make("")).await, Some(Errno::NOENT));
    let long = format!("/{}", "x/".repeat(2048));
    assert_eq!(
        tree.errno(&by, resolve(&long)).await,
        Some(Errno::NAMETOOLONG)
    );
    assert_eq!(
        tree.errno(&by, resolve(&format!("/{}/x", "n".repeat(255))))
            .await,
        Some(Errno::NOTDIR)
    );
    let link = |name: &str, target: String| {
        Op::Create(v1::Create {
            target: target.into_bytes(),
            ..create(1, name, Kind::Symlink, 0o777)
        })
    };
    assert_eq!(tree.errno(&by, link("long", "t".repeat(4095))).await, None);
    assert_eq!(
        tree.errno(&by, link("longer", "t".repeat(4096))).await,
        Some(Errno::NAMETOOLONG)
    );
    assert_eq!(tree.errno(&by, link("self", "self".into())).await, None);
    assert_eq!(tree.errno(&by, resolve("/self")).await, Some(Errno::LOOP));
    let unfollowed = Op::Resolve(v1::Resolve {
        path: bytes("/self"),
        follow: false,
        advise: false,
    });
    assert_eq!(tree.errno(&by, unfollowed).await, None);
}

#[tokio::test]
async fn relative_symlinks_resolve_from_their_own_directory() {
    let tree = Tree::new();
    let a = tree.make(1, "a", Kind::Directory, 0o755, 0).await;
    let b = tree.make(a, "b", Kind::Directory, 0o755, 0).await;
    let file = tree.make(a, "f", Kind::File, 0o644, 0).await;
    for (name, target) in [("up", "../f"), ("abs", "/a/b/up"), ("dir", "..")] {
        let link = v1::Create {
            target: bytes(target),
            ..create(b, name, Kind::Symlink, 0o777)
        };
        tree.root(Op::Create(link)).await;
    }
    for path in ["/a/b/up", "/a/b/abs", "/a/b/dir/f", "//a/./b/../f"] {
        assert_eq!(attr(&tree.root(resolve(path)).await).ino, file, "{path}");
    }
    assert_eq!(
        tree.errno(&Caller::root(), resolve("/a/b/up/")).await,
        Some(Errno::NOTDIR)
    );
}

#[tokio::test]
async fn times_follow_changes_of_entries_and_attributes() {
    let tree = Tree::new();
    let dir = tree.make(1, "d", Kind::Directory, 0o755, 0).await;
    let file = attr(
        &tree
            .root(Op::Create(v1::Create {
                time: 100,
                ..create(dir, "f", Kind::File, 0o644)
            }))
            .await,
    );
    assert_eq!((file.mtime, file.ctime), (100, 100));
    let parent = tree.stat(dir).await;
    assert_eq!((parent.mtime, parent.ctime), (100, 100));
    let link = v1::Link {
        ino: file.ino,
        parent: dir,
        name: bytes("g"),
        time: 200,
    };
    tree.root(Op::Link(link)).await;
    assert_eq!(tree.stat(file.ino).await.ctime, 200);
    let Op::Rename(op) = rename(dir, "g", 1, "g") else {
        unreachable!()
    };
    tree.root(Op::Rename(v1::Rename { time: 300, ..op })).await;
    let times = [
        tree.stat(file.ino).await.ctime,
        tree.stat(dir).await.mtime,
        tree.stat(1).await.mtime,
    ];
    assert_eq!(times, [300; 3]);
    let Op::Unlink(op) = unlink(1, "g") else {
        unreachable!()
    };
    tree.root(Op::Unlink(v1::Unlink { time: 400, ..op })).await;
    let after = tree.stat(file.ino).await;
    assert_eq!((after.ctime, after.nlink), (400, 1));
    let set = v1::SetAttr {
        ino: file.ino,
        mtime: Some(7),
        ctime: 500,
        ..v1::SetAttr::default()
    };
    let after = attr(&tree.root(Op::SetAttr(set)).await);
    assert_eq!((after.mtime, after.ctime), (7, 500));
}

#[tokio::test]
async fn request_keeps_operations_before_failure_and_skips_later_ones() {
    let tree = Tree::new();
    let make = |name: &str| Op::Create(create(1, name, Kind::File, 0o644));
    let answers = tree
        .by(&Caller::root(), 0, vec![make("a"), make("a"), make("b")])
        .await;
    assert_eq!(answers.len(), 2);
    assert!(
        matches!(&answers[1], Answer::Error(error) if error.errno == Errno::EXIST.raw_os_error())
    );
    assert_eq!(tree.errno(&Caller::root(), resolve("/a")).await, None);
    assert_eq!(
        tree.errno(&Caller::root(), resolve("/b")).await,
        Some(Errno::NOENT)
    );
}

#[tokio::test]
async fn users_can_use_only_ids_that_they_reserved() {
    let tree = Tree::new();
    let home = tree.make(1, "home", Kind::Directory, 0o777, 0).await;
    let (mine, _) = tree.names.reserve(user(1000), 2, 2).await.unwrap();
    let with = |ino, name: &str| {
        Op::Create(v1::Create {
            ino,
            ..create(home, name, Kind::File, 0o644)
        })
    };
    assert_eq!(
        tree.errno(&user(2000), with(mine, "x")).await,
        Some(Errno::INVAL)
    );
    assert_eq!(tree.errno(&user(1000), with(mine, "x")).await, None);
    assert_eq!(
        tree.errno(&user(1000), with(mine, "y")).await,
        Some(Errno::INVAL),
        "used up"
    );
    assert_eq!(
        tree.errno(&user(1000), with(mine, "x")).await,
        None,
        "the same request again"
    );
    assert_eq!(
        tree.errno(&user(1000), with(mine + 2, "y")).await,
        Some(Errno::INVAL)
    );
}

#[tokio::test]
async fn user_xattrs_are_stored_and_system_xattrs_are_computed() {
    let tree = Tree::new();
    let ino = tree.make(1, "f", Kind::File, 0o644, 0).await;
    let by = Caller::root();
    let set = |name: &str, create, replace| {
        Op::SetXattr(v1::SetXattr {
            ino,
            name: bytes(name),
            value: bytes("v"),
            create,
            replace,
        })
    };
    let get = |name: &str| {
        Op::GetXattr(v1::GetXattr {
            ino,
            name: bytes(name),
        })
    };
    assert_eq!(tree.errno(&by, get("user.a")).await, Some(Errno::NODATA));
    assert_eq!(
        tree.errno(&by, set("user.a", false, true)).await,
        Some(Errno::NODATA)
    );
    assert_eq!(tree.errno(&by, set("user.a", true, false)).await, None);
    assert_eq!(
        tree.errno(&by, set("user.a", true, false)).await,
        Some(Errno::EXIST)
    );
    assert_eq!(
        tree.root(get("user.a")).await,
        Answer::Bytes(v1::Bytes { value: bytes("v") })
    );
    assert_eq!(
        tree.errno(&by, set("user.tidemill.version", false, false))
            .await,
        Some(Errno::PERM)
    );
    assert_eq!(
        tree.root(get("user.tidemill.version")).await,
        Answer::Bytes(v1::Bytes { value: bytes("1") })
    );
    assert_eq!(
        tree.errno(&by, set("system.a", false, false)).await,
        Some(Errno::OPNOTSUPP)
    );
    let list = tree.root(Op::ListXattr(v1::ListXattr { ino })).await;
    assert_eq!(
        list,
        Answer::Names(v1::NameList {
            names: vec![bytes("user.a")]
        })
    );
    let remove = || {
        Op::RemoveXattr(v1::RemoveXattr {
            ino,
            name: bytes("user.a"),
        })
    };
    assert_eq!(tree.errno(&by, remove()).await, None);
    assert_eq!(tree.errno(&by, remove()).await, Some(Errno::NODATA));
    let directory = v1::SetXattr {
        ino: 1,
        name: bytes("user.tidemill.node"),
        value: bytes("nonsense"),
        ..v1::SetXattr::default()
    };
    assert_eq!(
        tree.errno(&by, Op::SetXattr(directory)).await,
        Some(Errno::INVAL)
    );
}

#[tokio::test]
async fn trusted_xattrs_are_visible_to_root_only() {
    let tree = Tree::new();
    let ino = tree.make(1, "f", Kind::File, 0o666, 1000).await;
    let other = Caller {
        checked: true,
        ..user(1000)
    };
    let name = || bytes("trusted.a");
    let set = v1::SetXattr {
        ino,
        name: name(),
        value: bytes("v"),
        ..v1::SetXattr::default()
    };
    let set = Op::SetXattr(set);
    let get = Op::GetXattr(v1::GetXattr { ino, name: name() });
    let list = Op::ListXattr(v1::ListXattr { ino });
    let remove = Op::RemoveXattr(v1::RemoveXattr { ino, name: name() });
    let names = |names| Answer::Names(v1::NameList { names });
    assert_eq!(
        tree.errno(&other, set.clone()).await,
        Some(Errno::PERM),
        "whatever a kernel has checked"
    );
    tree.root(set).await;
    let value = Answer::Bytes(v1::Bytes { value: bytes("v") });
    assert_eq!(tree.root(get.clone()).await, value);
    assert_eq!(tree.root(list.clone()).await, names(vec![name()]));
    assert_eq!(tree.errno(&other, get.clone()).await, Some(Errno::NODATA));
    let seen = tree.by(&other, 0, vec![list]).await;
    assert_eq!(seen, [names(Vec::new())]);
    assert_eq!(tree.errno(&other, remove.clone()).await, Some(Errno::PERM));
    tree.root(remove).await;
    assert_eq!(tree.errno(&Caller::root(), get).await, Some(Errno::NODATA));
}

#[tokio::test]
async fn readdir_continues_after_last_name() {
    let tree = Tree::new();
    for name in ["d", "a", "c", "b"] {
        tree.make(1, name, Kind::File, 0o644, 0).await;
    }
    let mut after = Vec::new();
    let mut seen = Vec::new();
    loop {
        let list = v1::ReadDir {
            ino: 1,
            after: after.clone(),
            limit: 3,
        };
        let Answer::Entries(entries) = tree.root(Op::ReadDir(list)).await else {
            panic!()
        };
        seen.extend(entries.entries.iter().map(|entry| entry.name.clone()));
        if entries.end {
            break;
        }
        after = seen.last().unwrap().clone();
    }
    assert_eq!(seen, ["a", "b", "c", "d"].map(bytes));
}

/// Sealed objects must be on a node, and a namespace without a cluster has none, so these tests use a server.
mod versions {
    use super::{bytes, create, unlink};
    use crate::cluster::{Running, file_op, mount, receipt, root, stat, write_file};
    use rustix::io::Errno;
    use tidemill_client::Server as Client;
    use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

    async fn by(client: &Client, session: u64, op: Op) -> Result<Answer, i32> {
        let request = v1::NameRequest {
            credentials: Some(root()),
            ops: vec![v1::NameOp { op: Some(op) }],
            session,
            durable: false,
        };
        match client.apply(request).await.unwrap().remove(0) {
            Answer::Error(error) => Err(error.errno),
            answer => Ok(answer),
        }
    }

    fn opened(answer: Result<Answer, i32>) -> v1::Opened {
        match answer {
            Ok(Answer::Opened(opened)) => opened,
            other => panic!("not opened: {other:?}"),
        }
    }

    fn open(ino: u64, version: u64) -> Op {
        Op::Open(v1::Open {
            ino,
            version,
            ..v1::Open::default()
        })
    }

    fn rewrite(ino: u64, object: u64, steal: bool) -> Op {
        Op::NewVersion(v1::NewVersion {
            ino,
            object,
            steal,
            ..v1::NewVersion::default()
        })
    }

    fn seal(client: &Client, ino: u64, object: u64, size: u64) -> Op {
        Op::Seal(v1::Seal {
            ino,
            object,
            size,
            receipts: vec![receipt(client, 0, object, size)],
            ..v1::Seal::default()
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn old_version_is_readable_until_its_reader_releases_it() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let mut node = running.node(0).await;
        let client = running.client().await;
        let old = write_file(&client, "/f", 10, 0).await;
        let other = write_file(&client, "/g", 10, 0).await;
        let ino = stat(&client, "/f").await.unwrap().ino;
        let (session, _stream) = mount(&client).await;
        assert_eq!(opened(by(&client, session, open(ino, 0)).await).object, old);

        let (_, new) = client.reserve(1, 1).await.unwrap();
        opened(by(&client, 0, rewrite(ino, new.0, false)).await);
        assert_eq!(
            opened(by(&client, 0, open(ino, 0)).await).object,
            old,
            "not sealed yet"
        );
        by(&client, 0, seal(&client, ino, new.0, 20)).await.unwrap();
        let now = opened(by(&client, 0, open(ino, 0)).await);
        assert_eq!((now.object, now.size), (new.0, 20));
        assert_eq!(
            opened(by(&client, 0, open(ino, 1)).await).object,
            old,
            "still kept for the reader"
        );

        by(&client, 0, unlink(1, "g")).await.unwrap();
        assert_eq!(
            node.removed().await,
            [other],
            "only the object without readers"
        );
        let release = v1::Release { ino, object: old };
        by(&client, session, Op::Release(release)).await.unwrap();
        assert_eq!(node.removed().await, [old]);
        let gone = by(&client, 0, open(ino, 1)).await;
        assert_eq!(gone, Err(Errno::NOENT.raw_os_error()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn file_has_one_writer_unless_write_is_stolen() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let _node = running.node(0).await;
        let client = running.client().await;
        write_file(&client, "/f", 10, 0).await;
        let ino = stat(&client, "/f").await.unwrap().ino;
        let (_, first) = client.reserve(1, 3).await.unwrap();
        let (a, _a) = mount(&client).await;
        let (b, _b) = mount(&client).await;
        opened(by(&client, a, rewrite(ino, first.0, false)).await);
        opened(by(&client, a, rewrite(ino, first.0, false)).await);
        let busy = by(&client, b, rewrite(ino, first.0 + 1, false)).await;
        assert_eq!(busy, Err(Errno::TXTBSY.raw_os_error()));
        opened(by(&client, b, rewrite(ino, first.0 + 1, true)).await);
        let stale = by(&client, a, seal(&client, ino, first.0, 1)).await;
        assert_eq!(stale, Err(Errno::STALE.raw_os_error()));
        let abandon = v1::Abandon {
            ino,
            object: first.0 + 1,
        };
        by(&client, b, Op::Abandon(abandon)).await.unwrap();
        let after = stat(&client, "/f").await.unwrap();
        assert_eq!((after.version, after.size, after.writing), (1, 10, false));
    }

    /// A mount that has closed a file does not answer questions about the file, but seals the file. A writer that waits for the file
    /// continues after the seal.
    #[tokio::test(flavor = "multi_thread")]
    async fn open_for_write_waits_for_seal_in_progress() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let _node = running.node(0).await;
        let client = running.client().await;
        write_file(&client, "/f", 10, 0).await;
        let ino = stat(&client, "/f").await.unwrap().ino;
        let (_, first) = client.reserve(1, 2).await.unwrap();
        let (a, mut stream) = mount(&client).await;
        let (b, _b) = mount(&client).await;
        opened(by(&client, a, rewrite(ino, first.0, false)).await);
        let other = client.clone();
        let waits =
            tokio::spawn(async move { by(&other, b, rewrite(ino, first.0 + 1, false)).await });
        loop {
            let message = stream.message().await.unwrap().unwrap();
            if message.question != 0 && message.share {
                break;
            }
        }
        by(&client, a, seal(&client, ino, first.0, 20))
            .await
            .unwrap();
        let begun = opened(waits.await.unwrap());
        assert_eq!((begun.object, begun.attr.unwrap().size), (first.0 + 1, 20));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unlinked_file_lives_while_open() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let mut node = running.node(0).await;
        let client = running.client().await;
        let (session, _stream) = mount(&client).await;
        let (ino, object) = client.reserve(1, 1).await.unwrap();
        let create = v1::Create {
            ino: ino.0,
            object: object.0,
            ..create(1, "f", Kind::File, 0o644)
        };
        opened(by(&client, session, Op::Create(create)).await);
        by(&client, session, unlink(1, "f")).await.unwrap();
        let get = || {
            Op::GetAttr(v1::GetAttr {
                ino: ino.0,
                content: false,
            })
        };
        let Ok(Answer::Attr(attr)) = by(&client, session, get()).await else {
            panic!("deleted while open")
        };
        assert_eq!(attr.nlink, 0);
        by(&client, session, seal(&client, ino.0, object.0, 3))
            .await
            .unwrap();
        assert_eq!(
            by(&client, session, get()).await,
            Err(Errno::NOENT.raw_os_error())
        );
        assert_eq!(node.removed().await, [object.0]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn new_files_are_placed_on_node_of_their_directory_or_fail() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path()).await;
        let client = running.client().await;
        let no_node = by(&client, 0, file_with_object(&client, "f").await).await;
        assert_eq!(no_node, Err(Errno::HOSTUNREACH.raw_os_error()));
        let _zero = running.node(0).await;
        let _one = running.node(1).await;
        let set = v1::SetXattr {
            ino: 1,
            name: bytes("user.tidemill.node"),
            value: bytes("1"),
            ..v1::SetXattr::default()
        };
        by(&client, 0, Op::SetXattr(set)).await.unwrap();
        for name in ["a", "b", "c"] {
            let op = file_with_object(&client, name).await;
            assert_eq!(opened(by(&client, 0, op).await).node, 1);
        }
        by(&client, 0, file_op("plain")).await.unwrap();
        assert_eq!(stat(&client, "/plain").await.unwrap().size, 0);
    }

    async fn file_with_object(client: &Client, name: &str) -> Op {
        let (ino, object) = client.reserve(1, 1).await.unwrap();
        Op::Create(v1::Create {
            ino: ino.0,
            object: object.0,
            ..create(1, name, Kind::File, 0o644)
        })
    }
}

/// The reply to a rename or removal contains the inode that was changed, since no later request can find the inode reliably.
#[tokio::test]
async fn rename_and_unlink_replies_contain_changed_inode() {
    let tree = Tree::new();
    let dir = tree.make(1, "d", Kind::Directory, 0o755, 0).await;
    let one = tree.make(dir, "one", Kind::File, 0o644, 0).await;
    let two = tree.make(dir, "two", Kind::File, 0o644, 0).await;
    let reported = async |op: Op| -> Vec<(u64, u32)> {
        let Answer::Entries(answer) = tree.root(op).await else {
            panic!("no entries");
        };
        let attrs = answer.entries.iter().map(|entry| entry.attr.unwrap());
        attrs.map(|attr| (attr.ino, attr.nlink)).collect()
    };
    assert_eq!(reported(rename(dir, "one", 1, "moved")).await, [(one, 1)]);
    let Op::Rename(op) = rename(1, "moved", dir, "two") else {
        unreachable!()
    };
    let exchange = v1::Rename {
        exchange: true,
        ..op.clone()
    };
    let exchanged = [(one, 1), (two, 1)];
    assert_eq!(reported(Op::Rename(exchange)).await, exchanged);
    let replaced = [(two, 1), (one, 0)];
    assert_eq!(reported(Op::Rename(op)).await, replaced);
    let link = v1::Link {
        ino: two,
        parent: 1,
        name: bytes("second"),
        time: 0,
    };
    tree.root(Op::Link(link)).await;
    let same = [(two, 2), (two, 2)];
    assert_eq!(reported(rename(dir, "two", 1, "second")).await, same);
    for links in [1, 0] {
        let (parent, name) = if links == 1 {
            (dir, "two")
        } else {
            (1, "second")
        };
        let gone = attr(&tree.root(unlink(parent, name)).await);
        assert_eq!((gone.ino, gone.nlink), (two, links));
    }
}

/// No new entry of the root can have a name of the control directory. An existing entry with such a name can be renamed.
#[tokio::test]
async fn control_directory_names_are_reserved_at_root() {
    let tree = Tree::new();
    let dir = tree.make(1, "d", Kind::Directory, 0o755, 0).await;
    let file = tree.make(1, "f", Kind::File, 0o644, 0).await;
    let refused = Some(Errno::PERM);
    for name in [".tidemill", ".analyzethis"] {
        let Op::Rename(op) = rename(1, "f", 1, name) else {
            unreachable!()
        };
        let exchange = v1::Rename {
            exchange: true,
            ..op
        };
        let below = v1::Create {
            make_parents: true,
            ..create(0, &format!("/{name}/x"), Kind::File, 0o644)
        };
        let link = v1::Link {
            ino: file,
            parent: 1,
            name: bytes(name),
            time: 0,
        };
        for op in [
            Op::Create(create(1, name, Kind::Directory, 0o755)),
            Op::Create(create(1, name, Kind::File, 0o644)),
            Op::Create(below),
            Op::Link(link),
            rename(1, "f", 1, name),
            rename(1, "d", 1, name),
            Op::Rename(exchange),
        ] {
            let errno = tree.errno(&Caller::root(), op.clone()).await;
            assert_eq!(errno, refused, "{op:?}");
        }
        tree.make(dir, name, Kind::File, 0o644, 0).await;
    }
}
