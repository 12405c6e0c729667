//! Finds other processes on this host that have a file open or mapped, from `/proc`.
//!
//! A program of this cluster that has a file open holds a lock (`tidemill_client::sealed`). This module finds all other processes, such as
//! a `cp` out of a node's directory. The module reads no file system but `/proc`, so it cannot hang.

use std::collections::HashMap;
use std::fs::{File, read_dir, read_to_string};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Process id of the first process of the host, which starts others and reads no objects.
const INIT: u32 = 1;

/// Identity of a file, as `/proc` shows it.
struct ProcInode {
    inode: u64,
    /// Major and minor device number of the file's file system.
    device: (u32, u32),
    /// Device numbers of the mounts that this process sees, by the mount's id.
    mounts: HashMap<u64, (u32, u32)>,
}

/// Whether another process has the file open or mapped. A process that this process cannot examine counts as having the file open.
pub(super) fn held_by_others(file: &File) -> bool {
    search(file).unwrap_or_else(|error| {
        tracing::debug!("can't see who has a file open: {error}");
        true
    })
}

fn search(file: &File) -> io::Result<bool> {
    let mounts = mounts()?;
    let own = read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let device = field(&own, "mnt_id:").and_then(|id| mounts.get(&id));
    let wanted = ProcInode {
        inode: file.metadata()?.ino(),
        device: *device.ok_or(io::ErrorKind::NotFound)?,
        mounts,
    };
    for entry in read_dir("/proc")? {
        let name = entry?.file_name();
        let process: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
        let Some(process) = process.filter(|&process| process != std::process::id()) else {
            continue;
        };
        match wanted.held_by(process) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            // In a container the first process may have more rights than root here, and cannot be examined.
            Err(error) if process == INIT && error.kind() == io::ErrorKind::PermissionDenied => {}
            // The process has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

impl ProcInode {
    fn held_by(&self, process: u32) -> io::Result<bool> {
        for entry in read_dir(format!("/proc/{process}/fdinfo"))? {
            match read_to_string(entry?.path()) {
                Ok(info) if self.is_open_as(&info)? => return Ok(true),
                Ok(_) => {}
                // The descriptor was closed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let maps = std::fs::read(format!("/proc/{process}/maps"))?;
        let mut lines = maps.split(|&byte| byte == b'\n');
        Ok(lines.any(|line| self.is_mapped_by(&String::from_utf8_lossy(line))))
    }

    fn is_open_as(&self, info: &str) -> io::Result<bool> {
        let inode = field(info, "ino:").ok_or(io::ErrorKind::Unsupported)?;
        if inode != self.inode {
            return Ok(false);
        }
        let mount = field(info, "mnt_id:").ok_or(io::ErrorKind::Unsupported)?;
        // A mount of another namespace may be of any device.
        let device = self.mounts.get(&mount);
        Ok(device.is_none_or(|device| *device == self.device))
    }

    /// Whether a line of `maps` names the file: addresses, permissions, offset, device, inode, path.
    fn is_mapped_by(&self, line: &str) -> bool {
        let mut words = line.split_ascii_whitespace().skip(3);
        let (device, inode) = (words.next(), words.next());
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let device = device
            .and_then(|text| text.split_once(':'))
            .and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        device == Some(self.device) && inode.and_then(|text| text.parse().ok()) == Some(self.inode)
    }
}

fn field(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Returns the device of each mount by its id.
fn mounts() -> io::Result<HashMap<u64, (u32, u32)>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let text = String::from_utf8_lossy(&text);
    let mount = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (id, device) = (words.next()?, words.nth(1)?);
        let (major, minor) = device.split_once(':')?;
        Some((id.parse().ok()?, (major.parse().ok()?, minor.parse().ok()?)))
    };
    Ok(text.lines().filter_map(mount).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn file_open_in_another_process_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "text").unwrap();
        let file = File::open(&path).unwrap();
        if search(&file).is_err() {
            eprintln!("SKIPPED: not all processes can be seen here");
            return;
        }
        assert!(!held_by_others(&file));
        let mut other = Command::new("sh")
            .arg("-c")
            .arg("exec 3<\"$0\"; echo open; read line; exec 3<&-; echo closed; read line")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reported = BufReader::new(other.stdout.take().unwrap());
        let mut say = other.stdin.take().unwrap();
        let mut line = String::new();
        reported.read_line(&mut line).unwrap();
        assert!(held_by_others(&file));
        writeln!(say).unwrap();
        reported.read_line(&mut line).unwrap();
        assert_eq!(line, "open\nclosed\n");
        assert!(!held_by_others(&file));
        drop(say);
        other.wait().unwrap();
    }

    #[test]
    fn maps_line_matches_inode_and_device() {
        let wanted = ProcInode {
            inode: 247_278,
            device: (254, 0),
            mounts: HashMap::new(),
        };
        let line = |rest| format!("555c58434000-555c58436000 r--p 00000000 {rest}");
        assert!(wanted.is_mapped_by(&line("fe:00 247278     /usr/bin/head")));
        assert!(!wanted.is_mapped_by(&line("fe:01 247278     /usr/bin/head")));
        assert!(!wanted.is_mapped_by(&line("fe:00 247279     /usr/bin/head")));
        assert!(!wanted.is_mapped_by("7ffd0-7ffe0 rw-p 00000000 00:00 0 [stack]"));
    }
}
