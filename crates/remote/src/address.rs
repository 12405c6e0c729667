//! Address of a store: `file:///scratch`, `s3://bucket/prefix?endpoint=…`, `webdavs://host/path`, `https://host/path`,
//! `sftp://host:22/path`, `webhdfs://host:9870/path`. The functions have no effects.

use crate::Error;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};

/// Maximum length of a scheme in bytes.
const SCHEME_BYTES_MAX: usize = 8;
/// Default port of SFTP servers.
const SSH_PORT: u16 = 22;
/// Maximum depth of nested directories.
pub(crate) const DEPTH_MAX: usize = 256;
/// Maximum length of a file name in bytes, as on most operating systems.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Address of a store. The address contains no key, because all users of a cluster can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    uri: String,
    pub(crate) kind: RemoteKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteKind {
    /// Directory of this host, with its path.
    Directory(String),
    S3 {
        bucket: String,
        root: String,
        endpoint: Option<String>,
        region: String,
    },
    /// WebDAV server: its address, and the directory on the server.
    WebDav(String, String),
    Http(String, String),
    Sftp {
        host: String,
        port: Option<u16>,
        root: String,
    },
    /// HDFS through WebHDFS: address of the name node, and the directory on it.
    WebHdfs(String, String),
    /// HDFS through its own protocol: address of the name node, and the directory on it.
    Hdfs(String, String),
    Gcs {
        bucket: String,
        root: String,
        endpoint: Option<String>,
    },
    Azblob {
        container: String,
        root: String,
        endpoint: String,
    },
}

impl RemoteKind {
    /// Returns the values that identify the store among stores of all kinds, and the directory in the store.
    fn parts(&self) -> ([String; 3], &str) {
        let [scheme, host, more, root] = match self {
            Self::Directory(root) => ["file", "", "", root],
            Self::S3 {
                bucket,
                endpoint,
                root,
                ..
            } => ["s3", bucket, endpoint.as_deref().unwrap_or(""), root],
            Self::WebDav(host, root) => ["webdav", host, "", root],
            Self::Http(host, root) => ["http", host, "", root],
            Self::WebHdfs(host, root) => ["webhdfs", host, "", root],
            Self::Hdfs(host, root) => ["hdfs", host, "", root],
            Self::Gcs {
                bucket,
                root,
                endpoint,
            } => ["gs", bucket, endpoint.as_deref().unwrap_or(""), root],
            Self::Azblob {
                container,
                root,
                endpoint,
            } => ["azblob", container, endpoint, root],
            Self::Sftp { host, port, root } => {
                let port = port.unwrap_or(SSH_PORT).to_string();
                return (["sftp".into(), host.clone(), port], root);
            }
        };
        ([scheme, host, more].map(str::to_owned), root)
    }
}

/// Returns host and port of an address; `None` if the host could be taken for an option of a program.
fn host_and_port(host: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => Some(port.parse().ok()?),
        None if port.is_empty() => None,
        None => return None,
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let good = !host.is_empty() && !host.starts_with('-') && host.bytes().all(plain);
    good.then(|| (host.to_owned(), port))
}

/// Returns the kind of a store; on an error, the remedy for the address.
fn kind(
    scheme: &str,
    (host, path): (&str, &str),
    mut settings: BTreeMap<&str, String>,
) -> Result<RemoteKind, &'static str> {
    let root = format!("/{}", path.trim_matches('/'));
    let (by_http, by_https) = (format!("http://{host}"), format!("https://{host}"));
    let host = host.to_owned();
    let endpoint = settings.remove("endpoint");
    Ok(match scheme {
        "file" if host.is_empty() && path.starts_with('/') => {
            RemoteKind::Directory(path.to_owned())
        }
        "file" => return Err("give file:// and the full path of a directory"),
        _ if host.is_empty() => return Err("the host or the bucket is missing"),
        "s3" => RemoteKind::S3 {
            bucket: host,
            root,
            endpoint,
            region: settings.remove("region").unwrap_or("us-east-1".into()),
        },
        "gs" => RemoteKind::Gcs {
            bucket: host,
            root,
            endpoint,
        },
        "azblob" => RemoteKind::Azblob {
            container: host,
            root,
            endpoint: endpoint.ok_or("give ?endpoint=https://ACCOUNT.blob.core.windows.net")?,
        },
        "sftp" => {
            let (host, port) =
                host_and_port(&host).ok_or("give sftp://HOST/… or sftp://HOST:PORT/…")?;
            RemoteKind::Sftp { host, port, root }
        }
        "webdav" => RemoteKind::WebDav(by_http, root),
        "webdavs" => RemoteKind::WebDav(by_https, root),
        "webhdfs" => RemoteKind::WebHdfs(by_http, root),
        "swebhdfs" => RemoteKind::WebHdfs(by_https, root),
        "hdfs" => RemoteKind::Hdfs(host, root),
        "http" => RemoteKind::Http(by_http, root),
        "https" => RemoteKind::Http(by_https, root),
        _ => {
            return Err(
                "schemes are file, s3, gs, azblob, sftp, webdav, webdavs, webhdfs, swebhdfs, hdfs, http and https",
            );
        }
    })
}

