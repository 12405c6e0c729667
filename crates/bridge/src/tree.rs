//! Stores that are trees of folders on a server, by protocols that OpenDAL has not, or not so that nothing half is seen. A file is
//! written under another name and gets its own in one step. What a protocol has to do for that is [`Files`]; all else is here.

use crate::Error;
use crate::look::{Entry, Seen};
use crate::place::{DEPTH_MAX, NAME_BYTES_MAX, checked, fresh_part_of, is_name, is_part, join};
use crate::remote::endless;
use crate::store::{Listed, Object, Over, PIECE_BYTES, SILENCE};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Names of one folder at most, and pages of a listing that have none, one after the other.
const NAMES_MAX: usize = 10_000_000;
/// And of one listing, with all that is below.
const LISTED_MAX: usize = 100_000_000;
const EMPTY_PAGES_MAX: usize = 100;

/// Times that something is tried which may pass.
const TRIES: u32 = 5;
/// Pause before the second time; it doubles from then on.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// How old a file is at least that nobody writes any more.
const LEFT: Duration = Duration::from_secs(24 * 3600);
/// Folders that one process looks through for such, and names in each.
const SWEPT_FOLDERS_MAX: usize = 1000;
const SWEPT_NAMES_MAX: usize = 10_000;

/// Why a protocol could not do something, and whether it may be otherwise soon.
#[derive(Debug)]
pub(crate) struct Why {
    pub(crate) error: Error,
    pub(crate) passes: bool,
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        let passes = false;
        Self { error, passes }
    }
}

impl Why {
    /// The server could not be asked, or did not answer.
    pub(crate) fn away(path: &str, reason: impl Into<String>) -> Self {
        Self {
            error: Error::Store {
                path: path.to_owned(),
                reason: reason.into(),
            },
            passes: true,
        }
    }
}

pub(crate) type Asked<'a, T> = BoxFuture<'a, Result<T, Why>>;

/// What a protocol can do. Paths are below the store and are [`checked`].
pub(crate) trait Files: Send + Sync {
    /// What is there; of a link the link.
    fn look<'a>(&'a self, path: &'a str) -> Asked<'a, Seen>;
    /// Begins to tell the names of a folder; of the whole store if it is empty.
    fn names<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn Names>>;
    /// A range of this object and no other one.
    fn range<'a>(&'a self, object: &'a Object, from: u64, count: u64) -> Asked<'a, Bytes>;
    /// Makes a file that is not there yet, and the folders above it.
    fn begin<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn Begun>>;
    /// Gives a file another name in one step: in place of what has it, or, unless `over`, if nothing has; else [`Error::Changed`].
    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> Asked<'a, ()>;
    /// Gives a file one more name that nothing has, if the server can.
    fn link<'a>(&'a self, _path: &'a str, _other: &'a str) -> Asked<'a, bool> {
        Box::pin(async { Ok(false) })
    }
    /// Removes a file.
    fn remove<'a>(&'a self, path: &'a str) -> Asked<'a, ()>;
}

/// The names of a folder.
pub(crate) trait Names: Send {
    /// Some more; none at the end.
    fn next(&mut self) -> Asked<'_, Option<Vec<Name>>>;
}

/// A file that is being written.
pub(crate) trait Begun: Send {
    fn write(&mut self, bytes: Bytes) -> Asked<'_, ()>;
    /// All of it is on the server's disk, as far as that can be asked for.
    fn finish(self: Box<Self>) -> Asked<'static, ()>;
}

/// One name of a folder, and what it is, or why it is passed by.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    pub(crate) seen: Result<Seen, &'static str>,
}

/// The folder of a server that is the store.
pub(crate) struct Root(String);

impl Root {
    pub(crate) fn new(path: &str) -> Self {
        Self(path.trim_end_matches('/').to_owned())
    }

    /// What the server calls a path below the store.
    pub(crate) fn full(&self, path: &str) -> String {
        match (self.0.as_str(), path) {
            ("", "") => "/".to_owned(),
            (root, "") => root.to_owned(),
            (root, path) => format!("{root}/{path}"),
        }
    }
}

/// Such a store.
#[derive(Clone)]
pub(crate) struct Tree {
    host: Arc<str>,
    files: Arc<dyn Files>,
    /// Folders that this process has swept.
    swept: Arc<Mutex<BTreeSet<String>>>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("Tree");
        out.field("host", &self.host).finish_non_exhaustive()
    }
}

/// The names of one folder, which go on.
pub(crate) struct Level {
    path: String,
    names: Option<Box<dyn Names>>,
    /// Told by the server, and not yet by this.
    left: std::vec::IntoIter<Name>,
    /// Names that were told, and pages without any, one after the other.
    told: usize,
    empty: usize,
}

