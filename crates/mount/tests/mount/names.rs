//! Names as programs rely on them: created names exist and replaced content is new, on every mount, whatever other programs do to the
//! directory at the same time.

#![allow(
    clippy::unwrap_used,
    reason = "a test that can't do what it needs fails"
)]

use crate::cluster::{MountCluster, Mounted, can_mount};
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

/// Runs a test on a cluster with a mount with direct access and a mount over HTTP, in both orders.
fn two_mounts(test: impl Fn(&Mounted, &Mounted)) {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        eprintln!("in place: {in_place}");
        let mut cluster = MountCluster::start();
        let (one, two) = (cluster.mount(in_place), cluster.mount(!in_place));
        test(&one, &two);
    }
}

/// Repeats a function `repeat` until `work` ends. Returns the result of `work`.
fn while_repeating<T>(repeat: impl Fn(u64) + Sync, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                repeat(number);
                number += 1;
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Created names exist, although other programs change the directory's attributes and entries at the same time.
#[test]
fn created_names_exist_while_others_change_directory() {
    two_mounts(|one, two| {
        fs::create_dir(one.join("d")).unwrap();
        let (here, there) = (one.join("d"), two.join("d"));
        let others = |number: u64| {
            let mode = if number.is_multiple_of(2) {
                0o755
            } else {
                0o700
            };
            fs::set_permissions(&there, Permissions::from_mode(mode)).unwrap();
            let theirs = there.join("theirs");
            fs::write(&theirs, "x").unwrap();
            fs::rename(&theirs, there.join(format!("theirs{}", number % 7))).unwrap();
        };
        while_repeating(others, || {
            for number in 0..150 {
                let (file, other) = (here.join(format!("f{number}")), here.join("other"));
                File::create_new(&file).unwrap().write_all(b"x").unwrap();
                assert_eq!(fs::read(&file).unwrap(), b"x", "{number}");
                fs::hard_link(&file, &other).unwrap();
                assert!(other.exists(), "{number}");
                fs::rename(&file, here.join(format!("g{number}"))).unwrap();
                assert!(here.join(format!("g{number}")).exists(), "{number}");
                assert!(!file.exists(), "{number}");
                fs::remove_file(&other).unwrap();
                assert!(!other.exists(), "{number}");
                fs::create_dir(&file).unwrap();
                assert!(file.is_dir(), "{number}");
            }
        });
    });
}

/// A rename onto a name publishes the content with the name: no reader ever finds the file empty, truncated or missing.
#[test]
fn file_saved_by_rename_is_always_whole() {
    two_mounts(|one, two| {
        let save = |number: u8| {
            fs::write(one.join("f.new"), vec![number; 5000]).unwrap();
            fs::rename(one.join("f.new"), one.join("f")).unwrap();
            // On this mount the new content is visible at once.
            assert_eq!(fs::read(one.join("f")).unwrap(), vec![number; 5000]);
        };
        save(0);
        while !two.join("f").exists() {}
        let read = |_| match fs::read(two.join("f")) {
            Ok(bytes) => {
                let whole = bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]);
                assert!(whole, "{} bytes", bytes.len());
            }
            // Replaced between the kernel's two attempts to open it.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
        };
        while_repeating(read, || (1..100).for_each(save));
    });
}

/// A new hard link publishes the content, too. The rename of a directory publishes all files written below it.
#[test]
fn renamed_or_linked_files_are_whole_on_other_mounts() {
    two_mounts(|one, two| {
        for number in 0..20 {
            let made = one.join("making/sub");
            fs::create_dir_all(&made).unwrap();
            for file in 0..5 {
                fs::write(made.join(format!("f{file}")), vec![7; 3000]).unwrap();
            }
            let done = format!("done{number}");
            fs::rename(one.join("making"), one.join(&done)).unwrap();
            let there = two.join(&done).join("sub");
            while !there.exists() {}
            for file in 0..5 {
                let bytes = fs::read(there.join(format!("f{file}"))).unwrap();
                assert_eq!(bytes.len(), 3000, "{number}, {file}");
            }
            fs::write(one.join("a"), "linked").unwrap();
            fs::hard_link(one.join("a"), one.join(format!("b{number}"))).unwrap();
            while !two.join(format!("b{number}")).exists() {}
            assert_eq!(
                fs::read(two.join(format!("b{number}"))).unwrap(),
                b"linked",
                "{number}"
            );
            fs::remove_file(one.join("a")).unwrap();
        }
    });
}

/// A file that is open for writing when it is renamed has its new name at once. The file's content is published at the close.
#[test]
fn content_follows_at_close_if_open_file_is_renamed() {
    two_mounts(|one, two| {
        let mut file = File::create(one.join("part")).unwrap();
        file.write_all(b"first half, ").unwrap();
        fs::rename(one.join("part"), one.join("whole")).unwrap();
        assert_eq!(fs::read(one.join("whole")).unwrap(), b"first half, ");
        while !two.join("whole").exists() {}
        assert_eq!(fs::read(two.join("whole")).unwrap(), b"");
        file.write_all(b"second half").unwrap();
        drop(file);
        while fs::read(two.join("whole")).unwrap().is_empty() {}
        assert_eq!(
            fs::read(two.join("whole")).unwrap(),
            b"first half, second half"
        );
    });
}

