//! Stores that are accessed over the network with OpenDAL. The module sends requests only to the store.

use crate::address::{
    NAME_BYTES_MAX, RemoteAddress, RemoteKind, checked, checked_directory, is_name, shown,
};
use crate::redirects;
use crate::store::{
    DirectoryPages, FileReader, FileSource, ListedItem, Lister, ListingEntry, ListingSender,
    Overwrite, PathType, RemoteStore, SILENCE, StoreFile, StoreWriter,
};
use crate::uploads::Uploads;
use crate::{Error, Keys};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::services::{Http, S3, Webdav};
use opendal::{EntryMode, ErrorKind, HttpTransporter, Metadata, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

/// Size in bytes of each part of a large object that is uploaded in parts.
const PART_BYTES: usize = 16 << 20;
/// Maximum number of parts of one object that are sent concurrently.
const PARTS_AT_ONCE: usize = 2;
/// Maximum length in bytes of a file for a store that accepts only whole files, because the file is kept in memory.
const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of attempts of a request whose error the store calls temporary.
const TRIES: usize = 4;
/// Maximum time for opening a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const LISTED_MAX: usize = 100_000_000;
const NAMES_MAX: usize = 10_000_000;
/// Pause before the second attempt of a request; it doubles before each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Generation that no object of Google Cloud Storage has, for a condition that is always true. An aborted upload with a condition leaves
/// nothing in the store. An upload without a condition is sent in parts, which stay.
const NO_VERSION: &str = "1";
/// Reason in the error of a store that returns no message, such as an answer without body.
const SAYS_NOTHING: &str = "it gave no reason, and may be overloaded";
/// Error codes by which stores report that the time of a signature differs from their clock.
const SKEWED: [&str; 2] = ["RequestTimeTooSkewed", "RequestExpired"];

/// Kind of the tags that distinguish the versions of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tags {
    /// `ETag`s, which requests can contain as a condition.
    Strict,
    /// `ETag`s that are weak first and strong later (Apache). Servers ignore such `ETag`s as a condition.
    Loose,
    /// Numbers of versions, which requests can contain as a condition.
    Versions,
}

#[derive(Clone, Debug)]
pub(crate) struct ObjectStore {
    operator: Operator,
    keys: Arc<Keys>,
    /// Human-readable address of the store.
    address: Arc<str>,
    /// Whether the store supports listings. HTTP servers do not.
    lists: bool,
    tags: Tags,
    /// Whether the store returns bytes only of the requested version (`If-Match`). Servers of WebDAV and HTTP differ in this.
    strict: bool,
    /// Interrupted multipart uploads, for S3 stores.
    uploads: Option<Arc<Uploads>>,
}

struct ObjectWriter {
    object_store: ObjectStore,
    writer: opendal::Writer,
    path: String,
    /// Temporary name of the file until it is complete, in stores whose files are visible from their first byte on.
    part: Option<String>,
    over: Overwrite,
    /// Bytes written so far, in stores that accept only whole files.
    pieces: Vec<Bytes>,
    written: u64,
}

enum Condition<'a> {
    None,
    /// No file exists at the path of the write.
    Nothing,
    Tag(&'a str),
    Version(&'a str),
}

/// Returns the HTTP client of this process.
pub(crate) fn client() -> reqwest::Client {
    prepare();
    built()
}

/// Reads a whole HTTP answer; `None` if the answer is longer than `most` bytes.
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

/// Creates a client. On a host without a list of certificate authorities, the client works without TLS and trusts no server with TLS.
fn built() -> reqwest::Client {
    let builder = || {
        reqwest::Client::builder()
            .redirect(redirects::redirects())
            .connect_timeout(CONNECT_MAX)
    };
    let nobody = || builder().tls_certs_only([]).build();
    // A default client would follow redirects to other servers, so it is not used.
    let built = builder().build().or_else(|_| nobody());
    built.expect("a client that trusts no CA needs no files of the host")
}

/// Selects ring as the TLS library of this process, and the client for OpenDAL.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another module may have selected the same library.
        let _ = rustls::crypto::ring::default_provider().install_default();
        HttpTransporter::install_default(ReqwestTransport::new(built()));
    });
}