impl RemoteAddress {
    /// Returns the human-readable address of the server.
    pub(crate) fn address(&self) -> String {
        match &self.kind {
            RemoteKind::S3 { endpoint, .. } | RemoteKind::Gcs { endpoint, .. } => endpoint.clone(),
            RemoteKind::Azblob { endpoint, .. }
            | RemoteKind::WebDav(endpoint, _)
            | RemoteKind::Http(endpoint, _)
            | RemoteKind::WebHdfs(endpoint, _) => Some(endpoint.clone()),
            _ => None,
        }
        .unwrap_or_else(|| self.uri.clone())
    }

    /// Parses an address.
    ///
    /// # Errors
    /// The address is invalid, or contains more than the location of a store.
    pub fn parse(uri: &str) -> Result<Self, Error> {
        // The address may contain a user, a password or a key, so the error repeats only its scheme.
        let bad = |what: &str| Error::Place {
            uri: match uri.split_once("://") {
                Some((scheme, _)) if scheme.len() <= SCHEME_BYTES_MAX => format!("{scheme}://…"),
                _ => "without a scheme".into(),
            },
            what: what.to_owned(),
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| {
            bad("give file:///DIRECTORY, s3://BUCKET/…, gs://BUCKET/…, azblob://CONTAINER/…, sftp://HOST/…, webdav(s)://HOST/…, (s)webhdfs://HOST/…, hdfs://HOST/… or http(s)://HOST/…")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.contains('@') {
            return Err(bad(
                "it must not contain a user or a password, which all users could read: put them into the file of keys",
            ));
        }
        if path.split('/').any(|part| part == ".." || part == ".")
            || uri.contains(['#', '\0', '\n'])
        {
            return Err(bad("it must not contain `.`, `..` or `#`"));
        }
        let known: &[&str] = match scheme {
            "s3" => &["endpoint", "region"],
            "gs" | "azblob" => &["endpoint"],
            _ => &[],
        };
        let mut settings = BTreeMap::new();
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if !known.contains(&name) || value.contains(['@', '?']) {
                return Err(bad(
                    "after `?`, only endpoint= (s3, gs, azblob) and region= (s3) are allowed; put keys into the file of keys",
                ));
            }
            settings.insert(name, value.to_owned());
        }
        let kind = kind(scheme, (host, path), settings).map_err(bad)?;
        Ok(Self {
            uri: uri.to_owned(),
            kind,
        })
    }

    /// Returns the address as it was given.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns the error for a store of a kind that this build lacks.
    pub(crate) fn unsupported(&self) -> Error {
        let feature = match self.kind {
            RemoteKind::Gcs { .. } | RemoteKind::Azblob { .. } | RemoteKind::Hdfs(..) => "full",
            _ => "dist",
        };
        Error::Place {
            uri: self.uri.clone(),
            what: format!(
                "this build of tidemill does not support this kind of store: use a build with `--features {feature}`"
            ),
        }
    }

    /// Returns the path below `other` for a path below this address, if `other` contains this address or equals it; else `None`.
    #[must_use]
    pub fn seen_from(&self, other: &Self, path: &str) -> Option<String> {
        let ((here, ours), (there, theirs)) = (self.kind.parts(), other.kind.parts());
        let same = here == there;
        let (ours, theirs) = (ours.trim_matches('/'), theirs.trim_matches('/'));
        let between = match (same, theirs.is_empty(), ours.strip_prefix(theirs)?) {
            (false, ..) => return None,
            (true, true, below) => below,
            (true, false, "") => "",
            (true, false, below) => below.strip_prefix('/')?,
        };
        Some(join(between, path))
    }

    /// Returns whether the store supports neither listings nor writes.
    #[must_use]
    pub fn is_plain_http(&self) -> bool {
        matches!(self.kind, RemoteKind::Http(..))
    }
}

/// Checks a path below a store: names with single slashes between them. A store may contain other keys, which are not paths of files.
///
/// # Errors
/// A name is empty, `.` or `..`, or contains a zero byte.
pub(crate) fn checked(path: &str) -> Result<&str, Error> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    match path.split('/').any(bad) {
        true => Err(Error::Path(path.to_owned())),
        false => Ok(path),
    }
}

