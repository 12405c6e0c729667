//! `loopback SOURCE MOUNTPOINT [--plain]`: shows the directory SOURCE at MOUNTPOINT, and does nothing else.
//!
//! Peer for measurements of the mount. It has the same library, one thread, and kernel passthrough for data (except with
//! `--plain`). Each operation is one system call on the directory below, without checks. Inodes are paths in a table.

use fuser::{
    BackingId, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const TTL: Duration = Duration::from_secs(60);
const O_ACCMODE: i32 = 3;

struct Loopback {
    plain: bool,
    table: Mutex<Table>,
}

struct Table {
    paths: HashMap<u64, PathBuf>,
    open: HashMap<u64, (File, Option<Arc<BackingId>>)>,
    listings: HashMap<u64, Vec<OsString>>,
    next_handle: u64,
}

impl Loopback {
    fn new(root: PathBuf, plain: bool) -> Self {
        let paths = HashMap::from([(1, root)]);
        let table = Table {
            paths,
            open: HashMap::new(),
            listings: HashMap::new(),
            next_handle: 1,
        };
        Self {
            plain,
            table: Mutex::new(table),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, ino: INodeNo) -> Result<PathBuf, Errno> {
        self.table().paths.get(&ino.0).cloned().ok_or(Errno::ENOENT)
    }

    fn entry(&self, path: PathBuf) -> Result<FileAttr, Errno> {
        let attr = attr(&path.symlink_metadata()?);
        self.table().paths.insert(attr.ino.0, path);
        Ok(attr)
    }

    fn keep(&self, file: File, backing: Option<Arc<BackingId>>) -> FileHandle {
        let mut table = self.table();
        let handle = table.next_handle;
        table.next_handle += 1;
        table.open.insert(handle, (file, backing));
        FileHandle(handle)
    }

    fn names(&self, ino: INodeNo, handle: FileHandle) -> Result<Vec<OsString>, Errno> {
        if let Some(names) = self.table().listings.get(&handle.0) {
            return Ok(names.clone());
        }
        let names: Result<Vec<_>, std::io::Error> = std::fs::read_dir(self.path(ino)?)?
            .map(|entry| Ok(entry?.file_name()))
            .collect();
        let names = names?;
        self.table().listings.insert(handle.0, names.clone());
        Ok(names)
    }
}

fn attr(metadata: &Metadata) -> FileAttr {
    let kind = metadata.file_type();
    let kind = if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else {
        FileType::RegularFile
    };
    FileAttr {
        ino: INodeNo(if metadata.ino() == 1 {
            2
        } else {
            metadata.ino()
        }),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
        mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Replies with the value, or with the error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

impl Filesystem for Loopback {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if !self.plain {
            let wanted = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
            config
                .add_capabilities(wanted)
                .map_err(|_| std::io::Error::other("no passthrough here"))?;
            config
                .set_max_stack_depth(1)
                .map_err(|_| std::io::Error::other("no stacking here"))?;
        }
        let rest = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        config
            .add_capabilities(rest)
            .map_err(|_| std::io::Error::other("kernel too old"))
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self
            .path(parent)
            .and_then(|path| self.entry(path.join(name)));
        answer!(reply, found, attr => reply.entry(&TTL, &attr, Generation(0)));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = self
            .path(ino)
            .and_then(|path| Ok(attr(&path.symlink_metadata()?)));
        answer!(reply, found, attr => reply.attr(&TTL, &attr));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self.path(ino).and_then(|path| {
            if let Some(size) = size {
                File::options().write(true).open(&path)?.set_len(size)?;
            }
            Ok(attr(&path.symlink_metadata()?))
        });
        answer!(reply, set, attr => reply.attr(&TTL, &attr));
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.path(parent).and_then(|path| {
            std::fs::create_dir(path.join(name))?;
            self.entry(path.join(name))
        });
        answer!(reply, made, attr => reply.entry(&TTL, &attr, Generation(0)));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone = self
            .path(parent)
            .and_then(|path| Ok(std::fs::remove_file(path.join(name))?));
        answer!(reply, gone, () => reply.ok());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone = self
            .path(parent)
            .and_then(|path| Ok(std::fs::remove_dir(path.join(name))?));
        answer!(reply, gone, () => reply.ok());
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.path(parent).and_then(|path| {
            let path = path.join(name);
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(mode)
                .open(&path)?;
            Ok((file, self.entry(path)?))
        });
        answer!(reply, made, (file, attr) => {
            if self.plain {
                let handle = self.keep(file, None);
                return reply.created(&TTL, &attr, Generation(0), handle, FopenFlags::empty());
            }
            match reply.open_backing(&file) {
                Ok(id) => {
                    let id = Arc::new(id);
                    let handle = self.keep(file, Some(id.clone()));
                    reply.created_passthrough(&TTL, &attr, Generation(0), handle, FopenFlags::empty(), &id);
                }
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.0 & O_ACCMODE != 0;
        let truncate = flags.0 & 0o1000 != 0;
        let opened = self.path(ino).and_then(|path| {
            Ok(File::options()
                .read(true)
                .write(write)
                .truncate(truncate && write)
                .open(path)?)
        });
        answer!(reply, opened, file => {
            if self.plain {
                return reply.opened(self.keep(file, None), FopenFlags::FOPEN_KEEP_CACHE);
            }
            match reply.open_backing(&file) {
                Ok(id) => {
                    let id = Arc::new(id);
                    let handle = self.keep(file, Some(id.clone()));
                    reply.opened_passthrough(handle, FopenFlags::empty(), &id);
                }
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let table = self.table();
        let mut buffer = vec![0; size as usize];
        let read = table.open.get(&fh.0).ok_or(Errno::EBADF);
        let read = read.and_then(|(file, _)| Ok(file.read_at(&mut buffer, offset)?));
        answer!(reply, read, count => reply.data(&buffer[..count]));
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let table = self.table();
        let written = table.open.get(&fh.0).ok_or(Errno::EBADF);
        let written = written.and_then(|(file, _)| Ok(file.write_all_at(data, offset)?));
        answer!(reply, written, () => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)));
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.table().open.remove(&fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let mut table = self.table();
        let handle = table.next_handle;
        table.next_handle += 1;
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.table().listings.remove(&fh.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        answer!(reply, self.names(ino, fh), names => {
            let rest = names.iter().zip(1u64..).skip(usize::try_from(offset).unwrap_or(usize::MAX));
            for (name, next) in rest {
                if reply.add(INodeNo(2), next, FileType::RegularFile, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self
            .path(ino)
            .and_then(|path| Ok((path, self.names(ino, fh)?)));
        answer!(reply, listed, (path, names) => {
            let rest = names.iter().zip(1u64..).skip(usize::try_from(offset).unwrap_or(usize::MAX));
            for (name, next) in rest {
                let Ok(attr) = self.entry(path.join(name)) else { continue };
                if reply.add(attr.ino, next, name, &TTL, &attr, Generation(0)) {
                    break;
                }
            }
            reply.ok();
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (source, mountpoint) = match args.as_slice() {
        [source, mountpoint, ..] => (PathBuf::from(source), Path::new(mountpoint)),
        _ => return Err("usage: loopback SOURCE MOUNTPOINT [--plain]".into()),
    };
    let plain = args.iter().any(|arg| arg == "--plain");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("loopback".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    fuser::mount(Loopback::new(source, plain), mountpoint, &config)?;
    Ok(())
}