/// A file that is written under another name.
pub(crate) struct Writer {
    tree: Tree,
    begun: Option<Box<dyn Begun>>,
    path: String,
    /// Its name until it has its own; none when that is so.
    part: Option<String>,
    over: Over,
    written: u64,
}

/// Does something again that may be otherwise soon.
async fn again<'a, T>(work: impl Fn() -> Asked<'a, T>) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match work().await {
            Err(why) if why.passes => tokio::time::sleep(pause).await,
            done => return done.map_err(|why| why.error),
        }
        pause *= 2;
    }
    work().await.map_err(|why| why.error)
}

/// What a server answers that does so in time.
pub(crate) async fn timely<T>(path: &str, work: impl Future<Output = T>) -> Result<T, Why> {
    let done = tokio::time::timeout(SILENCE, work).await;
    done.map_err(|_| Why::away(path, "no answer in 60 s"))
}

impl Tree {
    pub(crate) fn new(host: &str, files: impl Files + 'static) -> Self {
        Self {
            host: host.into(),
            files: Arc::new(files),
            swept: Arc::default(),
        }
    }

    pub(crate) async fn look(&self, path: &str) -> Result<Seen, Error> {
        again(|| self.files.look(path)).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Object, Error> {
        self.look(path).await?.file(path)
    }

    pub(crate) async fn level(&self, path: &str) -> Result<Level, Error> {
        Ok(Level {
            path: path.to_owned(),
            names: Some(again(|| self.files.names(path)).await?),
            left: Vec::new().into_iter(),
            told: 0,
            empty: 0,
        })
    }

    /// Tells all files below a folder, and what is passed by, until nobody listens.
    pub(crate) async fn list(
        &self,
        folder: &str,
        told: &mpsc::Sender<Result<Listed, Error>>,
    ) -> Result<(), Error> {
        if !folder.is_empty() {
            checked(folder)?;
        }
        let (mut levels, mut listed) = (vec![self.level(folder).await?], 0);
        while let Some(level) = levels.last_mut() {
            let Some(Name { name, seen }) = level.one().await? else {
                levels.pop();
                continue;
            };
            listed += 1;
            if listed > LISTED_MAX {
                return Err(endless(folder, LISTED_MAX));
            }
            let path = join(&level.path, &name);
            let listed = match seen {
                _ if !is_name(&name) => Listed::Passed(path, "no name of a file"),
                Err(why) => Listed::Passed(path, why),
                Ok(Seen::File(object, _)) => Listed::Object(object),
                Ok(Seen::Folder) if levels.len() > DEPTH_MAX => Listed::Passed(path, "too deep"),
                Ok(Seen::Folder) => {
                    match self.level(&path).await {
                        // It has gone meanwhile.
                        Err(Error::Missing(_) | Error::NoFile { .. }) => {}
                        level => levels.push(level?),
                    }
                    continue;
                }
            };
            if told.send(Ok(listed)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) async fn range(
        &self,
        object: &Object,
        from: u64,
        count: u64,
    ) -> Result<Bytes, Error> {
        let bytes = again(|| self.files.range(object, from, count)).await?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(Error::Changed(object.path.clone())),
        }
    }

    pub(crate) async fn write(&self, path: &str, over: Over) -> Result<Writer, Error> {
        if is_part(path) {
            return Err(Error::Path(path.to_owned()));
        }
        // Two writers at once have two.
        let part = fresh_part_of(path);
        Ok(Writer {
            tree: self.clone(),
            begun: Some(again(|| self.files.begin(&part)).await?),
            path: path.to_owned(),
            part: Some(part),
            over,
            written: 0,
        })
    }

    /// Makes another file of the same bytes, in place of what is there.
    pub(crate) async fn also(&self, path: &str, other: &str) -> Result<Object, Error> {
        let object = self.stat(path).await?;
        let part = fresh_part_of(other);
        if self
            .files
            .link(path, &part)
            .await
            .map_err(|why| why.error)?
        {
            let renamed = self.files.rename(&part, other, true).await;
            // It is there still where both were the same file already.
            let _ = self.files.remove(&part).await;
            renamed.map_err(|why| why.error)?;
            return self.stat(other).await;
        }
        let mut copy = self.write(other, Over::Anything).await?;
        let mut done = 0;
        while done < object.size {
            let count = PIECE_BYTES.min(object.size - done);
            copy.write(self.range(&object, done, count).await?).await?;
            done += count;
        }
        copy.finish().await
    }

    /// Removes what writers left in a folder that were killed long ago, by the server's clock.
    async fn sweep(&self, folder: &str, now: SystemTime) -> Result<(), Why> {
        {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            if swept.len() >= SWEPT_FOLDERS_MAX || !swept.insert(folder.to_owned()) {
                return Ok(());
            }
        }
        let (mut names, mut seen) = (self.files.names(folder).await?, 0);
        while seen < SWEPT_NAMES_MAX
            && let Some(page) = names.next().await?
        {
            seen += page.len();
            for Name { name, seen } in page {
                let time = match seen {
                    Ok(Seen::File(_, Some(time))) if is_part(&name) => time,
                    _ => continue,
                };
                if now.duration_since(time).is_ok_and(|age| age > LEFT) {
                    self.files.remove(&join(folder, &name)).await?;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, path: &str) -> Result<(), Error> {
        again(|| self.files.remove(path)).await
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        self.level("").await?.one().await.map(drop)
    }
}

impl Level {
    /// The next name, which is not that of a file that is being written.
    async fn one(&mut self) -> Result<Option<Name>, Error> {
        loop {
            match (self.left.next(), &mut self.names) {
                (Some(name), _) if is_part(&name.name) => {}
                (Some(name), _) => return Ok(Some(name)),
                (None, None) => return Ok(None),
                (None, Some(names)) => match names.next().await.map_err(|why| why.error)? {
                    Some(more) => {
                        self.told += more.len();
                        self.empty = if more.is_empty() { self.empty + 1 } else { 0 };
                        if self.told > NAMES_MAX || self.empty > EMPTY_PAGES_MAX {
                            return Err(endless(&self.path, NAMES_MAX));
                        }
                        self.left = more.into_iter();
                    }
                    None => self.names = None,
                },
            }
        }
    }

    pub(crate) async fn next(&mut self, most: usize) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(Name { name, seen }) = self.one().await?
        {
            if let Ok(seen) = seen
                && is_name(&name)
                && name.len() <= NAME_BYTES_MAX
            {
                entries.push(Entry { name, seen });
            }
        }
        Ok(entries)
    }
}

impl Writer {
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let count = bytes.len() as u64;
        let begun = self.begun.as_mut().ok_or_else(|| Error::Store {
            path: self.path.clone(),
            reason: "an earlier piece could not be written".into(),
        })?;
        let written = begun.write(bytes).await;
        if written.is_err() {
            self.begun = None;
        }
        self.written += count;
        written.map_err(|why| self.named(why))
    }

    /// It is the file that is told of, not its part.
    fn named(&self, why: Why) -> Error {
        match why.error {
            Error::Store { reason, .. } => Error::Store {
                path: self.path.clone(),
                reason,
            },
            Error::Denied { reason, .. } => Error::Denied {
                path: self.path.clone(),
                reason,
            },
            Error::Missing(_) => Error::Changed(self.path.clone()),
            error => error,
        }
    }

    pub(crate) async fn finish(mut self) -> Result<Object, Error> {
        let finished = self.take_name().await;
        match finished {
            Ok(_) => self.part = None,
            Err(_) => self.clean().await,
        }
        finished
    }

    async fn take_name(&mut self) -> Result<Object, Error> {
        let (Some(begun), Some(part)) = (self.begun.take(), self.part.clone()) else {
            return Err(Error::Changed(self.path.clone()));
        };
        begun.finish().await.map_err(|why| self.named(why))?;
        let Seen::File(mut object, time) = self.tree.look(&part).await? else {
            return Err(Error::Changed(self.path.clone()));
        };
        object.path.clone_from(&self.path);
        let there = match &self.over {
            Over::This(wanted) => match self.tree.stat(&self.path).await {
                Err(Error::Missing(_)) => false,
                now => now? == *wanted,
            },
            _ => true,
        };
        if !there || object.size != self.written {
            return Err(Error::Changed(self.path.clone()));
        }
        let over = self.over != Over::Nothing;
        let renamed = self.tree.files.rename(&part, &self.path, over).await;
        renamed.map_err(|why| self.named(why))?;
        if let Some(time) = time {
            let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            // The next process tries it again.
            let _ = self.tree.sweep(folder, time).await;
        }
        Ok(object)
    }

    async fn clean(&mut self) {
        self.begun = None;
        if let Some(part) = self.part.take() {
            // The first error is the one to tell.
            let _ = self.tree.files.remove(&part).await;
        }
    }

    pub(crate) async fn abort(mut self) {
        self.clean().await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let (tree, part) = (self.tree.clone(), self.part.take());
        if let (Some(part), Ok(runtime)) = (part, tokio::runtime::Handle::try_current()) {
            self.begun = None;
            runtime.spawn(async move { tree.files.remove(&part).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder whose listing goes on and tells nothing.
    struct Endless;

    impl Names for Endless {
        fn next(&mut self) -> Asked<'_, Option<Vec<Name>>> {
            Box::pin(async { Ok(Some(Vec::new())) })
        }
    }

    #[tokio::test]
    async fn listing_without_end_is_an_error() {
        let mut level = Level {
            path: "d".into(),
            names: Some(Box::new(Endless)),
            left: Vec::new().into_iter(),
            told: 0,
            empty: 0,
        };
        let error = level.one().await.unwrap_err().to_string();
        assert!(error.contains("no end"), "{error}");
    }
}
