//! Address of a label queue in NATS: `nats://[USER:PASSWORD@]HOST:PORT[,nats://…][?replicas=N]`.

use std::fmt;
use std::str::FromStr;

/// Maximum number of NATS servers that hold a copy of each label (a limit of NATS).
const REPLICAS_MAX: usize = 5;

/// Credentials for the NATS servers of a queue.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// A token.
    Token(String),
    /// A user and a password.
    User(String, String),
}

/// NATS servers, and the number of servers that hold a copy of each label. The printed form has no password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    servers: Vec<String>,
    secret: Option<Secret>,
    replicas: usize,
}

/// Error of an invalid address. The error message contains no part of the address that may be a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address of a queue: {0}; give `nats://HOST:PORT` or `tls://HOST:PORT`, several addresses separated by commas, with `USER:PASSWORD@` \
     before the host and `?replicas=3` at the end if necessary"
)]
pub struct AddressError(&'static str);

impl Address {
    /// Returns the URLs of the NATS servers, without passwords.
    #[cfg(feature = "nats")]
    pub(crate) fn servers(&self) -> &[String] {
        &self.servers
    }

    #[cfg(feature = "nats")]
    pub(crate) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    #[cfg(feature = "nats")]
    pub(crate) fn replicas(&self) -> usize {
        self.replicas
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.servers.join(","))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}?replicas={}", self.replicas)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (servers, query) = text.split_once('?').unwrap_or((text, ""));
        let replicas = match query.split_once('=') {
            None if query.is_empty() => 1,
            Some(("replicas", count)) => count.parse().unwrap_or(0),
            _ => return Err(AddressError("only `replicas` is allowed after `?`")),
        };
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            return Err(AddressError("replicas are 1 to 5"));
        }
        let parsed = servers
            .split(',')
            .map(server)
            .collect::<Result<Vec<_>, _>>()?;
        let secret = parsed.first().and_then(|(_, secret)| secret.clone());
        if parsed.iter().any(|(_, other)| *other != secret) {
            return Err(AddressError(
                "all servers must have the same user and password",
            ));
        }
        Ok(Self {
            servers: parsed.into_iter().map(|(server, _)| server).collect(),
            secret,
            replicas,
        })
    }
}

/// Splits the URL of one NATS server into the URL without credentials, and the credentials.
fn server(url: &str) -> Result<(String, Option<Secret>), AddressError> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if !["nats", "tls"].contains(&scheme) {
        return Err(AddressError(
            "a server begins with neither nats:// nor tls://",
        ));
    }
    let (secret, place) = match rest.rsplit_once('@') {
        Some((secret, place)) => (Some(secret), place),
        None => (None, rest),
    };
    let place = place.trim_end_matches('/');
    let (host, port) = place
        .rsplit_once(':')
        .ok_or(AddressError("a server has no port"))?;
    if host.is_empty() || host.contains(['/', '@']) || port.parse::<u16>().is_err() {
        return Err(AddressError(
            "a server has no host, or its port is not a number",
        ));
    }
    let secret = secret.map(|secret| match secret.split_once(':') {
        Some((user, password)) => Ok(Secret::User(decoded(user)?, decoded(password)?)),
        None => Ok(Secret::Token(decoded(secret)?)),
    });
    Ok((format!("{scheme}://{place}"), secret.transpose()?))
}

/// Decodes text in which `%` and two hexadecimal digits represent a byte.
fn decoded(text: &str) -> Result<String, AddressError> {
    let bad = AddressError("a user or password has a `%` without two hexadecimal digits");
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte.unwrap_or(0)).to_digit(16);
        match byte {
            b'%' => {
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                let both = high.zip(low).map(|(high, low)| high * 16 + low);
                bytes.push(
                    both.and_then(|byte| u8::try_from(byte).ok())
                        .ok_or(bad.clone())?,
                );
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).map_err(|_| bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_address_is_parsed_and_printed_without_password() {
        let address: Address =
            "nats://me:s%40%2Cx@[::1]:4222,tls://me:s%40%2Cx@b.example:4223?replicas=3"
                .parse()
                .unwrap();
        assert_eq!(
            address.servers,
            ["nats://[::1]:4222", "tls://b.example:4223"]
        );
        let secret = Secret::User("me".into(), "s@,x".into());
        assert!(address.secret == Some(secret));
        assert_eq!(address.replicas, 3);
        assert_eq!(
            address.to_string(),
            "nats://[::1]:4222,tls://b.example:4223"
        );
        assert!(!format!("{address:?}").contains("s@"));
        let token: Address = "nats://t0ken@a:1".parse().unwrap();
        assert!(token.secret == Some(Secret::Token("t0ken".into())));
    }

    #[test]
    fn queue_address_error_does_not_contain_password() {
        for text in [
            "",
            "hush:4222",
            "http://u:hush@a:1",
            "nats://u:hush@a",
            "nats://u:hush@:1",
            "nats://u:hush@a:port",
            "nats://u:hush@a:70000",
            "nats://u:hush@a:1,nats://b:1",
            "nats://u:hush@a:1,",
            "nats://u:hush%4@a:1",
            "nats://u:hush%ff@a:1",
            "nats://u:hush@a:1?replicas=0",
            "nats://u:hush@a:1?replicas=6",
            "nats://u:hush@a:1?hush=6",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(!error.contains("hush"), "{text}: {error}");
        }
    }
}
