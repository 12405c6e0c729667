//! Tests of the mounted file system on a real server and real nodes, with direct access and over HTTP alike.
//! The sentences of `docs/semantics.md` and `docs/consistency.md` stand above the tests that prove them.

#![allow(unsafe_code, reason = "memory maps")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't do what it needs fails"
)]

use crate::cluster::{MountCluster, Mounted, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a test once with direct access and once over HTTP.
fn both(test: impl Fn(&mut MountCluster, Mounted)) {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        eprintln!("in place: {in_place}");
        let mut cluster = MountCluster::start();
        let mounted = cluster.mount(in_place);
        test(&mut cluster, mounted);
    }
}

/// Repeats a check until it is true, because changes by another process take a moment.
fn soon(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "never came about: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn map(file: &File, length: usize, write: bool) -> &'static mut [u8] {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = if write {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    // SAFETY: a new mapping at an address of the kernel's choice; it is never unmapped while used.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            length,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )
        .unwrap();
        std::slice::from_raw_parts_mut(at.cast(), length)
    }
}

fn unmap(bytes: &'static mut [u8]) {
    // SAFETY: it was mapped by `map` and is not used again.
    unsafe { rustix::mm::munmap(bytes.as_mut_ptr().cast(), bytes.len()).unwrap() }
}

/// Written bytes are read at once, by all programs on the mount.
#[test]
fn written_bytes_are_read_on_same_mount_at_once() {
    both(|_, mounted| {
        let path = mounted.join("f");
        let data: Vec<u8> = (0..9_000_001u32)
            .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2])
            .collect();
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
        assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);
        let file = File::open(&path).unwrap();
        let mut piece = [0; 100];
        for offset in [8_999_000, 17, 4_194_290, 1 << 20] {
            file.read_exact_at(&mut piece, offset as u64).unwrap();
            assert_eq!(piece, data[offset..][..100], "{offset}");
        }
        assert_eq!(file.read_at(&mut piece, 9_000_000).unwrap(), 1);
        assert_eq!(file.read_at(&mut piece, 10_000_000).unwrap(), 0);
    });
}

/// On one mount, a file that is being written is one file for all its openers. The file stays one file after the seal.
#[test]
fn readers_and_writers_share_one_file() {
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, "old old old").unwrap();
        let reader = File::open(&path).unwrap();
        let read = || {
            let mut bytes = vec![0; 100];
            let length = reader.read_at(&mut bytes, 0).unwrap();
            assert_eq!(reader.metadata().unwrap().len(), length as u64);
            bytes.truncate(length);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(read(), "old old old");
        let mut writer = File::create(&path).unwrap();
        assert_eq!(read(), "");
        writer.write_all(b"new").unwrap();
        assert_eq!(read(), "new");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let (of_reader, of_path) = (reader.metadata().unwrap(), fs::metadata(&path).unwrap());
        assert_eq!(
            (of_reader.dev(), of_reader.ino()),
            (of_path.dev(), of_path.ino())
        );
        drop(writer);
        assert_eq!(read(), "new");
        // Through repeated seals, and for memory maps, too.
        let mapped = map(&reader, 3, false);
        for round in 0..5 {
            let mut writer = OpenOptions::new().append(true).open(&path).unwrap();
            write!(writer, "{round}").unwrap();
            drop(writer);
            let writer = OpenOptions::new().write(true).open(&path).unwrap();
            writer
                .write_all_at(format!("n{round}w").as_bytes(), 0)
                .unwrap();
            drop(writer);
            assert_eq!(mapped, format!("n{round}w").as_bytes());
        }
        unmap(mapped);
        assert_eq!(read(), "n4w01234");
        assert_eq!(fs::read(&path).unwrap(), b"n4w01234");
        let truncate = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::truncate(truncate.as_ptr(), 2) }, 0);
        assert_eq!(read(), "n4");
        // Also after an unlink it is one file.
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        (&writer).write_all(b"!").unwrap();
        drop(writer);
        assert_eq!(read(), "n4!");
    });
}

