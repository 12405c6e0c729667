//! Checks whether a program can use a library. The kind of the program is read from its file before it starts.

use anyhow::{Context as _, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum number of bytes of a script's first line.
const LINE_BYTES_MAX: u64 = 256;
/// Maximum depth of interpreters of interpreters.
const DEPTH_MAX: u32 = 4;
/// Maximum number of entries that are read of a program's table.
const TABLE_MAX: u16 = 4096;
/// Maximum number of bytes of the names of a program's sections.
const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Set-user-id and set-group-id.
const PRIVILEGES: u32 = 0o6000;
/// Kind of the entry of the segment table that names the loader.
const INTERPRETER: u32 = 3;

/// File of a program.
#[derive(Debug)]
pub(super) struct ProgramFile {
    path: PathBuf,
}

impl ProgramFile {
    /// Returns the path of the program with this name.
    pub(super) fn find(name: &OsStr) -> anyhow::Result<Self> {
        let given = Path::new(name);
        if given.components().count() > 1 || given.is_absolute() {
            return Ok(Self { path: given.into() });
        }
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let found = std::env::split_paths(&path)
            .map(|directory| directory.join(given))
            .find(|path| {
                path.metadata()
                    .is_ok_and(|stat| stat.is_file() && stat.mode() & 0o111 != 0)
            });
        let path = found.with_context(|| format!("no program {} in PATH", given.display()))?;
        Ok(Self { path })
    }

    /// Fails if the program does not use the functions of the C library, or may not load a library.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.check_at(0)
    }

    fn check_at(&self, depth: u32) -> anyhow::Result<()> {
        let shown = self.path.display();
        let file = File::open(&self.path);
        let file = match file {
            // A file that can't be read can still run.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
            file => file.with_context(|| format!("can't run {shown}"))?,
        };
        let stat = file.metadata()?;
        if stat.mode() & PRIVILEGES != 0 && stat.uid() != rustix::process::geteuid().as_raw() {
            bail!(
                "{shown} runs with the rights of another user (set-user-id), so the system gives it no library of \
                 yours: it would not find the cluster; run it on a mount"
            );
        }
        let mut head = Vec::new();
        (&file).take(LINE_BYTES_MAX).read_to_end(&mut head)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line);
            let Some(name) = line.split_ascii_whitespace().next() else {
                return Ok(());
            };
            anyhow::ensure!(depth < DEPTH_MAX, "{shown}: too many interpreters");
            let interpreter = Self { path: name.into() };
            return interpreter
                .check_at(depth + 1)
                .with_context(|| format!("{shown} is run by {name}"));
        }
        if head.starts_with(b"\x7fELF") {
            return Elf { file: &file }.check(&self.path);
        }
        // A script without a first line, or a kind of program that only the system knows.
        Ok(())
    }
}

/// A program as the system loads it.
struct Elf<'a> {
    file: &'a File,
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let mut value = [0; 8];
    value[..width].copy_from_slice(bytes.get(at..at + width)?);
    Some(u64::from_le_bytes(value))
}

impl Elf<'_> {
    fn read(&self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let mut buffer = vec![0; usize::try_from(bytes).ok()?];
        self.file.read_exact_at(&mut buffer, at).ok()?;
        Some(buffer)
    }

    fn check(&self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        // The system decides about files of unknown kind.
        let Some(head) = self.read(0, 64) else {
            return Ok(());
        };
        let native = if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        };
        if head[4] != 2 || head[5] != 1 || number(&head, 18, 2) != Some(native) {
            bail!(
                "{shown} is for another kind of machine than this library (64 bits of this one): it would not find \
                 the cluster; run it on a mount"
            );
        }
        if self.is_go(&head).unwrap_or(false) {
            bail!(
                "{shown} is a Go program, which asks the system without the C library: it would not find the cluster; \
                 run it on a mount"
            );
        }
        match self.loader(&head) {
            None => bail!(
                "{shown} is linked statically, so nothing can be loaded into it: it would not find the cluster; run it \
                 on a mount, or link it dynamically"
            ),
            Some(loader) if loader.contains("musl") => bail!(
                "{shown} uses the C library musl, this library GNU's: it can't be loaded; run it on a mount"
            ),
            Some(_) => Ok(()),
        }
    }

    /// Returns the loader that the program names, if any.
    fn loader(&self, head: &[u8]) -> Option<String> {
        let (at, size) = (number(head, 32, 8)?, number(head, 54, 2)?);
        let count = number(head, 56, 2)?.min(TABLE_MAX.into());
        let table = self.read(at, size * count)?;
        let entries = table.chunks_exact(usize::try_from(size).ok().filter(|&size| size > 0)?);
        let named = |entry: &[u8]| number(entry, 0, 4) == Some(INTERPRETER.into());
        let entry = entries.into_iter().find(|entry| named(entry))?;
        let (at, bytes) = (number(entry, 8, 8)?, number(entry, 32, 8)?);
        let name = self.read(at, bytes.min(LINE_BYTES_MAX))?;
        Some(String::from_utf8_lossy(&name).into_owned())
    }

    /// Returns whether one of its sections is one that only Go's linker makes.
    fn is_go(&self, head: &[u8]) -> Option<bool> {
        let (at, size) = (number(head, 40, 8)?, number(head, 58, 2)?);
        let count = number(head, 60, 2)?.min(TABLE_MAX.into());
        let names = number(head, 62, 2)?;
        let table = self.read(at, size * count)?;
        let from = usize::try_from(names * size).ok()?;
        let entry = table.get(from..)?;
        let (at, bytes) = (number(entry, 24, 8)?, number(entry, 32, 8)?);
        let names = self.read(at, bytes.min(NAMES_BYTES_MAX))?;
        let mut names = names.split(|&byte| byte == 0);
        Some(names.any(|name| name == b".go.buildinfo"))
    }
}
