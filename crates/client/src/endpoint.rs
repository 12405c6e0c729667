//! Where a server is.

use crate::Error;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket on this host; the server knows the caller by its socket credentials.
    Unix(PathBuf),
    /// `http://host:port`; the caller shows the array's token.
    Http(String),
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let authority = text.strip_prefix("http://").unwrap_or("");
        match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Http(text.into()))
            }
            _ => Err(Error::BadEndpoint(text.into())),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_paths_or_http_urls() {
        for text in ["unix:/a/b", "http://127.0.0.1:80", "http://[::1]:80"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "http://a", "https://a:1", "a:1"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