/// A listing never brings back a name that was removed or replaced after the request.
#[test]
fn listing_never_revives_removed_names() {
    two_mounts(|one, two| {
        for by_other in [false, true] {
            let directory = if by_other { "b" } else { "a" };
            let here = one.join(directory);
            fs::create_dir(&here).unwrap();
            for number in 0..2000 {
                fs::write(here.join(format!("f{number:04}")), "old").unwrap();
            }
            let changer: PathBuf = if by_other {
                two.join(directory)
            } else {
                here.clone()
            };
            while fs::read_dir(&changer).unwrap().count() < 2000 {}
            let mut changed = false;
            for entry in fs::read_dir(&here).unwrap() {
                if !changed {
                    changed = true;
                    fs::remove_file(changer.join("f1900")).unwrap();
                    fs::write(changer.join("new"), "new").unwrap();
                    fs::rename(changer.join("new"), changer.join("f1902")).unwrap();
                    fs::remove_dir_all(changer.join("none")).unwrap_err();
                }
                // As `ls -l` does: a name that is deleted by now is no error of the listing.
                let _ = fs::symlink_metadata(entry.unwrap().path());
            }
            if by_other {
                while here.join("f1900").exists() {}
            }
            assert_eq!(
                fs::metadata(here.join("f1900")).unwrap_err().kind(),
                ErrorKind::NotFound
            );
            File::create_new(here.join("f1900")).unwrap();
            if by_other {
                while fs::read(here.join("f1902")).unwrap() == b"old" {}
            }
            assert_eq!(fs::read(here.join("f1902")).unwrap(), b"new");
        }
    });
}