/// Checks the path of a directory; the empty path is the root of the store.
pub(crate) fn checked_directory(path: &str) -> Result<&str, Error> {
    match path {
        "" => Ok(path),
        path => checked(path),
    }
}

/// Checks a path that a user looks up. Temporary files are not shown.
pub(crate) fn shown(path: &str) -> Result<&str, Error> {
    match is_part(checked(path)?) {
        true => Err(Error::Missing(path.to_owned())),
        false => Ok(path),
    }
}

/// Returns the path of a name in a directory; the empty path is the root of the store.
pub(crate) fn join(above: &str, name: &str) -> String {
    match above {
        "" => name.to_owned(),
        above => format!("{above}/{name}"),
    }
}

/// Returns whether the text is a file name that is valid on other operating systems.
pub(crate) fn is_name(name: &str) -> bool {
    checked(name).is_ok() && !name.contains('/')
}

/// Percent-encodes a text for an address, except its slashes.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            // Writing into a string never fails.
            byte => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// Prefix of the temporary name of a file that is being written, in the directory of its final name.
pub(crate) const PART: &str = ".tidemill-part-";

pub(crate) fn part_of(path: &str) -> String {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    join(above, &format!("{PART}{:016x}", hasher.finish()))
}

/// Returns a temporary name that no other writer uses, even for the same file.
pub(crate) fn fresh_part_of(path: &str) -> String {
    let own = RandomState::new().hash_one(path);
    format!("{}-{own:016x}", part_of(path))
}

pub(crate) fn is_part(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with(PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_address_maps_path_only_into_enclosing_address() {
        let seen = |here: &str, there: &str| {
            let [here, there] = [here, there].map(|uri| RemoteAddress::parse(uri).unwrap());
            here.seen_from(&there, "x/y")
        };
        let found = Some("b/x/y".to_owned());
        assert_eq!(seen("file:///a/b", "file:///a/"), found);
        assert_eq!(seen("s3://data/b", "s3://data"), found);
        assert_eq!(seen("s3://data/b/", "s3://data/b"), Some("x/y".into()));
        assert_eq!(seen("file:///ab", "file:///a"), None);
        assert_eq!(seen("file:///a", "file:///a/b"), None);
        assert_eq!(seen("s3://data/b", "s3://other"), None);
        assert_eq!(seen("s3://data/b", "s3://data?endpoint=http://h"), None);
        assert_eq!(seen("file:///a", "http://h/a"), None);
        assert_eq!(seen("sftp://h/a/b", "sftp://h:22/a"), found);
        assert_eq!(seen("sftp://h/a/b", "sftp://h:23/a"), None);
        assert_eq!(seen("webhdfs://h:1/b", "webhdfs://h:1"), found);
        assert_eq!(seen("webhdfs://h:1/b", "hdfs://h:1"), None);
    }

    #[test]
    fn remote_address_parses_uri_and_refuses_secrets() {
        let place = RemoteAddress::parse("s3://data/a/b/?endpoint=http://127.0.0.1:9000").unwrap();
        let kind = RemoteKind::S3 {
            bucket: "data".into(),
            root: "/a/b".into(),
            endpoint: Some("http://127.0.0.1:9000".into()),
            region: "us-east-1".into(),
        };
        assert_eq!(place.kind, kind);
        for uri in [
            "file://host/a",
            "file:///a/../b",
            "ftp://host",
            "s3://",
            "host/path",
            "https://me:hush@host/",
            "s3://data?secret_access_key=hush",
            "https://host/?token=hush",
            "s3://data?endpoint=http://me:hush@host",
            "azblob://data?endpoint=http://host?sig=hush",
            "azblob://data",
            "gs://data?region=hush",
            "sftp://-oProxyCommand=hush/x",
            "sftp://host:99999/x",
            "sftp://host;hush/x",
            "hush@host/path",
        ] {
            let error = RemoteAddress::parse(uri).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
        let kind = RemoteKind::Sftp {
            host: "::1".into(),
            port: Some(2222),
            root: "/a b".into(),
        };
        assert_eq!(
            RemoteAddress::parse("sftp://[::1]:2222/a b").unwrap().kind,
            kind
        );
        for path in ["", "/a", "a//b", "a/../b", "..", "a/.", "a/"] {
            assert!(checked(path).is_err(), "{path}");
        }
        assert_eq!(checked("a/..b/c").unwrap(), "a/..b/c");
    }
}