fn s3(builder: S3, keys: &Keys) -> S3 {
    // Only the given keys are used: none of the environment or of the machine.
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

/// Returns the client for a store; `None` if this build does not support its kind.
fn operator(place: &RemoteAddress, keys: &Keys) -> Option<opendal::Result<Operator>> {
    Some(match &place.kind {
        RemoteKind::S3 {
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
        RemoteKind::WebDav(endpoint, root) => {
            let mut builder = Webdav::default().endpoint(endpoint).root(root);
            if let (Some(user), Some(password)) = (keys.get("username"), keys.get("password")) {
                builder = builder.username(user).password(password);
            }
            if let Some(token) = keys.get("token") {
                builder = builder.token(token);
            }
            Operator::new(builder)
        }
        RemoteKind::Http(endpoint, root) => {
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
        RemoteKind::Gcs {
            bucket,
            root,
            endpoint,
        } => Operator::new(gcs((bucket, root, endpoint.as_deref()), keys)),
        #[cfg(feature = "azblob")]
        RemoteKind::Azblob {
            container,
            root,
            endpoint,
        } => Operator::new(azblob((container, root, endpoint), keys)),
        _ => return None,
    })
}

fn object(path: &str, about: &Metadata, tags: Tags) -> StoreFile {
    let size = about.content_length();
    let reported = match tags {
        Tags::Versions => about.version(),
        Tags::Strict => about.etag(),
        Tags::Loose => about.etag().map(|etag| etag.trim_start_matches("W/")),
    };
    let reported = reported.filter(|reported| !reported.is_empty());
    let tag = match (reported, about.last_modified()) {
        (Some(reported), _) => reported.to_owned(),
        (None, Some(time)) => format!("{size}-{time}"),
        (None, None) => size.to_string(),
    };
    StoreFile {
        path: path.to_owned(),
        size,
        tag,
        checked_by_store: tags != Tags::Loose
            && reported.is_some_and(|reported| !reported.starts_with("W/")),
    }
}

fn modified(about: &Metadata) -> Option<SystemTime> {
    about.last_modified().map(SystemTime::from)
}

/// Returns whether this is the content type that servers return for a directory.
fn is_page(content: &str) -> bool {
    content.starts_with("text/html")
}

/// Returns the prefix of the keys of all files in a directory.
fn below(directory: &str) -> String {
    format!("{directory}/")
}

/// Listing of one directory in progress.
struct RemoteListing {
    object_store: ObjectStore,
    lister: Option<opendal::Lister>,
    path: String,
    listed_names: usize,
}

#[async_trait]
impl DirectoryPages for RemoteListing {
    async fn next(&mut self, most: usize) -> Result<Vec<ListingEntry>, Error> {
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some(lister) = &mut self.lister
        {
            let next = lister.try_next().await;
            let Some(entry) = next.map_err(self.object_store.failed(&self.path))? else {
                self.lister = None;
                break;
            };
            let (path, about) = entry.into_parts();
            self.listed_names += 1;
            if self.listed_names > NAMES_MAX {
                return Err(Error::endless(&self.path, NAMES_MAX));
            }
            entries.extend(named(&self.path, &path, &about, self.object_store.tags));
        }
        Ok(entries)
    }
}

/// Returns the entry for a key, if the key is a file or directory directly in `directory`.
fn named(directory: &str, path: &str, about: &Metadata, tags: Tags) -> Option<ListingEntry> {
    let below = match directory {
        "" => path,
        directory => path.strip_prefix(directory)?.strip_prefix('/')?,
    };
    let name = below.strip_suffix('/').unwrap_or(below);
    if !is_name(name) || name.len() > NAME_BYTES_MAX || crate::address::is_part(name) {
        return None;
    }
    let seen = match below.len() == name.len() && about.mode() != EntryMode::DIR {
        true => PathType::File(object(path, about, tags), modified(about)),
        false => PathType::Directory,
    };
    Some(ListingEntry {
        name: name.to_owned(),
        seen,
    })
}

impl ObjectStore {
    pub(crate) fn open(place: &RemoteAddress, keys: &Keys) -> Result<Self, Error> {
        prepare();
        if let Some(path) = keys.get("service_account") {
            crate::keys::own_file(path, true)?;
        }
        let operator = operator(place, keys).ok_or_else(|| place.unsupported())?;
        let operator = operator.map_err(|error| Error::Place {
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
                RemoteKind::Gcs { .. } => Tags::Versions,
                RemoteKind::WebDav(..) => Tags::Loose,
                _ => Tags::Strict,
            },
            strict: matches!(
                place.kind,
                RemoteKind::S3 { .. } | RemoteKind::Azblob { .. }
            ),
            uploads: Uploads::open(place, keys).map(Arc::new),
        })
    }

    fn object(&self, path: &str, about: &Metadata) -> StoreFile {
        object(path, about, self.tags)
    }

    fn failed(&self, path: &str) -> impl Fn(opendal::Error) -> Error {
        move |error| {
            let reported = match error.message() {
                "" => SAYS_NOTHING,
                reported => reported,
            };
            let reason = self.keys.reason(&self.caused(reported, &error));
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
                    reason: format!("the store is overloaded ({reason}): try again later"),
                },
                _ if reason.contains("401") || reason.contains("Unauthorized") => {
                    Error::Refused { path, reason }
                }
                _ => Error::Store { path, reason },
            }
        }
    }

    /// Adds the first cause to the message of an error, because without an answer of the store the message does not name the cause.
    fn caused(&self, reported: &str, error: &opendal::Error) -> String {
        let mut cause = std::error::Error::source(error);
        while let Some(below) = cause.and_then(std::error::Error::source) {
            cause = Some(below);
        }
        match cause.map(ToString::to_string) {
            Some(cause) if !reported.contains(&cause) => {
                format!("{reported} ({}): {cause}", self.address)
            }
            _ => reported.to_owned(),
        }
    }

    /// Returns the detailed reason of a refusal. The answer to `stat` has no body with a reason, so the function tries a read.
    async fn refusal(&self, path: &str, error: opendal::Error) -> opendal::Error {
        let reported = self.operator.read_with(path).range(..1).await;
        let same = |reported: &opendal::Error| reported.kind() == ErrorKind::PermissionDenied;
        reported.err().filter(same).unwrap_or(error)
    }

    async fn send_all(&self, directory: &str, sender: &ListingSender) -> Result<(), Error> {
        if !self.lists {
            return Err(Error::Unable("list files: name one file"));
        }
        let below = below(directory);
        let lister = self.operator.lister_with(&below).recursive(true);
        let mut lister = lister.await.map_err(self.failed(directory))?;
        let mut listed = 0;
        while let Some(entry) = lister.try_next().await.map_err(self.failed(directory))? {
            listed += 1;
            if listed > LISTED_MAX {
                return Err(Error::endless(directory, LISTED_MAX));
            }
            let (path, about) = entry.into_parts();
            if about.mode() == EntryMode::DIR || crate::address::is_part(&path) {
                continue;
            }
            let listed = match crate::address::checked(&path) {
                Ok(_) => ListedItem::Object(self.object(&path, &about)),
                Err(_) => ListedItem::Passed(path, "not a valid file name"),
            };
            if sender.send(Ok(listed)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn has_below(&self, path: &str) -> Result<bool, Error> {
        let below = below(path);
        let lister = self.operator.lister_with(&below).limit(1);
        let mut lister = lister.await.map_err(self.failed(path))?;
        let first = lister.try_next().await;
        Ok(first.map_err(self.failed(path))?.is_some())
    }

    /// Returns whether an HTTP server has a page for a directory.
    async fn is_shown(&self, path: &str) -> bool {
        let shown = self.operator.stat(&below(path)).await;
        shown.is_ok_and(|about| about.content_type().is_some_and(is_page))
    }

    /// Reads a byte range of exactly the version `of`. If the answer is longer than the range, the rest is not read.
    async fn range(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
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
                    reason: "the server returns only whole files: import it".into(),
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

    fn checks(&self) -> bool {
        self.strict && self.operator.info().capability().read_with_if_match
    }

    /// Returns the condition for a write that `over` needs, if the store supports conditions.
    fn condition<'a>(&self, over: &'a Overwrite) -> Condition<'a> {
        let able = self.operator.info().capability();
        match over {
            Overwrite::This(object) if !object.checked_by_store => Condition::None,
            Overwrite::This(object) if self.tags == Tags::Versions => {
                Condition::Version(&object.tag)
            }
            Overwrite::This(object) if able.write_with_if_match => Condition::Tag(&object.tag),
            Overwrite::Nothing if able.write_with_if_not_exists => Condition::Nothing,
            _ => Condition::None,
        }
    }

    /// Checks whether the write may replace the existing file, for a store that does not support conditions.
    async fn may_take(&self, path: &str, over: &Overwrite) -> Result<(), Error> {
        let wanted = match over {
            Overwrite::Anything => return Ok(()),
            Overwrite::Nothing => None,
            Overwrite::This(object) => Some(object),
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

    async fn writer(&self, path: &str, over: &Overwrite) -> Result<ObjectWriter, Error> {
        let able = self.operator.info().capability();
        if !able.write {
            return Err(Error::Unable("be written to"));
        }
        let part = able.rename.then(|| crate::address::fresh_part_of(path));
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
        Ok(ObjectWriter {
            object_store: self.clone(),
            writer: writer.map_err(self.failed(path))?,
            path: path.to_owned(),
            part,
            over: over.clone(),
            pieces: Vec::new(),
            written: 0,
        })
    }
}

#[async_trait]
impl RemoteStore for ObjectStore {
    async fn stat(&self, path: &str) -> Result<StoreFile, Error> {
        let about = match self.operator.stat(checked(path)?).await {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(self.failed(path)(self.refusal(path, error).await));
            }
            about => about.map_err(self.failed(path))?,
        };
        match about.mode() {
            EntryMode::DIR => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a directory",
            }),
            _ => Ok(self.object(path, &about)),
        }
    }

    async fn look(&self, path: &str) -> Result<PathType, Error> {
        if path.is_empty() {
            return Ok(PathType::Directory);
        }
        let asked = self.operator.stat(shown(path)?).await;
        let (there, page) = match &asked {
            Ok(about) if about.mode() == EntryMode::DIR => return Ok(PathType::Directory),
            Ok(about) => (true, about.content_type().is_some_and(is_page)),
            Err(error) if error.kind() == ErrorKind::NotFound => (false, true),
            Err(_) => (true, false),
        };
        let directory = match self.lists {
            true => !there && self.has_below(path).await?,
            false => page && self.is_shown(path).await,
        };
        if directory {
            return Ok(PathType::Directory);
        }
        let about = asked.map_err(self.failed(path))?;
        let found = self.object(path, &about);
        if !self.lists && found.size == 0 && self.operator.read_with(path).range(..1).await.is_ok()
        {
            return Err(Error::Store {
                path: path.to_owned(),
                reason: "the server does not report its length".into(),
            });
        }
        Ok(PathType::File(found, modified(&about)))
    }

    fn lists(&self) -> bool {
        self.lists
    }

    async fn entries(&self, path: &str) -> Result<Box<dyn DirectoryPages>, Error> {
        let below = below(checked_directory(path)?);
        let lister = match self.lists {
            true => Some(self.operator.lister(&below).await),
            false => None,
        };
        Ok(Box::new(RemoteListing {
            object_store: self.clone(),
            lister: lister.transpose().map_err(self.failed(path))?,
            path: path.to_owned(),
            listed_names: 0,
        }))
    }

    fn list(&self, directory: &str) -> Lister {
        let (object_store, directory) = (self.clone(), directory.to_owned());
        Lister::of(|sender| async move { object_store.send_all(&directory, &sender).await })
    }

    async fn read(&self, object: &StoreFile) -> Result<FileReader, Error> {
        checked(&object.path)?;
        Ok(FileReader::new(object, self.clone()))
    }

    async fn read_at(&self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
        checked(&object.path)?;
        match count {
            0 => Ok(Bytes::new()),
            count => self.range(object, from, count).await,
        }
    }

    async fn write_over(&self, path: &str, over: Overwrite) -> Result<Box<dyn StoreWriter>, Error> {
        Ok(Box::new(self.writer(checked(path)?, &over).await?))
    }

    async fn put(&self, path: &str, bytes: Bytes, over: Overwrite) -> Result<StoreFile, Error> {
        let able = self.operator.info().capability();
        if !able.write || able.rename {
            return crate::store::written(self.write_over(path, over).await?, bytes).await;
        }
        let size = bytes.len() as u64;
        let writing = self.operator.write_with(checked(path)?, bytes);
        let about = match self.condition(&over) {
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

    async fn also(&self, path: &str, other: &str) -> Result<StoreFile, Error> {
        if !self.operator.info().capability().copy {
            return Err(Error::Unable("copy files"));
        }
        let copied = self.operator.copy(checked(path)?, checked(other)?).await;
        copied.map_err(self.failed(path))?;
        self.stat(other).await
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        checked(path)?;
        if self.operator.info().capability().rename {
            // Servers of WebDAV would remove a directory with all its files.
            self.stat(path).await?;
        }
        let removed = self.operator.delete(path).await;
        removed.map_err(self.failed(path))
    }

    fn leaves(&self) -> bool {
        self.uploads.is_some()
    }

    async fn abandon(&self, path: &str, since: SystemTime) -> Result<(), Error> {
        match &self.uploads {
            Some(uploads) => uploads.abandon(checked(path)?, since, &self.keys).await,
            None => Ok(()),
        }
    }

    async fn check(&self) -> Result<(), Error> {
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

#[async_trait]
impl FileSource for ObjectStore {
    async fn piece(&mut self, object: &StoreFile, from: u64, count: u64) -> Result<Bytes, Error> {
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

    async fn is_same(&mut self, object: &StoreFile) -> Result<bool, Error> {
        let checked = self.checks() && object.checked_by_store && object.size > 0;
        Ok(checked || self.stat(&object.path).await?.tag == object.tag)
    }
}

#[async_trait]
impl StoreWriter for ObjectWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.written += bytes.len() as u64;
        let able = self.object_store.operator.info().capability();
        if !able.write_can_multi {
            if self.written > WHOLE_BYTES_MAX {
                return Err(Error::Unable("store files of more than 1 GiB"));
            }
            self.pieces.push(bytes);
            return Ok(());
        }
        let written = self.writer.write(bytes).await;
        written.map_err(self.object_store.failed(&self.path))
    }

    async fn finish(mut self: Box<Self>) -> Result<StoreFile, Error> {
        let finished = self.ended().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn abort(mut self: Box<Self>) {
        // The caller reports the first error.
        let _ = self.writer.abort().await;
        if let Some(part) = &self.part {
            let _ = self.object_store.operator.delete(part).await;
        }
    }
}

impl ObjectWriter {
    async fn ended(&mut self) -> Result<StoreFile, Error> {
        let object_store = &self.object_store;
        if !self.pieces.is_empty() {
            let whole = opendal::Buffer::from(std::mem::take(&mut self.pieces));
            let written = self.writer.write(whole).await;
            written.map_err(object_store.failed(&self.path))?;
        }
        let about = self.writer.close().await;
        let about = about.map_err(object_store.failed(&self.path))?;
        if let Some(part) = &self.part {
            object_store.may_take(&self.path, &self.over).await?;
            let renamed = object_store.operator.rename(part, &self.path).await;
            renamed.map_err(object_store.failed(&self.path))?;
        } else if about.etag().is_some() {
            let mut written = object_store.object(&self.path, &about);
            written.size = self.written;
            return Ok(written);
        }
        let now = object_store.stat(&self.path).await?;
        match now.size == self.written {
            true => Ok(now),
            false => Err(Error::Changed(self.path.clone())),
        }
    }
}
