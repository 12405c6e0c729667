//! Stores that are asked over the network, by way of OpenDAL.

use crate::look::{Entry, Seen};
use crate::place::{Kind, NAME_BYTES_MAX, Place, is_name};
use crate::reach;
use crate::store::{Listed, Object, Over, SILENCE};
use crate::uploads::Uploads;
use crate::{Error, Keys};
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::services::{Http, S3, Webdav};
use opendal::{EntryMode, ErrorKind, HttpTransporter, Metadata, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Bytes of a part of a large object.
const PART_BYTES: usize = 16 << 20;
/// Parts of one object on their way at once.
const PARTS_AT_ONCE: usize = 2;
/// Largest file where a store takes files only as a whole: it is held in memory.
const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// Times that something is tried again which a store says will pass.
const TRIES: usize = 4;
/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Names that one listing has at most.
const LISTED_MAX: usize = 100_000_000;
/// And one folder.
const NAMES_MAX: usize = 10_000_000;
/// Pause before the second time; it doubles from then on.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A generation that no object of Google has. What is written with a condition is uploaded so that nothing of it stays when it is
/// given up, and not by parts, which do.
const NO_VERSION: &str = "1";
/// What stands for the reason of a store that gives none, such as in answers without a body.
const SAYS_NOTHING: &str = "it says no more, and may have too much to do";
/// How stores say that a signature's time is not theirs.
const SKEWED: [&str; 2] = ["RequestTimeTooSkewed", "RequestExpired"];

/// What objects are told from each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tags {
    /// `ETag`s, which the store can be asked with.
    Strict,
    /// `ETag`s, which are weak first and strong later (Apache), and which servers pass over when they are asked with them.
    Loose,
    /// Numbers of versions, which the store can be asked with.
    Versions,
}

#[derive(Clone, Debug)]
pub(crate) struct Remote {
    operator: Operator,
    keys: Arc<Keys>,
    /// Where it is, for people.
    address: Arc<str>,
    /// HTTP has no listings.
    pub(crate) lists: bool,
    tags: Tags,
    /// It gives nothing of another object than the one that is asked for (`If-Match`). Of WebDAV and HTTP, servers do as they like.
    strict: bool,
    /// What is left of writing files, in S3.
    uploads: Option<Arc<Uploads>>,
}

pub(crate) struct Writer {
    remote: Remote,
    writer: opendal::Writer,
    path: String,
    /// What it is called until it is whole, in stores whose files are seen from their first byte on.
    part: Option<String>,
    over: Over,
    /// What was given, in stores that take files only as a whole.
    pieces: Vec<Bytes>,
    written: u64,
}

/// What a store is asked for when it is written to.
enum Condition<'a> {
    None,
    /// Nothing is there.
    Nothing,
    Tag(&'a str),
    Version(&'a str),
}

/// Who asks by HTTP.
pub(crate) fn client() -> reqwest::Client {
    prepare();
    built()
}

/// The whole of an answer; nothing if it is longer than it may be.
pub(crate) async fn whole(
    mut answer: reqwest::Response,
    most: u64,
) -> reqwest::Result<Option<Bytes>> {
    let mut all = BytesMut::new();
    while let Some(more) = answer.chunk().await? {
        if all.len() as u64 + more.len() as u64 > most {
            return Ok(None);
        }
        all.extend_from_slice(&more);
    }
    Ok(Some(all.freeze()))
}

/// Where a host has no list of authorities, what needs none still works, and all others are not believed.
fn built() -> reqwest::Client {
    let builder = || {
        reqwest::Client::builder()
            .redirect(reach::redirects())
            .connect_timeout(CONNECT_MAX)
    };
    let nobody = || builder().tls_certs_only([]).build();
    // Only a default client follows redirects to other servers, so there is none.
    let built = builder().build().or_else(|_| nobody());
    built.expect("a client that believes no authority needs nothing of the host")
}

/// TLS of this process is by ring, as everywhere in it.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else may have set the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        HttpTransporter::install_default(ReqwestTransport::new(built()));
    });
}

