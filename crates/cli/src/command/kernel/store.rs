//! `tidemill kernel add`, `list` and `delete`: kernels of one's own in the cluster, see `tidemill_model::user_kernels`.

use super::NO_WASM;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::Message;
use crate::output::files::kind;
use crate::output::kernel::StoredKernel;
use crate::output::messages::{AddedKernel, DeletedKernels};
use anyhow::Context as _;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_client::transfer::{PutOptions, Transfer};
use tidemill_model::user_kernels::{self, OwnName};
use tidemill_sandbox::hash_file;
use tidemill_wire::v1::{self, name_op::Op};

/// Modes of a kernel that only its owner may use, and of a kernel for all users.
const PRIVATE: u32 = 0o700;
const SHARED: u32 = 0o755;

/// Maximum number of attempts to take a version's number that another user takes first.
const TRIES: u32 = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct AddKernel {
    /// A shared object (`.so`), a module (`.wasm`), a program or a script
    file: PathBuf,
    /// Name of the kernel, without a version [default: the name of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Allow all users to read and use the kernel [default: only you]
    #[arg(long)]
    shared: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeleteKernels {
    /// A kernel of your own: NAME for all its versions, NAME@2 for one version
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Returns the kernels that users have stored: the caller's, or those of all users.
pub(crate) async fn kept(context: &CommandContext, all: bool) -> anyhow::Result<Vec<StoredKernel>> {
    let server = context.connect().await?;
    let me = credentials().uid;
    let mut uids = vec![me];
    if all && let Ok(directory) = files::inode(&server, user_kernels::DIRECTORY).await {
        let users = files::list(&server, directory).await?;
        let number = |entry: &v1::Entry| std::str::from_utf8(&entry.name).ok()?.parse().ok();
        uids = users.iter().filter_map(number).collect();
    }
    let transfer = Transfer::new(server.clone(), credentials());
    let scratch = tempfile::tempdir()?;
    let mut kept = Vec::new();
    for uid in uids {
        for mut one in of_user(&server, uid).await? {
            let copy = scratch.path().join("kernel");
            // A kernel that may not be read may still be listed.
            if transfer.get(&one.path, &copy, |_| ()).await.is_ok() {
                one.hash = Some(hash_file(&copy)?);
            }
            kept.push(one);
        }
    }
    Ok(kept)
}

/// Returns the kernels in a user's directory, in the order of names and versions.
async fn of_user(server: &Server, uid: u32) -> anyhow::Result<Vec<StoredKernel>> {
    let directory = match files::inode(server, &format!("{}/{uid}", user_kernels::DIRECTORY)).await
    {
        Err(error) if error.is(Errno::NOENT) => return Ok(Vec::new()),
        found => found?,
    };
    let mut kept: Vec<StoredKernel> = files::list(server, directory)
        .await?
        .into_iter()
        .filter(|entry| kind(entry) == v1::Kind::File)
        .filter_map(|entry| {
            let attr = entry.attr?;
            let file = String::from_utf8(entry.name).ok()?;
            OwnName::parse(&file).version?;
            let facts = (uid, attr.mode, attr.size);
            Some(StoredKernel::new(user_kernels::DIRECTORY, file, facts))
        })
        .collect();
    kept.sort_by_cached_key(|one| {
        let name = OwnName::parse(&one.file);
        (name.stem.to_owned(), name.ending, name.version)
    });
    Ok(kept)
}

pub(crate) async fn add(add: AddKernel, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let text = match &add.name {
        Some(name) => name.clone(),
        None => {
            let name = add.file.file_name().and_then(|name| name.to_str());
            name.context("the file has no name in UTF-8; give one with --name")?
                .to_owned()
        }
    };
    let source = fs::metadata(&add.file).with_context(|| add.file.display().to_string())?;
    let file_name = add.file.to_string_lossy();
    let mut name = OwnName::parse(&text);
    if name.ending.is_empty() {
        name.ending = OwnName::parse(&file_name).ending;
    }
    anyhow::ensure!(
        name.is_valid() && name.version.is_none(),
        "bad name: {text}; a kernel's name is no path, does not begin with a dot and has no version, because the cluster numbers the versions"
    );
    anyhow::ensure!(source.is_file(), "not a file: {file_name}");
    anyhow::ensure!(
        cfg!(feature = "wasm") || !name.ending.ends_with("wasm"),
        "{file_name}: {NO_WASM}"
    );
    anyhow::ensure!(
        !name.ending.is_empty() || source.permissions().mode() & 0o111 != 0,
        "not executable: {file_name}; run `chmod +x` on it, or give a shared object (.so) or a module (.wasm)"
    );
    let server = context.connect().await?;
    let directory = make_directory(&server).await?;
    let mode = if add.shared { SHARED } else { PRIVATE };
    let scratch = tempfile::tempdir()?;
    let copy = scratch.path().join("kernel");
    fs::copy(&add.file, &copy).with_context(|| file_name.to_string())?;
    fs::set_permissions(&copy, Permissions::from_mode(mode))?;
    let store = KernelUpload {
        transfer: Transfer::new(server.clone(), credentials()),
        server,
        directory,
        mode,
    };
    let (path, new) = store.add(&name, &copy).await?;
    let hash = hash_file(&copy)?;
    let text = if new {
        format!("{path} added")
    } else {
        format!("{path} has this content already")
    };
    let shared = add.shared;
    context.output.finish(&Message(
        text,
        AddedKernel {
            path,
            new,
            hash,
            shared,
        },
    ))
}

/// Returns the inode of the caller's directory of kernels, and makes the directory if it is missing.
async fn make_directory(server: &Server) -> anyhow::Result<u64> {
    let me = credentials();
    let path = format!("{}/{}", user_kernels::DIRECTORY, me.uid);
    let found = match files::find(server, &path, false).await {
        Err(error) if error.is(Errno::NOENT) => {
            let (ino, _) = server.reserve(1, 0).await?;
            let create = v1::Create {
                name: path.as_bytes().to_vec(),
                kind: v1::Kind::Directory.into(),
                // The mode does not depend on the caller's umask: a directory that others can write to is not trusted.
                mode: SHARED,
                ino: ino.0,
                uid: me.uid,
                gid: me.gid,
                ..v1::Create::default()
            };
            server.one(&me, Op::Create(create)).await?;
            files::resolve(server, &path, false).await?
        }
        found => found?,
    };
    let attr = found.attr.unwrap_or_default();
    anyhow::ensure!(
        attr.kind() == v1::Kind::Directory && attr.uid == me.uid && attr.mode & 0o022 == 0,
        "{path} is not a directory that you own and that only you can write to, so kernels in it are not used; remove the write \
         permission of others, or have the administrator remove the directory"
    );
    Ok(attr.ino)
}

/// Adding one kernel.
struct KernelUpload {
    server: Server,
    transfer: Transfer,
    directory: u64,
    mode: u32,
}

impl KernelUpload {
    /// Returns the path of the kernel, and whether it is a new version.
    async fn add(&self, name: &OwnName<'_>, local: &Path) -> anyhow::Result<(String, bool)> {
        let uid = credentials().uid;
        let path = |file: &str| format!("{}/{uid}/{file}", user_kernels::DIRECTORY);
        // The file gets its name when it is complete, and never replaces another file.
        let new = format!(".new-{}-{}", std::process::id(), by_chance());
        let mut sent = false;
        for _ in 0..TRIES {
            let kept = of_user(&self.server, uid).await?;
            let newest = name.newest(kept.iter().map(|one| one.file.as_str()));
            if let Some(newest) = newest {
                let same = self.is_same(&path(newest), local).await?;
                if same {
                    self.remove_upload(&new, sent).await?;
                    self.set_mode(&path(newest)).await?;
                    return Ok((path(newest), false));
                }
            }
            if !sent {
                self.transfer
                    .put(local, &path(&new), PutOptions::default(), |_| ())
                    .await?;
                sent = true;
            }
            let before = newest.and_then(|file| OwnName::parse(file).version);
            let file = name.file(before.unwrap_or(0) + 1);
            let rename = v1::Rename {
                parent: self.directory,
                name: new.as_bytes().to_vec(),
                new_parent: self.directory,
                new_name: file.as_bytes().to_vec(),
                no_replace: true,
                ..v1::Rename::default()
            };
            match self.server.one(&credentials(), Op::Rename(rename)).await {
                Err(error) if error.is(Errno::EXIST) => {}
                renamed => {
                    renamed?;
                    return Ok((path(&file), true));
                }
            }
        }
        self.remove_upload(&new, sent).await?;
        anyhow::bail!(
            "kernel {}: other commands add versions at the same time; try again",
            name.stem
        )
    }

    async fn is_same(&self, path: &str, local: &Path) -> anyhow::Result<bool> {
        let there = files::resolve(&self.server, path, false).await?;
        let size = there.attr.map_or(0, |attr| attr.size);
        if size != fs::metadata(local)?.len() {
            return Ok(false);
        }
        let scratch = tempfile::NamedTempFile::new()?;
        self.transfer.get(path, scratch.path(), |_| ()).await?;
        Ok(hash_file(scratch.path())? == hash_file(local)?)
    }

    async fn set_mode(&self, path: &str) -> anyhow::Result<()> {
        let set = v1::SetAttr {
            ino: files::inode(&self.server, path).await?,
            mode: Some(self.mode),
            ..v1::SetAttr::default()
        };
        self.server.one(&credentials(), Op::SetAttr(set)).await?;
        Ok(())
    }

    async fn remove_upload(&self, name: &str, sent: bool) -> anyhow::Result<()> {
        if sent {
            unlink(&self.server, self.directory, name).await?;
        }
        Ok(())
    }
}

/// Returns a name that no other call uses at this moment.
fn by_chance() -> u64 {
    StdRng::from_os_rng().random()
}

async fn unlink(server: &Server, directory: u64, name: &str) -> anyhow::Result<()> {
    let unlink = v1::Unlink {
        parent: directory,
        name: name.as_bytes().to_vec(),
        directory: false,
        time: 0,
    };
    server.one(&credentials(), Op::Unlink(unlink)).await?;
    Ok(())
}

pub(crate) async fn delete(
    args: DeleteKernels,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let uid = credentials().uid;
    let mut deleted = Vec::new();
    for text in &args.names {
        let kept = of_user(&server, uid).await?;
        let all: Vec<&str> = kept.iter().map(|one| one.file.as_str()).collect();
        let name = OwnName::parse(text);
        let Some(meant) = name.pick(all.iter().copied()) else {
            anyhow::bail!(
                "kernel {text}: you have no kernel of this name; see `tidemill kernel list`"
            );
        };
        let meant = OwnName::parse(meant);
        let directory =
            files::inode(&server, &format!("{}/{uid}", user_kernels::DIRECTORY)).await?;
        for file in all {
            let this = OwnName::parse(file);
            let same = this.stem == meant.stem && this.ending == meant.ending;
            if same && (name.version.is_none() || this.version == meant.version) {
                unlink(&server, directory, file).await?;
                deleted.push(file.to_owned());
            }
        }
    }
    let text = format!("deleted: {}", deleted.join(", "));
    context
        .output
        .show(&Message(text, DeletedKernels { deleted }))?;
    Ok(ExitCode::SUCCESS)
}
