//! Conditions of an HTTP request on a version (RFC 9110 §13, §14): entity tags, times and ranges.

use std::ops::Range;
use std::time::{Duration, SystemTime};
use tidemill_wire::route;
use tonic::codegen::http::{HeaderMap, header};

/// Properties by which HTTP clients recognise a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionTag {
    /// Entity tag of the version, including the quotes.
    pub(crate) tag: String,
    /// Time of the file's last change, in whole seconds.
    pub(crate) modified: Option<SystemTime>,
    /// Length of the version in bytes.
    pub(crate) size: u64,
}

/// Kind of answer to an HTTP request for a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// The answer has all bytes of the version.
    All,
    /// The answer has this range of bytes, and a header with the range.
    Some(Range<u64>),
    /// The client already has this version, so the answer has no bytes.
    Known,
    /// The version does not fulfil the request's condition, so the request fails.
    Other,
    /// The requested range begins beyond the end of the version.
    Beyond,
}

impl VersionTag {
    /// Returns the properties of a version of a file in a cluster. Object numbers are never reused and objects never change, so the
    /// object's number identifies the content. Versions without bytes are equal in all clusters.
    pub(crate) fn new(cluster: u64, object: u64, size: u64, mtime: i64, now: i64) -> Self {
        // The time must not be later than the request.
        let seconds = u64::try_from(mtime.min(now))
            .ok()
            .map(|ns| ns / 1_000_000_000);
        Self {
            tag: format!("\"{cluster:016x}-{object:016x}\""),
            modified: seconds.map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s)),
            size,
        }
    }

    /// Returns the kind of answer to a `GET` with these headers, or to a `HEAD` if `bytes` is false.
    pub(crate) fn wanted(&self, headers: &HeaderMap, bytes: bool) -> ResponseKind {
        if let Some(tags) = listed(headers, &header::IF_MATCH)
            && !self.is_among(&tags, false)
        {
            return ResponseKind::Other;
        }
        if let Some(tags) = listed(headers, &header::IF_NONE_MATCH) {
            if self.is_among(&tags, true) {
                return ResponseKind::Known;
            }
        } else if let (Some(since), Some(modified)) =
            (date(headers, &header::IF_MODIFIED_SINCE), self.modified)
            && modified <= since
        {
            return ResponseKind::Known;
        }
        let range = headers.get(header::RANGE).filter(|_| bytes);
        let range = range.and_then(|range| range.to_str().ok());
        // A time does not identify a version: two versions may have the same second.
        let same = headers
            .get(header::IF_RANGE)
            .is_none_or(|tag| tag.as_bytes() == self.tag.as_bytes());
        match range
            .filter(|_| same)
            .map(|range| route::parse_range(range, self.size))
        {
            None | Some(None) => ResponseKind::All,
            Some(Some(Some(range))) => ResponseKind::Some(range),
            Some(Some(None)) => ResponseKind::Beyond,
        }
    }

    /// Whether a list of entity tags contains this version's tag. With `weak`, weak tags match, too.
    fn is_among(&self, tags: &[&str], weak: bool) -> bool {
        let is = |tag: &&str| {
            let strong = tag.strip_prefix("W/").filter(|_| weak).unwrap_or(tag);
            *tag == "*" || strong == self.tag
        };
        tags.iter().any(is)
    }
}

/// Returns the values in the list of a header; `None` if the request does not have the header.
fn listed<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<Vec<&'a str>> {
    headers.get(name)?;
    let values = headers.get_all(name).iter();
    let tags = values.filter_map(|value| value.to_str().ok());
    Some(
        tags.flat_map(|value| value.split(','))
            .map(str::trim)
            .collect(),
    )
}

fn date(headers: &HeaderMap, name: &header::HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn wanted(version: &VersionTag, headers: &[(&str, &str)]) -> ResponseKind {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        version.wanted(&map, true)
    }

    #[test]
    fn conditional_request_matches_tag_before_time() {
        let version = VersionTag::new(1, 2, 10, 1_000_000_000 * SECOND + 5, i64::MAX);
        let tag = version.tag.as_str();
        assert_eq!(tag, "\"0000000000000001-0000000000000002\"");
        let time = "Sun, 09 Sep 2001 01:46:40 GMT";
        let before = "Sun, 09 Sep 2001 01:46:39 GMT";
        let weak = format!("W/{tag}");
        let many = format!("\"a\", {tag}");
        for (headers, expected) in [
            (&[][..], ResponseKind::All),
            (&[("if-none-match", tag)], ResponseKind::Known),
            (&[("if-none-match", "*")], ResponseKind::Known),
            (&[("if-none-match", &weak)], ResponseKind::Known),
            (&[("if-none-match", &many)], ResponseKind::Known),
            (
                &[("if-none-match", "\"a\""), ("if-none-match", tag)],
                ResponseKind::Known,
            ),
            (&[("if-none-match", "\"a\"")], ResponseKind::All),
            (&[("if-modified-since", time)], ResponseKind::Known),
            (&[("if-modified-since", before)], ResponseKind::All),
            (&[("if-modified-since", "yesterday")], ResponseKind::All),
            // The tag takes precedence.
            (
                &[("if-none-match", "\"a\""), ("if-modified-since", time)],
                ResponseKind::All,
            ),
            (&[("if-match", tag)], ResponseKind::All),
            (&[("if-match", "*")], ResponseKind::All),
            (&[("if-match", &weak)], ResponseKind::Other),
            (&[("if-match", "\"a\"")], ResponseKind::Other),
            (&[("range", "bytes=2-3")], ResponseKind::Some(2..4)),
            (
                &[("range", "bytes=2-3"), ("if-range", tag)],
                ResponseKind::Some(2..4),
            ),
            (
                &[("range", "bytes=2-3"), ("if-range", &weak)],
                ResponseKind::All,
            ),
            (
                &[("range", "bytes=2-3"), ("if-range", time)],
                ResponseKind::All,
            ),
            (
                &[("range", "bytes=2-3"), ("if-none-match", tag)],
                ResponseKind::Known,
            ),
            (&[("range", "bytes=10-")], ResponseKind::Beyond),
            (
                &[("range", "bytes=10-"), ("if-range", "\"a\"")],
                ResponseKind::All,
            ),
            (&[("range", "bytes=1-2,4-5")], ResponseKind::All),
        ] {
            assert_eq!(wanted(&version, headers), expected, "{headers:?}");
        }
        let mut range = HeaderMap::new();
        range.insert(header::RANGE, "bytes=2-3".parse().unwrap());
        assert_eq!(
            version.wanted(&range, false),
            ResponseKind::All,
            "HEAD has no ranges"
        );
    }

    #[test]
    fn modified_time_outside_http_date_range_is_omitted() {
        let at = |mtime, now| VersionTag::new(1, 2, 0, mtime, now).modified;
        assert_eq!(at(-5, i64::MAX), None);
        assert_eq!(at(0, i64::MAX), Some(SystemTime::UNIX_EPOCH));
        let last = at(i64::MAX, i64::MAX).unwrap();
        assert!(!httpdate::fmt_http_date(last).is_empty());
        // The time of the file's change is in the future.
        assert_eq!(at(7 * SECOND, 5 * SECOND), at(5 * SECOND, 5 * SECOND));
    }
}