fn s3(builder: S3, keys: &Keys) -> S3 {
    // Only the keys that were named: none of the environment, nor of the machine.
    let builder = builder.disable_config_load().disable_ec2_metadata();
    let (Some(id), Some(secret)) = (keys.get("access_key_id"), keys.get("secret_access_key"))
    else {
        return builder.skip_signature();
    };
    let builder = builder.access_key_id(id).secret_access_key(secret);
    match keys.get("session_token") {
        Some(token) => builder.session_token(token),
        None => builder,
    }
}

#[cfg(feature = "gcs")]
fn gcs(
    (bucket, root, endpoint): (&str, &str, Option<&str>),
    keys: &Keys,
) -> opendal::services::Gcs {
    let builder = opendal::services::Gcs::default().bucket(bucket).root(root);
    let builder = builder.disable_config_load().disable_vm_metadata();
    let builder = match endpoint {
        Some(endpoint) => builder.endpoint(endpoint),
        None => builder,
    };
    match (keys.get("token"), keys.get("service_account")) {
        (Some(token), _) => builder.token(token.to_owned()),
        (None, Some(path)) => builder.credential_path(path),
        (None, None) => builder.skip_signature(),
    }
}

#[cfg(feature = "azblob")]
fn azblob(
    (container, root, endpoint): (&str, &str, &str),
    keys: &Keys,
) -> opendal::services::Azblob {
    let builder = opendal::services::Azblob::default();
    let builder = builder.container(container).root(root).endpoint(endpoint);
    let account = (keys.get("account_name"), keys.get("account_key"));
    match (account, keys.get("sas_token")) {
        ((Some(name), Some(key)), _) => builder.account_name(name).account_key(key),
        (_, Some(token)) => builder.sas_token(token),
        _ => builder.skip_signature(),
    }
}

fn operator(place: &Place, keys: &Keys) -> opendal::Result<Operator> {
    match &place.kind {
        Kind::S3 {
            bucket,
            root,
            endpoint,
            region,
        } => {
            let mut builder = S3::default().bucket(bucket).root(root).region(region);
            if let Some(endpoint) = endpoint {
                builder = builder.endpoint(endpoint);
            }
            Operator::new(s3(builder, keys))
        }
        Kind::WebDav(endpoint, root) => {
            let mut builder = Webdav::default().endpoint(endpoint).root(root);
            if let (Some(user), Some(password)) = (keys.get("username"), keys.get("password")) {
                builder = builder.username(user).password(password);
            }
            if let Some(token) = keys.get("token") {
                builder = builder.token(token);
            }
            Operator::new(builder)
        }
        Kind::Http(endpoint, root) => {
            let mut builder = Http::default().endpoint(endpoint).root(root);
            if let (Some(user), Some(password)) = (keys.get("username"), keys.get("password")) {
                builder = builder.username(user).password(password);
            }
            if let Some(token) = keys.get("token") {
                builder = builder.token(token);
            }
            Operator::new(builder)
        }
        #[cfg(feature = "gcs")]
        Kind::Gcs {
            bucket,
            root,
            endpoint,
        } => Operator::new(gcs((bucket, root, endpoint.as_deref()), keys)),
        #[cfg(feature = "azblob")]
        Kind::Azblob {
            container,
            root,
            endpoint,
        } => Operator::new(azblob((container, root, endpoint), keys)),
        _ => Err(opendal::Error::new(
            ErrorKind::Unsupported,
            "this build of tidemill has not this kind of store: another one has (`--features full`)",
        )),
    }
}

fn object(path: &str, about: &Metadata, tags: Tags) -> Object {
    let size = about.content_length();
    let told = match tags {
        Tags::Versions => about.version(),
        Tags::Strict => about.etag(),
        Tags::Loose => about.etag().map(|etag| etag.trim_start_matches("W/")),
    };
    let told = told.filter(|told| !told.is_empty());
    let tag = match (told, about.last_modified()) {
        (Some(told), _) => told.to_owned(),
        (None, Some(time)) => format!("{size}-{time}"),
        (None, None) => size.to_string(),
    };
    Object {
        path: path.to_owned(),
        size,
        tag,
        checked_by_store: tags != Tags::Loose && told.is_some_and(|told| !told.starts_with("W/")),
    }
}

fn modified(about: &Metadata) -> Option<SystemTime> {
    about.last_modified().map(SystemTime::from)
}