/// A version from another mount is another file for readers of the earlier version. Readers of the earlier version keep that version.
#[test]
fn readers_keep_version_when_another_mount_writes() {
    if !can_mount() {
        return;
    }
    for (here, there) in [(true, true), (false, false), (true, false), (false, true)] {
        eprintln!("in place: {here}, {there}");
        let mut cluster = MountCluster::start();
        let (a, b) = (cluster.mount(here), cluster.mount(there));
        fs::write(a.join("f"), "old old old").unwrap();
        soon("the seal is seen", || {
            fs::read(b.join("f")).is_ok_and(|bytes| bytes == b"old old old")
        });
        let keeps = |reader: &File| {
            let mut bytes = [0; 11];
            reader.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"old old old");
            assert_eq!(reader.metadata().unwrap().len(), 11);
        };
        // Both have it open when one mount writes: readers on that mount may see the new bytes, readers on the other may not.
        let (of_a, of_b) = (
            File::open(a.join("f")).unwrap(),
            File::open(b.join("f")).unwrap(),
        );
        let mapped = map(&of_b, 11, false);
        let mut writer = File::create(a.join("f")).unwrap();
        writer.write_all(b"new").unwrap();
        keeps(&of_b);
        assert_eq!(fs::read(a.join("f")).unwrap(), b"new");
        drop(writer);
        soon("the new version is seen", || {
            fs::read(b.join("f")).is_ok_and(|bytes| bytes == b"new")
        });
        keeps(&of_b);
        assert_eq!(&*mapped, b"old old old");
        unmap(mapped);
        drop(of_a);
        // Now the other mount writes.
        let of_a = File::open(a.join("f")).unwrap();
        fs::write(b.join("f"), "newest").unwrap();
        soon("the newest version is seen", || {
            fs::read(a.join("f")).is_ok_and(|bytes| bytes == b"newest")
        });
        let mut bytes = [0; 10];
        assert_eq!(of_a.read_at(&mut bytes, 0).unwrap(), 3);
        assert_eq!(&bytes[..3], b"new");
        assert_eq!(of_a.metadata().unwrap().len(), 3);
    }
}

/// The Linux kernel writes this file directly, because the file was opened while there was no other mount. Such a file has one writing
/// mount: opening it for writing on another mount fails with `ETXTBSY`. Any number of waiting openers block no other operation.
#[test]
fn waiting_openers_of_busy_file_block_no_other_operation() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let a = cluster.mount(true);
    let held = File::create(a.join("busy")).unwrap();
    let b = cluster.mount(true);
    soon("the name is seen", || b.join("busy").exists());
    let openers: Vec<_> = (0..140)
        .map(|_| {
            let path = b.join("busy");
            std::thread::spawn(move || OpenOptions::new().write(true).open(path).map(drop))
        })
        .collect();
    soon("some are refused", || {
        openers.iter().any(std::thread::JoinHandle::is_finished)
    });
    fs::create_dir(b.join("beside")).unwrap();
    assert!(!openers.iter().all(std::thread::JoinHandle::is_finished));
    drop(held);
    for opener in openers {
        if let Err(error) = opener.join().unwrap() {
            assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY), "{error}");
        }
    }
    drop(OpenOptions::new().write(true).open(b.join("busy")).unwrap());
}

/// The space of a range can be allocated and freed.
#[test]
fn fallocate_allocates_and_frees_ranges() {
    both(|_, mounted| {
        use rustix::fs::{FallocateFlags, fallocate};
        let path = mounted.join("f");
        fs::write(&path, vec![b'a'; 300_000]).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 100_000, 50_000).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 299_000, 2_000).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 400_000, 1_000).unwrap();
        fallocate(&file, FallocateFlags::empty(), 301_000, 1_000).unwrap();
        drop(file);
        let mut expected = vec![b'a'; 302_000];
        expected[100_000..150_000].fill(0);
        expected[299_000..].fill(0);
        assert!(fs::read(&path).unwrap() == expected);
    });
}

