//! Tests of mountpoints: they are refused if a mount would hide files, unmounted only by their own mount, and protected from writes while
//! nothing is mounted.

#![allow(
    clippy::unwrap_used,
    reason = "a test that can't do what it needs fails"
)]

use crate::cluster::{MountCluster, can_mount, require};
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tidemill_mount::mountpoint::{self, give_back};

fn mounts(path: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = format!(" {} ", path.display());
    table.lines().filter(|line| line.contains(&path)).count()
}

/// A mountpoint in use is refused, and its mount continues to work.
#[test]
fn mount_on_used_mountpoint_is_refused() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let one = cluster.mount(true);
    fs::write(one.join("f"), "here").unwrap();
    let refused = cluster.try_mount(one.path()).unwrap_err();
    assert!(refused.is(Errno::BUSY), "{refused}");
    assert!(refused.to_string().contains("already"), "{refused}");
    assert_eq!(mounts(one.path()), 1);
    assert_eq!(fs::read(one.join("f")).unwrap(), b"here");
}

/// A mount never removes foreign mounts: neither a mount on top of it, nor a mount in its place.
#[test]
fn unmount_removes_only_own_mount() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let one = cluster.mount(true);
    let path = one.path().to_owned();
    let other = |path: &Path| {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("other", path, "tmpfs", flags, None).unwrap();
    };
    let unmount = |path: &Path| {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    };
    // On top of it.
    other(&path);
    let left = one.try_unmount().unwrap_err();
    assert!(left.to_string().contains("other"), "{left}");
    assert_eq!(mounts(&path), 2);
    unmount(&path);
    unmount(&path);
    give_back(&path).unwrap();
    // In its place.
    let two = cluster.mount(true);
    let path = two.path().to_owned();
    unmount(&path);
    other(&path);
    two.try_unmount().unwrap();
    assert_eq!(mounts(&path), 1);
    unmount(&path);
    give_back(&path).unwrap();
}

/// The bare directory of a detached mount refuses files. After an orderly end, the directory can be removed.
#[test]
fn bare_directory_refuses_files_until_orderly_unmount() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let one = cluster.mount(true);
    let path = one.path().to_owned();
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    let directory = File::open(&path).unwrap();
    let flags = rustix::fs::ioctl_getflags(&directory);
    if flags.is_ok_and(|flags| flags.contains(rustix::fs::IFlags::IMMUTABLE)) {
        let refused = fs::write(path.join("lost"), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    } else {
        require::tell("directories can't be made immutable here");
    }
    let mode = rustix::fs::statat(CWD, &path, AtFlags::empty())
        .unwrap()
        .st_mode;
    assert_eq!(mode & 0o222, 0);
    drop(one);
    // The directory can be mounted on again.
    let again = cluster.try_mount(&path).unwrap();
    fs::write(again.join("f"), "x").unwrap();
    again.unmount();
    fs::write(path.join("found"), "x").unwrap();
    let refused = cluster.try_mount(&path).unwrap_err();
    assert!(refused.is(Errno::NOTEMPTY), "{refused}");
    assert!(refused.to_string().contains("found"), "{refused}");
    fs::remove_dir_all(&path).unwrap();
}

/// The mount was killed and cannot end, or was stopped, so every request to it waits forever. A new mount on the same path gets an error.
#[test]
fn unresponsive_mountpoint_is_refused_without_blocking() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mnt");
    assert!(!mountpoint::is_there(&path));
    fs::create_dir(&path).unwrap();
    let mut options = File::options();
    let fuse = options.read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        fuse.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(
        "tidemill",
        &path,
        "fuse.tidemill",
        flags,
        Some(data.as_c_str()),
    )
    .unwrap();
    let (sender, reported) = mpsc::channel();
    let mountpoint = path.clone();
    let asking = std::thread::spawn(move || {
        let there = mountpoint::is_there(&mountpoint);
        let refused = mountpoint::check(&mountpoint);
        let given_back = give_back(&mountpoint);
        sender.send((there, refused, given_back)).unwrap();
    });
    let reported = reported.recv_timeout(Duration::from_secs(120));
    // The waiting threads continue when no process can answer any more.
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    drop(fuse);
    let (there, refused, given_back) =
        reported.expect("the call waits for a mount that never answers");
    asking.join().unwrap();
    assert!(there);
    given_back.unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.is(Errno::BUSY), "{refused}");
}