/// Whether it is what servers show for a folder.
fn is_page(content: &str) -> bool {
    content.starts_with("text/html")
}

/// What the keys of all that is in a folder begin with.
fn below(folder: &str) -> String {
    format!("{folder}/")
}

/// The names of one folder, which go on.
pub(crate) struct Level {
    remote: Remote,
    lister: Option<opendal::Lister>,
    path: String,
    told: usize,
}

/// A listing that has more names than any has.
pub(crate) fn endless(path: &str, most: usize) -> Error {
    Error::Store {
        path: path.to_owned(),
        reason: format!("the store's listing has no end: more than {most} names"),
    }
}

impl Level {
    pub(crate) async fn next(&mut self, most: usize) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(lister) = &mut self.lister
        {
            let next = lister.try_next().await;
            let Some(entry) = next.map_err(self.remote.failed(&self.path))? else {
                self.lister = None;
                break;
            };
            let (path, about) = entry.into_parts();
            self.told += 1;
            if self.told > NAMES_MAX {
                return Err(endless(&self.path, NAMES_MAX));
            }
            entries.extend(named(&self.path, &path, &about, self.remote.tags));
        }
        Ok(entries)
    }
}

/// What is in a folder, if its key is that of a file or folder just there.
fn named(folder: &str, path: &str, about: &Metadata, tags: Tags) -> Option<Entry> {
    let below = match folder {
        "" => path,
        folder => path.strip_prefix(folder)?.strip_prefix('/')?,
    };
    let name = below.strip_suffix('/').unwrap_or(below);
    if !is_name(name) || name.len() > NAME_BYTES_MAX || crate::place::is_part(name) {
        return None;
    }
    let seen = match below.len() == name.len() && about.mode() != EntryMode::DIR {
        true => Seen::File(object(path, about, tags), modified(about)),
        false => Seen::Folder,
    };
    Some(Entry {
        name: name.to_owned(),
        seen,
    })
}

impl Remote {
    pub(crate) fn open(place: &Place, keys: &Keys) -> Result<Self, Error> {
        prepare();
        if let Some(path) = keys.get("service_account") {
            crate::keys::own_file(path, true)?;
        }
        let operator = operator(place, keys).map_err(|error| Error::Place {
            uri: place.uri().to_owned(),
            what: keys.scrubbed(error.message()),
        })?;
        let retries = RetryLayer::new()
            .with_max_times(TRIES)
            .with_min_delay(FIRST_PAUSE)
            .with_jitter();
        let timeout = TimeoutLayer::new()
            .with_timeout(SILENCE)
            .with_io_timeout(SILENCE);
        Ok(Self {
            operator: operator.layer(timeout).layer(retries),
            keys: Arc::new(keys.clone()),
            address: place.address().into(),
            lists: !place.is_plain_http(),
            tags: match place.kind {
                Kind::Gcs { .. } => Tags::Versions,
                Kind::WebDav(..) => Tags::Loose,
                _ => Tags::Strict,
            },
            strict: matches!(place.kind, Kind::S3 { .. } | Kind::Azblob { .. }),
            uploads: Uploads::open(place, keys).map(Arc::new),
        })
    }

    fn object(&self, path: &str, about: &Metadata) -> Object {
        object(path, about, self.tags)
    }

    fn failed(&self, path: &str) -> impl Fn(opendal::Error) -> Error {
        move |error| {
            let said = match error.message() {
                "" => SAYS_NOTHING,
                said => said,
            };
            let reason = self.keys.reason(&self.caused(said, &error));
            let path = path.to_owned();
            match error.kind() {
                ErrorKind::NotFound => Error::Missing(path),
                ErrorKind::ConditionNotMatch => Error::Changed(path),
                _ if SKEWED.iter().any(|code| reason.contains(code)) => {
                    Error::Clock { path, reason }
                }
                ErrorKind::PermissionDenied => Error::Refused { path, reason },
                ErrorKind::RateLimited => Error::Store {
                    path,
                    reason: format!("the store has too much to do ({reason}): try again later"),
                },
                _ if reason.contains("401") || reason.contains("Unauthorized") => {
                    Error::Refused { path, reason }
                }
                _ => Error::Store { path, reason },
            }
        }
    }