/// Opening a sealed file for writing without changing any byte creates no new version.
#[test]
fn open_for_write_without_change_keeps_version() {
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, "text").unwrap();
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        let before = fs::metadata(&path).unwrap();
        assert_eq!(before.mtime(), 1_000_000_000);
        drop(OpenOptions::new().append(true).open(&path).unwrap());
        drop(
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap(),
        );
        soon("the open for writing ended", || {
            OpenOptions::new().append(true).open(&path).is_ok()
        });
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.mtime(), after.len()), (before.mtime(), before.len()));
        assert_eq!(fs::read(&path).unwrap(), b"text");
    });
}

#[test]
fn open_without_write_after_close_keeps_mtime() {
    both(|_, mounted| {
        for round in 0..5 {
            let path = mounted.join(format!("f{round}"));
            fs::write(&path, "text").unwrap();
            let before = fs::metadata(&path).unwrap().modified().unwrap();
            drop(OpenOptions::new().append(true).open(&path).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
            soon("the open for writing ended", || {
                OpenOptions::new().append(true).open(&path).is_ok()
            });
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        }
    });
}

/// Writes to parts of a file change the file in place as far as programs can see.
#[test]
fn partial_writes_update_file() {
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, vec![b'a'; 3 << 20]).unwrap();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(b"bbb").unwrap();
        file.write_all_at(b"cc", (3 << 20) + 5).unwrap();
        drop(file);
        let mut expected = vec![b'a'; 3 << 20];
        expected[1 << 20..][..3].fill(b'b');
        expected.extend_from_slice(b"\0\0\0\0\0cc");
        assert!(fs::read(&path).unwrap() == expected);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"end").unwrap();
        drop(file);
        expected.extend_from_slice(b"end");
        assert!(fs::read(&path).unwrap() == expected);
    });
}

/// `truncate` creates a new version with the kept bytes.
#[test]
fn truncate_keeps_and_extends_bytes() {
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, "0123456789").unwrap();
        let truncate = |size| {
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: the path ends with a zero byte.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), size) }, 0);
        };
        truncate(4);
        assert_eq!(fs::read(&path).unwrap(), b"0123");
        truncate(6);
        assert_eq!(fs::read(&path).unwrap(), b"0123\0\0");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(2).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 2);
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"01");
        truncate(0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    });
}

/// A file without a name remains readable and writable for the processes that have it open.
#[test]
fn unlinked_file_is_readable_and_writable_while_open() {
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, "sealed").unwrap();
        let mut reader = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "sealed");
        assert_eq!(reader.metadata().unwrap().nlink(), 0);

        let mut writer = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        writer.write_all(b"written").unwrap();
        fs::remove_file(&path).unwrap();
        writer.write_all(b" on").unwrap();
        writer
            .set_permissions(fs::Permissions::from_mode(0o600))
            .unwrap();
        writer.rewind().unwrap();
        text.clear();
        writer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "written on");
        assert_eq!(writer.metadata().unwrap().mode() & 0o777, 0o600);
        drop(writer);
        assert!(root(&mounted).is_empty());
    });
}

/// Renaming onto an open file leaves that open file as it was.
#[test]
fn rename_replaces_file_and_keeps_its_open_handles() {
    both(|_, mounted| {
        let (a, b) = (mounted.join("a"), mounted.join("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        let mut open = File::open(&b).unwrap();
        fs::rename(&a, &b).unwrap();
        assert_eq!(fs::read(&b).unwrap(), b"a");
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "b");
        assert!(!a.exists());
    });
}

/// Programs can set times, owner and mode while a file is written, and the seal keeps them.
#[test]
fn attributes_set_during_write_are_kept_by_seal() {
    both(|_, mounted| {
        let path = mounted.join("f");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"x").unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
        file.set_modified(time).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o640))
            .unwrap();
        std::os::unix::fs::fchown(&file, Some(1234), Some(4321)).unwrap();
        drop(file);
        let check = || {
            let meta = fs::metadata(&path).unwrap();
            (
                meta.mtime(),
                meta.mode() & 0o7777,
                meta.uid(),
                meta.gid(),
                meta.len(),
            )
        };
        let expected = (1_234_567_890, 0o640, 1234, 4321, 1);
        assert_eq!(check(), expected);
        // The time is set after the close, as `tar` does.
        fs::write(&path, "yy").unwrap();
        File::open(&path).unwrap().set_modified(time).unwrap();
        let expected = (1_234_567_890, 0o640, 1234, 4321, 2);
        assert_eq!(check(), expected);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(check(), expected);
    });
}

