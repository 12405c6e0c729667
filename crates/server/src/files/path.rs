//! Conversion between paths of the cluster and URLs.

use tonic::codegen::http::Uri;

/// Prefix of the URL paths of files.
pub(crate) const FILES: &str = "/files";

/// Reason why a URL names no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPath {
    /// The URL has a query, which files do not support.
    #[error("a URL of a file has no query: write the `?` of a name as %3F")]
    Query,
    /// A percent sign is not followed by the digits of a byte.
    #[error(
        "a percent sign must be followed by two hexadecimal digits: write the `%` of a name as %25"
    )]
    Escape,
    /// The URL contains a byte that no name in the cluster can contain.
    #[error("a name can't contain a slash (%2F) or a zero byte (%00)")]
    Byte,
    /// The URL contains the name `.` or `..`.
    #[error("`.` and `..` are not names: write the path without them")]
    Dots,
}

/// Whether a URL path is the path of a file or directory in the cluster.
pub(crate) fn is_file(path: &str) -> bool {
    let rest = path.strip_prefix(FILES);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the path in the cluster for a URL. A path with a slash at its end names a directory.
pub(crate) fn of(uri: &Uri) -> Result<Vec<u8>, BadPath> {
    if uri.query().is_some() {
        return Err(BadPath::Query);
    }
    let rest = uri.path().strip_prefix(FILES).unwrap_or_default();
    let mut path = Vec::with_capacity(rest.len() + 1);
    for name in rest.split('/').filter(|name| !name.is_empty()) {
        let name = decoded(name.as_bytes())?;
        if name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(BadPath::Byte);
        }
        if name == b"." || name == b".." {
            return Err(BadPath::Dots);
        }
        path.push(b'/');
        path.extend_from_slice(&name);
    }
    if path.is_empty() || rest.ends_with('/') {
        path.push(b'/');
    }
    Ok(path)
}

fn decoded(name: &[u8]) -> Result<Vec<u8>, BadPath> {
    let digit = |byte: Option<&u8>| {
        let digit = byte.and_then(|&byte| char::from(byte).to_digit(16));
        digit
            .and_then(|digit| u8::try_from(digit).ok())
            .ok_or(BadPath::Escape)
    };
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'%' => digit(rest.next())? << 4 | digit(rest.next())?,
            byte => byte,
        });
    }
    Ok(bytes)
}

/// Returns a name in the encoding of URLs, with percent signs for special bytes.
pub(crate) fn encoded(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(url: &str) -> Result<Vec<u8>, BadPath> {
        of(&url.parse().unwrap())
    }

    #[test]
    fn url_path_is_decoded_to_bytes_of_file_names() {
        for (url, expected) in [
            ("/files", "/"),
            ("/files/", "/"),
            ("/files/a", "/a"),
            ("/files/a/", "/a/"),
            ("/files//a///b", "/a/b"),
            ("/files/a%20b%3f+c", "/a b?+c"),
            ("/files/files/x", "/files/x"),
            ("/files/...", "/..."),
            ("http://host:7/files/a", "/a"),
            ("/files/%e4%b8%96", "/世"),
        ] {
            assert_eq!(path(url).unwrap(), expected.as_bytes(), "{url}");
        }
        assert_eq!(path("/files/%ff%FE").unwrap(), b"/\xff\xfe");
        assert!(is_file("/files") && is_file("/files/x"));
        assert!(!is_file("/filesx") && !is_file("/") && !is_file("/x/files"));
    }

    #[test]
    fn url_path_with_dots_or_invalid_escapes_is_refused() {
        for (url, wrong) in [
            ("/files/../etc", BadPath::Dots),
            ("/files/a/./b", BadPath::Dots),
            ("/files/%2e%2e/etc", BadPath::Dots),
            ("/files/.%2E", BadPath::Dots),
            ("/files/a%2fb", BadPath::Byte),
            ("/files/..%2f..%2fetc", BadPath::Byte),
            ("/files/a%00b", BadPath::Byte),
            ("/files/%", BadPath::Escape),
            ("/files/%a", BadPath::Escape),
            ("/files/%zz", BadPath::Escape),
            ("/files/%+1", BadPath::Escape),
            ("/files/a?b", BadPath::Query),
            ("/files/a?", BadPath::Query),
        ] {
            assert_eq!(path(url), Err(wrong), "{url}");
        }
    }

    proptest! {
        #[test]
        fn url_path_round_trip_keeps_any_file_name(name in proptest::collection::vec(1_u8.., 1..40)) {
            prop_assume!(!name.contains(&b'/') && name != b"." && name != b"..");
            let url = format!("/files/{}", encoded(&name));
            prop_assert_eq!(path(&url).unwrap(), [b"/", &name[..]].concat());
        }
    }
}