    /// What was said of an error, with its first cause: where no answer came, what was asked is not told by that.
    fn caused(&self, said: &str, error: &opendal::Error) -> String {
        let mut cause = std::error::Error::source(error);
        while let Some(below) = cause.and_then(std::error::Error::source) {
            cause = Some(below);
        }
        match cause.map(ToString::to_string) {
            Some(cause) if !said.contains(&cause) => {
                format!("{said} ({}): {cause}", self.address)
            }
            _ => said.to_owned(),
        }
    }

    /// Why the store refuses: answers about what there is have no body that says so.
    async fn refusal(&self, path: &str, error: opendal::Error) -> opendal::Error {
        let said = self.operator.read_with(path).range(..1).await;
        let same = |said: &opendal::Error| said.kind() == ErrorKind::PermissionDenied;
        said.err().filter(same).unwrap_or(error)
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Object, Error> {
        let about = match self.operator.stat(path).await {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(self.failed(path)(self.refusal(path, error).await));
            }
            about => about.map_err(self.failed(path))?,
        };
        match about.mode() {
            EntryMode::DIR => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a folder",
            }),
            _ => Ok(self.object(path, &about)),
        }
    }

    pub(crate) async fn list(
        &self,
        folder: &str,
        told: &mpsc::Sender<Result<Listed, Error>>,
    ) -> Result<(), Error> {
        if !self.lists {
            return Err(Error::Unable("list what is there: name one file"));
        }
        let below = below(folder);
        let lister = self.operator.lister_with(&below).recursive(true);
        let mut lister = lister.await.map_err(self.failed(folder))?;
        let mut listed = 0;
        while let Some(entry) = lister.try_next().await.map_err(self.failed(folder))? {
            listed += 1;
            if listed > LISTED_MAX {
                return Err(endless(folder, LISTED_MAX));
            }
            let (path, about) = entry.into_parts();
            if about.mode() == EntryMode::DIR || crate::place::is_part(&path) {
                continue;
            }
            let listed = match crate::place::checked(&path) {
                Ok(_) => Listed::Object(self.object(&path, &about)),
                Err(_) => Listed::Passed(path, "no name of a file"),
            };
            if told.send(Ok(listed)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// What is at a path. In stores that know only keys a folder is what keys begin with.
    pub(crate) async fn look(&self, path: &str) -> Result<Seen, Error> {
        let asked = self.operator.stat(path).await;
        let (there, page) = match &asked {
            Ok(about) if about.mode() == EntryMode::DIR => return Ok(Seen::Folder),
            Ok(about) => (true, about.content_type().is_some_and(is_page)),
            Err(error) if error.kind() == ErrorKind::NotFound => (false, true),
            Err(_) => (true, false),
        };
        let folder = match self.lists {
            true => !there && self.has_below(path).await?,
            false => page && self.is_shown(path).await,
        };
        if folder {
            return Ok(Seen::Folder);
        }
        let about = asked.map_err(self.failed(path))?;
        let found = self.object(path, &about);
        if !self.lists && found.size == 0 && self.operator.read_with(path).range(..1).await.is_ok()
        {
            return Err(Error::Store {
                path: path.to_owned(),
                reason: "the server does not say how long it is".into(),
            });
        }
        Ok(Seen::File(found, modified(&about)))
    }

    async fn has_below(&self, path: &str) -> Result<bool, Error> {
        let below = below(path);
        let lister = self.operator.lister_with(&below).limit(1);
        let mut lister = lister.await.map_err(self.failed(path))?;
        let first = lister.try_next().await;
        Ok(first.map_err(self.failed(path))?.is_some())
    }

    /// Whether a server of HTTP has a page for a folder.
    async fn is_shown(&self, path: &str) -> bool {
        let shown = self.operator.stat(&below(path)).await;
        shown.is_ok_and(|about| about.content_type().is_some_and(is_page))
    }

    /// The names of one folder.
    pub(crate) async fn level(&self, path: &str) -> Result<Level, Error> {
        let lister = self.operator.lister(&below(path)).await;
        Ok(Level {
            remote: self.clone(),
            lister: Some(lister.map_err(self.failed(path))?),
            path: path.to_owned(),
            told: 0,
        })
    }

    /// A range of the object and no other one, of which no more is taken than was asked for.
    pub(crate) async fn range(
        &self,
        object: &Object,
        from: u64,
        count: u64,
    ) -> Result<Bytes, Error> {
        let path = &object.path;
        let failed = self.failed(path);
        let reader = self.operator.reader_with(path);
        let reader = match object.checked_by_store {
            true if self.tags == Tags::Versions => reader.if_version_match(&object.tag).await,
            true if self.checks() => reader.if_match(&object.tag).await,
            _ => reader.await,
        };
        let stream = reader.map_err(&failed)?.into_stream(from..from + count);
        let mut stream = stream.await.map_err(&failed)?;
        let mut bytes = BytesMut::new();
        while let Some(more) = stream.try_next().await.map_err(&failed)? {
            if bytes.len() as u64 + more.len() as u64 > count {
                return Err(Error::Store {
                    path: path.clone(),
                    reason: "the server gives files only as a whole: import it".into(),
                });
            }
            for piece in more {
                bytes.extend_from_slice(&piece);
            }
        }
        let same = bytes.len() as u64 == count
            && (self.checks() && object.checked_by_store
                || self.stat(path).await?.tag == object.tag);
        match same {
            true => Ok(bytes.freeze()),
            false => Err(Error::Changed(path.clone())),
        }
    }

    /// Bytes of the object and no other one.
    pub(crate) async fn read(
        &self,
        object: &Object,
        from: u64,
        count: u64,
    ) -> Result<Bytes, Error> {
        let able = self.operator.info().capability().read_with_if_match;
        let read = self
            .operator
            .read_with(&object.path)
            .range(from..from + count);
        let read = match object.checked_by_store {
            true if self.tags == Tags::Versions => read.if_version_match(&object.tag).await,
            true if able => read.if_match(&object.tag).await,
            _ => read.await,
        };
        let bytes = read.map_err(self.failed(&object.path))?;
        Ok(bytes.to_bytes())
    }

    pub(crate) fn checks(&self) -> bool {
        self.strict && self.operator.info().capability().read_with_if_match
    }

    /// What is to be there; nothing if the store can't be asked for that.
    fn condition<'a>(&self, over: &'a Over) -> Condition<'a> {
        let able = self.operator.info().capability();
        match over {
            Over::This(object) if !object.checked_by_store => Condition::None,
            Over::This(object) if self.tags == Tags::Versions => Condition::Version(&object.tag),
            Over::This(object) if able.write_with_if_match => Condition::Tag(&object.tag),
            Over::Nothing if able.write_with_if_not_exists => Condition::Nothing,
            _ => Condition::None,
        }
    }

    /// Whether that is there which a file may take the place of, where the store itself can't be asked for that.
    async fn may_take(&self, path: &str, over: &Over) -> Result<(), Error> {
        let wanted = match over {
            Over::Anything => return Ok(()),
            Over::Nothing => None,
            Over::This(object) => Some(object),
        };
        let now = match self.stat(path).await {
            Err(error) if error.is_missing() => None,
            now => Some(now?),
        };
        match now.as_ref() == wanted {
            true => Ok(()),
            false => Err(Error::Changed(path.to_owned())),
        }
    }

    pub(crate) async fn write(&self, path: &str, over: &Over) -> Result<Writer, Error> {
        let able = self.operator.info().capability();
        if !able.write {
            return Err(Error::Unable("be written to"));
        }
        let part = able.rename.then(|| crate::place::fresh_part_of(path));
        let target = part.as_deref().unwrap_or(path);
        let mut writing = self.operator.writer_with(target);
        if part.is_none() {
            writing = match self.condition(over) {
                Condition::Tag(tag) => writing.if_match(tag),
                Condition::Version(version) => writing.if_version_match(version),
                Condition::Nothing => writing.if_not_exists(true),
                Condition::None if self.tags == Tags::Versions => {
                    writing.if_version_not_match(NO_VERSION)
                }
                Condition::None => writing,
            };
        }
        let writer = match able.write_can_multi {
            true => writing.chunk(PART_BYTES).concurrent(PARTS_AT_ONCE).await,
            false => writing.await,
        };
        Ok(Writer {
            remote: self.clone(),
            writer: writer.map_err(self.failed(path))?,
            path: path.to_owned(),
            part,
            over: over.clone(),
            pieces: Vec::new(),
            written: 0,
        })
    }

    /// Whether a file that is here as a whole is seen as a whole, or not at all, under its own name.
    pub(crate) fn puts(&self) -> bool {
        let able = self.operator.info().capability();
        able.write && !able.rename
    }

    /// Writes a file that is here as a whole, to a store that [`Self::puts`].
    pub(crate) async fn put(&self, path: &str, bytes: Bytes, over: &Over) -> Result<Object, Error> {
        let size = bytes.len() as u64;
        let writing = self.operator.write_with(path, bytes);
        let about = match self.condition(over) {
            Condition::Tag(tag) => writing.if_match(tag).await,
            Condition::Version(version) => writing.if_version_match(version).await,
            Condition::Nothing => writing.if_not_exists(true).await,
            Condition::None => writing.await,
        };
        let about = about.map_err(self.failed(path))?;
        if about.etag().is_none() {
            return self.stat(path).await;
        }
        let mut written = self.object(path, &about);
        written.size = size;
        Ok(written)
    }

    /// Makes another file of the same bytes, in place of what is there.
    pub(crate) async fn also(&self, path: &str, other: &str) -> Result<Object, Error> {
        if !self.operator.info().capability().copy {
            return Err(Error::Unable("copy what it has"));
        }
        let copied = self.operator.copy(path, other).await;
        copied.map_err(self.failed(path))?;
        self.stat(other).await
    }

    pub(crate) async fn remove(&self, path: &str) -> Result<(), Error> {
        if self.operator.info().capability().rename {
            // Servers of WebDAV remove folders with all that is in them.
            self.stat(path).await?;
        }
        let removed = self.operator.delete(path).await;
        removed.map_err(self.failed(path))
    }

    /// Whether a file whose writing does not end may leave something there.
    pub(crate) fn leaves(&self) -> bool {
        self.uploads.is_some()
    }

    /// Gives up what is left of writing a file that was begun since then.
    pub(crate) async fn give_up(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        match &self.uploads {
            Some(uploads) => uploads.give_up(path, since, &self.keys).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        if !self.lists {
            return match self.operator.stat("/").await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                asked => asked.map(|_| ()).map_err(self.failed("/")),
            };
        }
        let mut lister = self.operator.lister("/").await.map_err(self.failed("/"))?;
        let first = lister.try_next().await;
        first.map(|_| ()).map_err(self.failed("/"))
    }
}