/// Returns the permission bits and the owner of a file, as a mount shows them.
fn rights(mounted: &Mounted, name: &str) -> (u32, u32) {
    let meta = fs::metadata(mounted.join(name)).unwrap();
    (meta.mode() & 0o7777, meta.uid())
}

fn set_mode(file: &File, mode: u32) {
    let permissions = fs::Permissions::from_mode(mode);
    file.set_permissions(permissions).unwrap();
}

/// Returns a new open file of another user, with more permission bits than at its creation.
fn changed_file(mounted: &Mounted, name: &str) -> File {
    let mut file = File::create(mounted.join(name)).unwrap();
    file.write_all(b"x").unwrap();
    fchown(&file, Some(1234), None).unwrap();
    set_mode(&file, 0o666);
    assert_eq!(rights(mounted, name), (0o666, 1234));
    file
}

/// The mount sends changes of a new file's attributes during the write with the file's bytes, or earlier, when `fsync` or a rename
/// acknowledges the changes.
#[test]
fn new_file_attributes_arrive_with_its_bytes() {
    both(|cluster, mounted| {
        let other = cluster.mount(true);
        drop(changed_file(&mounted, "closed"));
        assert_eq!(rights(&other, "closed"), (0o666, 1234));
        let synced = changed_file(&mounted, "synced");
        synced.sync_all().unwrap();
        assert_eq!(rights(&other, "synced"), (0o666, 1234));
        set_mode(&synced, 0o777);
        drop(synced);
        assert_eq!(rights(&other, "synced"), (0o777, 1234));
        let renamed = changed_file(&mounted, "renaming");
        fs::rename(mounted.join("renaming"), mounted.join("renamed")).unwrap();
        assert_eq!(rights(&other, "renamed"), (0o666, 1234));
        drop(renamed);
        // A revoked permission is revoked for all.
        let secret = changed_file(&mounted, "secret");
        set_mode(&secret, 0o600);
        assert_eq!(rights(&other, "secret"), (0o600, 1234));
        set_mode(&secret, 0o700);
        drop(secret);
        assert_eq!(rights(&other, "secret"), (0o700, 1234));
        // A new owner may have fewer read permissions.
        let given = changed_file(&mounted, "given");
        fchown(&given, None, Some(4321)).unwrap();
        assert_eq!(fs::metadata(other.join("given")).unwrap().gid(), 4321);
        drop(given);
        assert_eq!(rights(&other, "given"), (0o666, 1234));
    });
}

/// Attributes that other clients set on a file during its write are kept. Names that others change have no effect on its attributes.
#[test]
fn new_file_attributes_merge_with_changes_by_other_mounts() {
    both(|cluster, mounted| {
        let other = cluster.mount(true);
        let theirs = |name| {
            fs::set_permissions(other.join(name), fs::Permissions::from_mode(0o444)).unwrap();
            soon("the change arrives", || rights(&mounted, name).0 == 0o444);
        };
        let contended = changed_file(&mounted, "contended");
        theirs("contended");
        drop(contended);
        assert_eq!(rights(&other, "contended").0, 0o444);
        assert_eq!(fs::read(other.join("contended")).unwrap(), b"x");
        let both = changed_file(&mounted, "both");
        theirs("both");
        set_mode(&both, 0o664);
        drop(both);
        assert_eq!(rights(&other, "both").0, 0o664);
        assert_eq!(rights(&mounted, "both").0, 0o664);
        let linked = changed_file(&mounted, "linked");
        fs::hard_link(mounted.join("linked"), mounted.join("twice")).unwrap();
        set_mode(&linked, 0o777);
        fs::remove_file(mounted.join("linked")).unwrap();
        drop(linked);
        assert_eq!(rights(&other, "twice").0, 0o777);
        assert_eq!(rights(&mounted, "twice").0, 0o777);
        let moved = changed_file(&mounted, "moving");
        fs::rename(other.join("moving"), other.join("moved")).unwrap();
        drop(moved);
        soon("the name arrives", || mounted.join("moved").exists());
        assert_eq!(rights(&other, "moved"), (0o666, 1234));
        assert_eq!(rights(&mounted, "moved"), (0o666, 1234));
    });
}

