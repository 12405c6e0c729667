//! Where a store is: `file:///scratch`, `s3://bucket/prefix?endpoint=…`, `webdavs://host/path`, `https://host/path`.

use crate::Error;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest scheme.
const SCHEME_BYTES_MAX: usize = 7;

/// An address without any key in it: all users of an array read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    uri: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The folder.
    Folder(String),
    S3 {
        bucket: String,
        root: String,
        endpoint: Option<String>,
        region: String,
    },
    /// Where the server is, and the folder there.
    WebDav(String, String),
    Http(String, String),
}

impl Place {
    /// Reads an address.
    ///
    /// # Errors
    /// If it is none, or has more in it than says where a store is.
    pub fn parse(uri: &str) -> Result<Self, Error> {
        // A user, a password or a key may be in it: no more is repeated than of which kind it is.
        let bad = |what: &str| Error::Place {
            uri: match uri.split_once("://") {
                Some((scheme, _)) if scheme.len() <= SCHEME_BYTES_MAX => format!("{scheme}://…"),
                _ => "without a scheme".into(),
            },
            what: what.to_owned(),
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| {
            bad("give file:///FOLDER, s3://BUCKET/…, webdav(s)://HOST/… or http(s)://HOST/…")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.contains('@') {
            return Err(bad(
                "no user or password may be in it, as all would read it: put them into the file of keys",
            ));
        }
        if path.split('/').any(|part| part == ".." || part == ".")
            || uri.contains(['#', '\0', '\n'])
        {
            return Err(bad("`.`, `..` and `#` may not be in it"));
        }
        let mut settings = BTreeMap::new();
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if scheme != "s3" || !["endpoint", "region"].contains(&name) || value.contains('@') {
                return Err(bad(
                    "behind `?` only endpoint= and region= of s3 may be; keys go into the file of keys",
                ));
            }
            settings.insert(name, value.to_owned());
        }
        let root = format!("/{}", path.trim_matches('/'));
        let kind = match scheme {
            "file" if host.is_empty() && path.starts_with('/') => Kind::Folder(path.to_owned()),
            "file" => return Err(bad("give file:// and the full path of a folder")),
            _ if host.is_empty() => return Err(bad("it names no host, or no bucket")),
            "s3" => Kind::S3 {
                bucket: host.to_owned(),
                root,
                endpoint: settings.remove("endpoint"),
                region: settings.remove("region").unwrap_or("us-east-1".into()),
            },
            "webdav" => Kind::WebDav(format!("http://{host}"), root),
            "webdavs" => Kind::WebDav(format!("https://{host}"), root),
            "http" | "https" => Kind::Http(format!("{scheme}://{host}"), root),
            _ => return Err(bad("schemes are file, s3, webdav, webdavs, http and https")),
        };
        Ok(Self {
            uri: uri.to_owned(),
            kind,
        })
    }

    /// As it was given.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// What a path here is called in another place that this is in, or that it is itself; `None`: it is elsewhere.
    #[must_use]
    pub fn seen_from(&self, other: &Self, path: &str) -> Option<String> {
        let (ours, theirs, same) = match (&self.kind, &other.kind) {
            (Kind::Folder(ours), Kind::Folder(theirs)) => (ours, theirs, true),
            (
                Kind::S3 {
                    root: ours,
                    bucket,
                    endpoint,
                    ..
                },
                Kind::S3 {
                    root: theirs,
                    bucket: bucket_there,
                    endpoint: endpoint_there,
                    ..
                },
            ) => (
                ours,
                theirs,
                (bucket, endpoint) == (bucket_there, endpoint_there),
            ),
            (Kind::WebDav(host, ours), Kind::WebDav(there, theirs))
            | (Kind::Http(host, ours), Kind::Http(there, theirs)) => (ours, theirs, host == there),
            _ => return None,
        };
        let (ours, theirs) = (ours.trim_matches('/'), theirs.trim_matches('/'));
        let between = match (same, theirs.is_empty(), ours.strip_prefix(theirs)?) {
            (false, ..) => return None,
            (true, true, below) => below,
            (true, false, "") => "",
            (true, false, below) => below.strip_prefix('/')?,
        };
        Some(match between {
            "" => path.to_owned(),
            between => format!("{between}/{path}"),
        })
    }

    /// Whether nothing can be listed or written there.
    #[must_use]
    pub fn is_plain_http(&self) -> bool {
        matches!(self.kind, Kind::Http(..))
    }
}

/// A path below a store: names with slashes between them, none at its ends. A store may have other names in it: those are of no file.
///
/// # Errors
/// If a part is empty, `.` or `..`, or has a zero byte in it.
pub(crate) fn checked(path: &str) -> Result<&str, Error> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    match path.split('/').any(bad) {
        true => Err(Error::Path(path.to_owned())),
        false => Ok(path),
    }
}

/// What a file is called while it is written, beside the name that it is to have.
pub(crate) const PART: &str = ".tidemill-part-";

pub(crate) fn part_of(path: &str) -> String {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let part = format!("{PART}{:016x}", hasher.finish());
    match above {
        "" => part,
        above => format!("{above}/{part}"),
    }
}

pub(crate) fn is_part(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with(PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_in_the_places_around_it_and_in_no_others() {
        let seen = |here: &str, there: &str| {
            let [here, there] = [here, there].map(|uri| Place::parse(uri).unwrap());
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
    }

    #[test]
    fn addresses_say_where_and_nothing_secret() {
        let place = Place::parse("s3://data/a/b/?endpoint=http://127.0.0.1:9000").unwrap();
        let kind = Kind::S3 {
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
            "hush@host/path",
        ] {
            let error = Place::parse(uri).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
        for path in ["", "/a", "a//b", "a/../b", "..", "a/.", "a/"] {
            assert!(checked(path).is_err(), "{path}");
        }
        assert_eq!(checked("a/..b/c").unwrap(), "a/..b/c");
    }
}