impl Writer {
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.written += bytes.len() as u64;
        let able = self.remote.operator.info().capability();
        if !able.write_can_multi {
            if self.written > WHOLE_BYTES_MAX {
                return Err(Error::Unable("take files of more than 1 GiB"));
            }
            self.pieces.push(bytes);
            return Ok(());
        }
        let written = self.writer.write(bytes).await;
        written.map_err(self.remote.failed(&self.path))
    }

    pub(crate) async fn finish(mut self) -> Result<Object, Error> {
        let finished = self.ended().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn ended(&mut self) -> Result<Object, Error> {
        let remote = &self.remote;
        if !self.pieces.is_empty() {
            let whole = opendal::Buffer::from(std::mem::take(&mut self.pieces));
            let written = self.writer.write(whole).await;
            written.map_err(remote.failed(&self.path))?;
        }
        let about = self.writer.close().await;
        let about = about.map_err(remote.failed(&self.path))?;
        if let Some(part) = &self.part {
            remote.may_take(&self.path, &self.over).await?;
            let renamed = remote.operator.rename(part, &self.path).await;
            renamed.map_err(remote.failed(&self.path))?;
        } else if about.etag().is_some() {
            let mut written = remote.object(&self.path, &about);
            written.size = self.written;
            return Ok(written);
        }
        let now = remote.stat(&self.path).await?;
        match now.size == self.written {
            true => Ok(now),
            false => Err(Error::Changed(self.path.clone())),
        }
    }

    pub(crate) async fn abort(mut self) {
        // The first error is the one to tell.
        let _ = self.writer.abort().await;
        if let Some(part) = &self.part {
            let _ = self.remote.operator.delete(part).await;
        }
    }
}