/// The mount's right to read a file outlives the file's close, and ends when the file is deleted, so that the node can remove the object.
#[test]
fn file_read_over_http_can_be_removed() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (writes, reads) = (cluster.mount(true), cluster.mount(false));
    let objects = |cluster: &MountCluster| -> usize {
        let directories = (0..2).map(|n| cluster.directory().join(format!("e{n}/objects")));
        let directories =
            directories.flat_map(|directory| fs::read_dir(directory).into_iter().flatten());
        let files =
            directories.map(|directory| fs::read_dir(directory.unwrap().path()).unwrap().count());
        files.sum()
    };
    let before = objects(&cluster);
    for round in 0..3 {
        for number in 0..20 {
            let text = format!("{round} {number}");
            fs::write(writes.join(format!("f{number}")), &text).unwrap();
        }
        for number in 0..20 {
            let path = reads.join(format!("f{number}"));
            for _ in 0..3 {
                let text = fs::read_to_string(&path).unwrap();
                assert_eq!(text, format!("{round} {number}"));
            }
        }
    }
    let as_user = |path: &Path| {
        let mut cat = Command::new("cat");
        cat.arg(path).uid(1234).gid(1234);
        cat.stderr(Stdio::null()).output().unwrap().stdout
    };
    assert_eq!(as_user(&reads.join("f0")), b"2 0");
    let refused = fs::Permissions::from_mode(0o000);
    fs::set_permissions(writes.join("f0"), refused).unwrap();
    soon("the change arrives", || {
        fs::metadata(reads.join("f0")).unwrap().mode() & 0o777 == 0
    });
    assert_eq!(as_user(&reads.join("f0")), b"");
    assert_eq!(fs::read_to_string(reads.join("f0")).unwrap(), "2 0");
    for number in 0..20 {
        fs::remove_file(writes.join(format!("f{number}"))).unwrap();
    }
    soon("the objects are removed", || objects(&cluster) == before);
}

/// Memory maps, holes and descriptors that are duplicated work as on a local file system.
#[test]
fn memory_maps_holes_and_dup_act_as_on_local_file_system() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let mounted = cluster.mount(true);
    let path = mounted.join("f");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let bytes = map(&file, 1 << 20, true);
    bytes[..5].copy_from_slice(b"begin");
    bytes[(1 << 20) - 3..].copy_from_slice(b"end");
    let again = file.try_clone().unwrap();
    drop(file);
    // Closed once, but mapped and duplicated: not sealed.
    bytes[5] = b'!';
    drop(again);
    bytes[6] = b'!';
    unmap(bytes);
    let data = fs::read(&path).unwrap();
    assert_eq!(
        (&data[..7], &data[data.len() - 3..]),
        (&b"begin!!"[..], &b"end"[..])
    );
    let file = File::open(&path).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert!(hole > 0 && hole < 1 << 20, "{hole}");
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)).unwrap();
    assert!(data > hole && data < 1 << 20, "{data}");
}

/// Other mounts see a file after its seal, and see new, renamed and removed names at once.
#[test]
fn mount_sees_new_renamed_and_removed_names_of_other_mount() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (one, two) = (cluster.mount(true), cluster.mount(false));
    fs::create_dir(one.join("d")).unwrap();
    fs::write(one.join("d/f"), "first").unwrap();
    soon("the file is there", || {
        fs::read(two.join("d/f")).is_ok_and(|data| data == b"first")
    });
    fs::write(two.join("d/f"), "second version").unwrap();
    soon("the new version is there", || {
        fs::read(one.join("d/f")).unwrap() == b"second version"
    });
    soon("its size too", || {
        fs::metadata(one.join("d/f")).unwrap().len() == 14
    });
    fs::rename(one.join("d/f"), one.join("d/g")).unwrap();
    soon("the rename is seen", || {
        !two.join("d/f").exists() && two.join("d/g").exists()
    });
    fs::set_permissions(two.join("d/g"), fs::Permissions::from_mode(0o600)).unwrap();
    soon("the mode is seen", || {
        fs::metadata(one.join("d/g")).unwrap().mode() & 0o777 == 0o600
    });
    fs::remove_file(two.join("d/g")).unwrap();
    soon("the removal is seen", || !one.join("d/g").exists());
    assert_eq!(fs::read_dir(one.join("d")).unwrap().count(), 0);
}

