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
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
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
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "http://a", "https://a", "https://:1", "a:1"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