/// A program saves by rename while `ls -l` runs all the time: readers get the last saved content.
#[test]
fn file_saved_by_rename_is_read_while_directory_is_listed() {
    two_mounts(|one, _| {
        let here = one.join("d");
        fs::create_dir(&here).unwrap();
        for number in 0..300 {
            fs::write(here.join(format!("f{number}")), "0").unwrap();
        }
        let list = |_| {
            for entry in fs::read_dir(&here).unwrap() {
                let _ = fs::symlink_metadata(entry.unwrap().path());
            }
        };
        while_repeating(list, || {
            for number in 0..400 {
                let path = here.join(format!("f{}", number * 7 % 300));
                let text = format!("version {number}");
                fs::write(here.join("new"), &text).unwrap();
                fs::rename(here.join("new"), &path).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
        });
    });
}

/// Only one process creates a name, even if the processes use different mounts.
#[test]
fn exclusive_create_succeeds_once_on_all_mounts() {
    two_mounts(|one, two| {
        let made = |mounted: &Mounted| -> Vec<bool> {
            (0..200)
                .map(|number| File::create_new(mounted.join(format!("x{number}"))).is_ok())
                .collect()
        };
        let (mine, theirs) = scope(|scope| {
            let theirs = scope.spawn(|| made(two));
            (made(one), theirs.join().unwrap())
        });
        for (number, (mine, theirs)) in mine.into_iter().zip(theirs).enumerate() {
            assert_ne!(mine, theirs, "x{number}");
        }
    });
}

/// The mount shows the links, times and kinds that a rename changes at once.
#[test]
fn rename_updates_links_times_and_kinds_at_once() {
    two_mounts(|one, _| {
        let path = |name: &str| one.join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::create_dir(path("a/sub")).unwrap();
        fs::write(path("a/f"), "f").unwrap();
        let links = |name: &str| fs::metadata(path(name)).unwrap().nlink();
        fs::rename(path("a/sub"), path("b/sub")).unwrap();
        assert_eq!((links("a"), links("b")), (2, 3));
        rustix::fs::renameat_with(CWD, path("a/f"), CWD, path("b/sub"), RenameFlags::EXCHANGE)
            .unwrap();
        assert_eq!((links("a"), links("b")), (3, 2));
        assert!(path("a/f").is_dir() && path("b/sub").is_file());
        fs::rename(path("a/f"), path("c")).unwrap();
        assert_eq!((links("a"), links("c")), (2, 2));
        fs::hard_link(path("b/sub"), path("b/second")).unwrap();
        assert_eq!(links("b/sub"), 2);
        fs::write(path("b/third"), "third").unwrap();
        fs::rename(path("b/third"), path("b/sub")).unwrap();
        assert_eq!((links("b/sub"), links("b/second")), (1, 1));
        // Two names of one file: rename changes nothing.
        fs::hard_link(path("b/sub"), path("b/third")).unwrap();
        fs::rename(path("b/sub"), path("b/third")).unwrap();
        assert_eq!((links("b/sub"), links("b/third")), (2, 2));
        fs::remove_file(path("b/second")).unwrap();
        assert_eq!(fs::read_dir(path("b")).unwrap().count(), 2);
    });
}

/// No entry gets the name of the control directory, or of the link to it, and neither name can be removed.
#[test]
fn creating_or_removing_control_directory_names_is_refused() {
    two_mounts(|one, _| {
        fs::create_dir(one.join("d")).unwrap();
        fs::write(one.join("f"), "keep").unwrap();
        let refused = |result: std::io::Result<()>| {
            let code = result.unwrap_err().raw_os_error();
            let codes = [
                libc::EPERM,
                libc::EEXIST,
                libc::ENOTEMPTY,
                libc::ENOTDIR,
                libc::EISDIR,
            ];
            assert!(codes.contains(&code.unwrap()), "{code:?}");
        };
        for name in [".tidemill", ".analyzethis"] {
            let path = one.join(name);
            for mine in ["d", "f"] {
                let mine = one.join(mine);
                refused(fs::rename(&mine, &path));
                refused(fs::rename(&path, &mine));
                let exchange = RenameFlags::EXCHANGE;
                refused(
                    rustix::fs::renameat_with(CWD, &mine, CWD, &path, exchange).map_err(Into::into),
                );
            }
            refused(fs::create_dir(&path));
            refused(fs::hard_link(one.join("f"), &path));
            refused(std::os::unix::fs::symlink("f", &path));
            refused(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(&path)
                    .map(drop),
            );
            refused(fs::remove_dir(&path));
            refused(fs::remove_file(&path));
            // Elsewhere these names are allowed.
            fs::write(one.join("d").join(name), "mine").unwrap();
            refused(fs::rename(one.join("d").join(name), &path));
        }
        assert_eq!(fs::read(one.join("f")).unwrap(), b"keep");
        assert_eq!(fs::read_dir(one.join("d")).unwrap().count(), 2);
        assert!(one.join(".tidemill/nodes").is_dir());
    });
}

const DIRECTORIES: usize = 8;
const FILES: usize = 150;
const FILES_IN_MEMORY: usize = 300;

fn numbered(directory: usize, file: usize) -> String {
    format!("d{directory}/{file:04}")
}

/// Makes many files with their names as content. Returns one open file for each directory.
fn make_files(mounted: &Mounted) -> Vec<(File, String)> {
    let directories = (0..DIRECTORIES).map(|directory| {
        fs::create_dir(mounted.join(format!("d{directory}"))).unwrap();
        for file in 0..FILES {
            let name = numbered(directory, file);
            fs::write(mounted.join(&name), name).unwrap();
        }
        let name = numbered(directory, FILES);
        let mut file = File::create(mounted.join(&name)).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        (file, name)
    });
    directories.collect()
}

fn wait_for_few(mounted: &Mounted) {
    let begun = std::time::Instant::now();
    while mounted.cached_files() > FILES_IN_MEMORY {
        let count = mounted.cached_files();
        assert!(begun.elapsed().as_secs() < 30, "{count} files");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Above its limit, a mount forgets files that nobody has open, and nothing else changes. Another mount replaces, removes and renames files
/// that this mount has forgotten.
#[test]
fn mount_forgets_files_above_limit() {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        let mut cluster = MountCluster::start();
        let one = cluster.mount_with(cluster.endpoint(), |config| {
            config.in_place = in_place;
            config.cached_files = FILES_IN_MEMORY;
        });
        let two = cluster.mount(true);
        let mut open = make_files(&one);
        wait_for_few(&one);
        fs::write(two.join(numbered(0, 0)), "other").unwrap();
        fs::remove_file(two.join(numbered(0, 1))).unwrap();
        fs::rename(two.join(numbered(0, 2)), two.join("d0/renamed")).unwrap();
        let read = |name: &str| fs::read_to_string(one.join(name));
        for directory in 0..DIRECTORIES {
            for file in (0..FILES).skip(if directory == 0 { 3 } else { 0 }) {
                let name = numbered(directory, file);
                assert_eq!(read(&name).unwrap(), name);
            }
            let listed = fs::read_dir(one.join(format!("d{directory}"))).unwrap();
            let expected = FILES + 1 - usize::from(directory == 0);
            assert_eq!(listed.count(), expected, "d{directory}");
        }
        assert_eq!(read(&numbered(0, 0)).unwrap(), "other");
        for gone in [numbered(0, 1), numbered(0, 2)] {
            assert_eq!(read(&gone).unwrap_err().kind(), ErrorKind::NotFound);
        }
        assert_eq!(read("d0/renamed").unwrap(), numbered(0, 2));
        wait_for_few(&one);
        for (file, name) in &mut open {
            file.write_all(b" more").unwrap();
            let (here, named) = (file.metadata().unwrap(), fs::metadata(one.join(&name)));
            let named = named.unwrap();
            assert_eq!((here.ino(), here.len()), (named.ino(), named.len()));
        }
        drop(open);
        let last = numbered(1, FILES);
        assert_eq!(read(&last).unwrap(), format!("{last} more"));
        fs::create_dir(one.join("d1/new")).unwrap();
        assert!(fs::metadata(one.join("d1/missing")).is_err());
        fs::remove_dir_all(one.join("d1")).unwrap();
        assert!(fs::metadata(two.join("d1")).is_err());
    }
}