/// While one mount writes a file, other mounts see its last sealed version, until a second mount writes the file, too.
#[test]
fn other_mounts_see_sealed_versions_only() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (one, two) = (cluster.mount(true), cluster.mount(true));
    fs::write(one.join("f"), "sealed").unwrap();
    soon("it is sealed", || {
        fs::read(two.join("f")).is_ok_and(|data| data == b"sealed")
    });
    let mut writer = OpenOptions::new().write(true).open(one.join("f")).unwrap();
    writer.seek(SeekFrom::End(0)).unwrap();
    writer.write_all(b" and more").unwrap();
    assert_eq!(fs::read(two.join("f")).unwrap(), b"sealed");
    let mut second = OpenOptions::new().write(true).open(two.join("f")).unwrap();
    second.seek(SeekFrom::End(0)).unwrap();
    assert_eq!(fs::read(two.join("f")).unwrap(), b"sealed and more");
    second.write_all(b" by two").unwrap();
    drop(writer);
    assert_eq!(fs::read(one.join("f")).unwrap(), b"sealed and more by two");
    drop(second);
    assert_eq!(fs::read(one.join("f")).unwrap(), b"sealed and more by two");
}

/// Every other mount sees closed bytes from the close on, however soon it looks. No mount waits for a file that stays
/// open.
#[test]
fn closed_bytes_are_visible_on_all_mounts() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let writes = cluster.mount(true);
    let others = [cluster.mount(true), cluster.mount(false)];
    let open = File::create(writes.join("open")).unwrap();
    for round in 0..100_u32 {
        let text = format!("round {round}");
        let name = format!("f{}", round % 3);
        fs::write(writes.join(&name), &text).unwrap();
        for other in &others {
            assert_eq!(fs::read_to_string(other.join(&name)).unwrap(), text);
            assert_eq!(
                fs::metadata(other.join(&name)).unwrap().len(),
                text.len() as u64
            );
            assert_eq!(fs::read(other.join("open")).unwrap(), b"");
        }
    }
    drop(open);
    // Its length, too, even if it was cached during the write.
    for round in 0..100 {
        let name = format!("g{round}");
        let mut file = File::create(writes.join(&name)).unwrap();
        file.write_all(b"x").unwrap();
        let length = |other: &Mounted| fs::metadata(other.join(&name)).unwrap().len();
        assert_eq!([length(&others[0]), length(&others[1])], [0, 0]);
        file.write_all(b"yy").unwrap();
        drop(file);
        assert_eq!([length(&others[0]), length(&others[1])], [3, 3]);
    }
}

