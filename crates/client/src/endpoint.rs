//! Addresses of servers.

use crate::Error;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket on this host; the server identifies the caller by the socket's credentials.
    Unix(PathBuf),
    /// `https://host:port`; the caller verifies the server by the server's certificate and sends the cluster's token.
    Https(String),
    /// `http://host:port` without TLS: all bytes can be read on the network, including the token.
    Http(String),
    /// The servers of one cluster, all by `https` or all by `http`. One of them leads.
    Several(Vec<String>),
}

impl Endpoint {
    /// Returns whether connections use no TLS, although other hosts can read them.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Unix(_) | Self::Https(_) => false,
            Self::Http(_) => true,
            Self::Several(urls) => urls.iter().any(|url| url.starts_with("http:")),
        }
    }

    /// Returns the addresses by TCP.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        match self {
            Self::Unix(_) => &[],
            Self::Https(url) | Self::Http(url) => std::slice::from_ref(url),
            Self::Several(urls) => urls,
        }
    }

    /// Parses several addresses. An address without a scheme has that of the first one.
    fn several(text: &str) -> Option<Self> {
        let (scheme, _) = text.split_once("://")?;
        if !["http", "https"].contains(&scheme) {
            return None;
        }
        let mut urls = Vec::new();
        for one in text.split(',') {
            let url = match one.contains("://") {
                true => one.to_owned(),
                false => format!("{scheme}://{one}"),
            };
            match url.parse().ok()? {
                Self::Https(url) if scheme == "https" => urls.push(url),
                Self::Http(url) if scheme == "http" => urls.push(url),
                _ => return None,
            }
        }
        Some(Self::Several(urls))
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_path = |path: &&str| !path.is_empty() && !path.contains(",unix:");
        if let Some(path) = text.strip_prefix("unix:").filter(is_path) {
            return Ok(Self::Unix(path.into()));
        }
        if text.contains(',') {
            return Self::several(text).ok_or_else(|| Error::BadEndpoint(text.into()));
        }
        let is_address = |address: &str| match address.rsplit_once(':') {
            Some((host, port)) => !host.is_empty() && port.parse::<u16>().is_ok(),
            None => false,
        };
        if text.strip_prefix("https://").is_some_and(is_address) {
            return Ok(Self::Https(text.into()));
        }
        if text.strip_prefix("http://").is_some_and(is_address) {
            return Ok(Self::Http(text.into()));
        }
        Err(Error::BadEndpoint(text.into()))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Https(url) | Self::Http(url) => f.write_str(url),
            Self::Several(urls) => f.write_str(&urls.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_parses_unix_paths_and_http_urls() {
        for text in [
            "unix:/a/b",
            "https://a.b:7",
            "http://127.0.0.1:80",
            "http://[::1]:80",
            "https://a:1,https://b:2",
            "http://a:1,http://[::1]:2,http://c:3",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let short: Endpoint = "https://a:1,b:2".parse().unwrap();
        assert_eq!(short.to_string(), "https://a:1,https://b:2");
        for text in [
            "",
            "unix:",
            "http://a",
            "https://a",
            "https://:1",
            "a:1",
            "https://a:1,",
            ",https://a:1",
            "https://a:1,http://b:2",
            "https://a:1,unix:/b",
            "unix:/a,unix:/b",
            "https://a:1,b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