/// The mount keeps extended attributes in `user.`.
#[test]
fn user_xattrs_are_kept() {
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    both(|_, mounted| {
        let path = mounted.join("f");
        fs::write(&path, "").unwrap();
        setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
        let again = setxattr(&path, "user.a", b"2", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        let mut value = [0; 8];
        assert_eq!(getxattr(&path, "user.a", &mut value[..]), Ok(1));
        assert_eq!(listxattr(&path, &mut value[..]), Ok(7));
        removexattr(&path, "user.a").unwrap();
        assert_eq!(
            getxattr(&path, "user.a", &mut value[..]),
            Err(rustix::io::Errno::NODATA)
        );
    });
}

/// The mount lists large directories completely, and again after `rewinddir`.
#[test]
fn large_directory_is_listed_completely() {
    both(|_, mounted| {
        let expected: std::collections::BTreeSet<_> =
            (0..3000).map(|i| format!("{i:05}")).collect();
        for name in &expected {
            std::os::unix::fs::symlink("nowhere", mounted.join(name)).unwrap();
        }
        let listed = root(&mounted);
        assert_eq!(listed.len(), expected.len());
        assert_eq!(
            listed
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>(),
            expected
        );
        assert_eq!(
            fs::read_link(mounted.join("01234")).unwrap().to_str(),
            Some("nowhere")
        );
    });
}

/// Open files work after a restart of the server, and files closed during the restart are sealed afterwards.
#[test]
fn open_files_survive_server_restart() {
    both(|cluster, mounted| {
        fs::write(mounted.join("before"), "before").unwrap();
        let mut open = File::create(mounted.join("open")).unwrap();
        open.write_all(b"one ").unwrap();
        cluster.stop_server();
        open.write_all(b"two").unwrap();
        let path = mounted.join("during");
        let maker = std::thread::spawn(move || fs::write(path, "during"));
        std::thread::sleep(Duration::from_millis(300));
        cluster.start_server();
        maker.join().unwrap().unwrap();
        drop(open);
        for (name, text) in [
            ("before", "before"),
            ("open", "one two"),
            ("during", "during"),
        ] {
            assert_eq!(fs::read_to_string(mounted.join(name)).unwrap(), text);
        }
        let other = cluster.mount(true);
        soon("all is sealed", || {
            fs::read_to_string(other.join("open")).is_ok_and(|text| text == "one two")
        });
    });
}

/// Unmounting seals files that are still being written, with their current bytes. Later writes are not part of the file.
#[test]
fn unmount_seals_open_files() {
    both(|cluster, mounted| {
        let mut writer = File::create(mounted.join("f")).unwrap();
        writer.write_all(b"in time").unwrap();
        mounted.unmount();
        // Bytes that the kernel still accepts are not stored.
        let _ = writer.write_all(b", too late");
        let again = cluster.mount(true);
        soon("it is sealed", || {
            fs::read(again.join("f")).is_ok_and(|data| data == b"in time")
        });
    });
}

/// Returns the entries of the root without the directory of kernels, which every cluster has.
fn root(mounted: &Mounted) -> Vec<String> {
    let entries = fs::read_dir(mounted.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kernels")
        .collect()
}

/// The control directory shows nodes, users and lineage, and is not part of listings.
#[test]
fn control_directory_shows_nodes_users_and_lineage() {
    both(|_, mounted| {
        fs::write(mounted.join("f"), "x").unwrap();
        assert_eq!(root(&mounted), ["f"]);
        let status = fs::read_to_string(mounted.join(".tidemill/nodes/1/status")).unwrap();
        assert!(status.contains("state          up"), "{status}");
        assert!(!mounted.join(".tidemill/nodes/7").exists());
        let link = fs::read_link(mounted.join(".analyzethis")).unwrap();
        assert_eq!(link.to_str(), Some(".tidemill"));
        let directory = fs::metadata(mounted.join(".tidemill/root")).unwrap();
        assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o500, 0));
        assert!(
            fs::metadata(mounted.join(".tidemill/lineage/f"))
                .unwrap()
                .is_file()
        );
        assert!(fs::remove_file(mounted.join(".tidemill/nodes/1/status")).is_err());
        assert!(fs::write(mounted.join(".tidemill/new"), "").is_err());
        let refused = fs::write(mounted.join(".tidemill/root/submit"), "/no/such.conf\n");
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let why = fs::read_to_string(mounted.join(".tidemill/root/last-error")).unwrap();
        assert!(why.contains("/no/such.conf"), "{why}");
    });
}

/// The first requests of a mount are answered while another mount changes the tree.
#[test]
fn new_mount_answers_while_another_mount_changes_tree() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let busy = cluster.mount(true);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0_u32..).take_while(|_| !over.load(std::sync::atomic::Ordering::Relaxed))
            {
                std::os::unix::fs::symlink("nowhere", busy.join(number.to_string())).unwrap();
            }
        });
        for _ in 0..20 {
            let mounted = cluster.mount(true);
            let seen = fs::metadata(mounted.path()).map(|root| root.is_dir());
            let listed = fs::read_dir(mounted.path()).map(|_| ());
            let reported = (seen.ok(), listed.ok());
            if reported != (Some(true), Some(())) {
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(reported, (Some(true), Some(())));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
